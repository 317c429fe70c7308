"""How many cores this process may use: those it may run on, as far as its container's quota pays for them.

A quota (`resources.limits.cpu` of a pod) hides no core: a program that starts a thread for every core that it
sees is held up by the kernel for most of each period. Called by the agent, by the engine on CPUs and by
`trimtab doctor`. Reads two small files.
"""

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def allowed_cores() -> list[int]:
    """Numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def num_usable_cores(cgroup: Path = CGROUP) -> int:
    """Whole cores that it can keep busy, one at least; what is left of a quota is for its other threads."""
    quota = _quota(cgroup)
    allowed = len(allowed_cores())
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def _quota(cgroup: Path) -> float | None:
    """Cores' worth of time that the container gets; None where it has no limit."""
    fields = _text(cgroup / "cpu.max").split()  # version 2: "200000 100000", or "max 100000"
    if len(fields) != 2:
        version_1 = cgroup / "cpu"  # -1: no limit
        fields = [_text(version_1 / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if not all(field.isdigit() and int(field) > 0 for field in fields):
        return None
    return int(fields[0]) / int(fields[1])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
