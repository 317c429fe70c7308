"""What the data and reward packages drag in: every worker process pays for it at its start."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "datasets", "pyarrow", "vllm", "sympy", "reasoning_gym")


@pytest.mark.parametrize(
    "module", ["trimtab.data", "trimtab.rewards", "trimtab.rewards.worker", "trimtab.roles.reward"]
)
def test_import_pulls_in_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"
