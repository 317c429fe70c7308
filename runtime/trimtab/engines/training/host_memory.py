"""Memory of a process that trains on CPUs, where torch allocates every tensor from the C library.

Called by the actor role before it builds its engine: the setting is the whole process's.
"""

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
"""Of glibc's malloc.h."""
_TOP_PAD_BYTES = 1 << 26


def keep_freed_memory() -> bool:
    """Have freed memory used again instead of given back; False where this C library has no such setting.

    Large tensors would otherwise be mapped, zeroed by the kernel page by page and unmapped at each
    operation: 600,000 page faults in an update of SmolLM2-135M, none with this. The process stays as large
    as its largest update has made it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, _TOP_PAD_BYTES))
    return all(mallopt(parameter, value) == 1 for parameter, value in settings)
