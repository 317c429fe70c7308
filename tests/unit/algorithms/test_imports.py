"""What the coordinator calls must not need torch: it runs in an image without it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["advantages", "denominators", "kl", "masked"])
def test_coordinator_modules_import_without_torch(module: str) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; "  # an import of torch raises ImportError now
        f"import trimtab.algorithms.{module}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
