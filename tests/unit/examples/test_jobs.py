"""Every job in examples/ is a valid job, and says beside it what to expect."""

import json
from pathlib import Path

import pytest

from trimtab.api import load_job
from trimtab.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
JOBS = sorted(path for path in EXAMPLES.rglob("*.yaml") if "kind: RLTrainingJob" in path.read_text())


def test_examples_are_found():
    names = {path.parent.name for path in JOBS}
    assert {
        "quickstart",
        "smollm2-arithmetic",
        "gsm8k-qwen",
        "llama3-8b-8gpu",
        "llama3-70b-multinode",
    } <= names


@pytest.mark.parametrize("path", JOBS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_job_loads_and_its_expectation_stands_beside_it(path: Path):
    job = load_job(path)
    assert main(["validate", str(path)]) == 0, "its reward functions take their arguments"
    assert job.spec.validation is not None, "an example shows how its policy is measured"
    readme = (path.parent / "README.md").read_text(encoding="utf-8")
    assert "## What to expect" in readme
    assert f"`{job.metadata.name}`" in readme or path.name in readme


def test_quickstart_in_a_cluster_trains_as_on_a_laptop():
    laptop, cluster = (load_job(EXAMPLES / "quickstart" / name).spec for name in ("job.yaml", "cluster.yaml"))
    for part in ("seed", "algorithm", "training", "rewards", "checkpoint", "tracking"):
        assert getattr(cluster, part) == getattr(laptop, part), part
    assert cluster.roles.rollout.engine == laptop.roles.rollout.engine


@pytest.mark.parametrize(
    ("job", "num_gpus"),
    [
        ("gsm8k-qwen/job.yaml", 1),
        ("gsm8k-qwen/job-2gpu.yaml", 2),
        ("llama3-8b-8gpu/job.yaml", 8),
        ("llama3-70b-multinode/job.yaml", 64),
    ],
)
def test_gpu_jobs_take_the_gpus_that_their_text_says(job: str, num_gpus: int):
    roles = load_job(EXAMPLES / job).spec.roles
    rollout = roles.rollout
    used = roles.actor.nodes * roles.actor.gpus_per_node
    used += rollout.replicas * rollout.nodes * rollout.gpus_per_node
    assert used == num_gpus


def test_quickstart_rows_are_sorted_digits_and_test_prompts_are_held_out(quickstart_data: Path):
    def read(name: str) -> list[dict[str, str]]:
        return [json.loads(line) for line in (quickstart_data / name).read_text().splitlines()]

    train, test = read("train.jsonl"), read("test.jsonl")
    assert all(row["answer"] == "".join(sorted(row["prompt"])) for row in train + test)
    assert {row["prompt"] for row in train}.isdisjoint(row["prompt"] for row in test)
    assert len({row["prompt"] for row in train}) == len(train)


@pytest.fixture(scope="module")
def quickstart_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import importlib.util
    import random

    path = EXAMPLES / "quickstart" / "prepare.py"
    spec = importlib.util.spec_from_file_location("quickstart_prepare", path)
    assert spec is not None and spec.loader is not None
    prepare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prepare)
    folder = tmp_path_factory.mktemp("quickstart")
    prepare.write_data(folder, random.Random(7))
    return folder / "data"
