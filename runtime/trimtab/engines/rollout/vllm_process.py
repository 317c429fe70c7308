"""The environment that vLLM's processes start with. Set around the engine's start, put back afterwards."""

import contextlib
import ctypes.util
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from trimtab.comm.weights.vllm_plugin import BACKEND, FAULT_FILE_VARIABLE, OWNER_PID_VARIABLE
from trimtab.cores import allowed_cores, num_usable_cores

_log = logging.getLogger(__name__)

_KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
"""For glibc's malloc, which otherwise maps and unmaps the logits of every step, page by page."""


@contextlib.contextmanager
def engine_environment(*, on_gpu: bool, tensor_parallel_size: int, fault_file: Path) -> Iterator[None]:
    """Variables for the engine's processes, which inherit them; ours are put back afterwards."""
    wanted = {
        OWNER_PID_VARIABLE: str(os.getpid()),
        FAULT_FILE_VARIABLE: str(fault_file),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    }
    plugins = os.environ.get("VLLM_PLUGINS")
    if plugins is not None and BACKEND not in plugins.split(","):
        # A site's list of plugins to load must not leave our entry point out.
        wanted["VLLM_PLUGINS"] = f"{plugins},{BACKEND}"
    if not on_gpu:
        tuned = _cpu_environment(allowed_cores(), _num_threads(), tensor_parallel_size)
        _log.info("vLLM starts with %s", " ".join(f"{name}={value}" for name, value in tuned.items()))
        wanted |= tuned
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _num_threads() -> int:
    """Threads for the engine: what OMP_NUM_THREADS says, and no more than the cores that can be used."""
    told, usable = os.environ.get("OMP_NUM_THREADS", ""), num_usable_cores()
    return min(int(told), usable) if told.isdigit() and int(told) > 0 else usable


def _cpu_environment(cores: list[int], num_threads: int, tensor_parallel_size: int) -> dict[str, str]:
    """A thread on each core, bound to it; no compiler; with one worker no process of its own for it.

    With fewer threads than cores (a pod's quota), nothing is bound: which cores are free is the kernel's to
    say, and a second pod on the node would be bound to the same ones.

    vLLM binds its worker's threads only where the worker is a process of its own, which costs a second
    import of ten seconds; so for one worker the engine core's process is bound here.
    """
    shares = [cores[rank::tensor_parallel_size] for rank in range(tensor_parallel_size)]
    bound = num_threads >= len(cores)
    each = max(1, num_threads // tensor_parallel_size)
    common = {
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, s)) for s in shares) if bound else "nobind",
    }
    preload = _preload()
    if preload:
        common["LD_PRELOAD"] = ":".join(filter(None, [*preload, os.environ.get("LD_PRELOAD")]))
    if not any("tcmalloc" in library for library in preload):
        common |= {name: os.environ.get(name, value) for name, value in _KEEP_FREED_MEMORY.items()}
    if tensor_parallel_size > 1:
        return common if bound else common | {"OMP_NUM_THREADS": str(each)}
    listed = ",".join(map(str, cores))
    common |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": str(each)}
    if any("libiomp5" in library for library in preload):
        common |= {"KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0"}
        if bound:
            common["KMP_AFFINITY"] = f"granularity=fine,explicit,proclist=[{listed}]"
    elif bound:
        common |= {"OMP_PLACES": "{" + listed + "}", "OMP_PROC_BIND": "true"}
    return common


def _preload() -> list[str]:
    """Libraries with which vLLM's CPU kernels are 8 to 18 % faster, where they are installed."""
    found = []
    iomp = Path(sys.prefix) / "lib" / "libiomp5.so"
    if iomp.exists():
        found.append(str(iomp))
    tcmalloc = ctypes.util.find_library("tcmalloc_minimal")
    if tcmalloc:
        found.append(tcmalloc)
    return found
