"""Freed memory that stays, in a process of its own: the setting is the whole process's."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource
import torch
from trimtab.engines.training.host_memory import keep_freed_memory

assert keep_freed_memory()
faults = []
for _ in range(10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(1 << 25)  # 128 MiB, beyond what glibc keeps by itself
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*faults)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_keep_freed_memory_large_tensors_use_the_same_pages_again() -> None:
    output = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    faults = [int(count) for count in output.stdout.split()]
    assert faults[0] > 1000
    # It may have to grow once more, where something small has come to lie in what the tensor left.
    assert sum(faults[5:]) < 1000
