"""Exit codes and messages of `trimtab.roles.worker.main`, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.errors import ExitCode

SCRIPT = """
import sys, types
from trimtab.roles import worker
from trimtab.api import ResolvedJob

role = types.ModuleType("trimtab.roles.reward")
def run(env, job):
    {body}
role.run = run
sys.modules["trimtab.roles.reward"] = role
ResolvedJob.load = classmethod(lambda cls, path: None)
sys.exit(worker.main())
"""

ENVIRON = {
    "TRIMTAB_JOB": "resolved.json",
    "TRIMTAB_ROLE": "reward",
    "TRIMTAB_REPLICA": "0",
    "TRIMTAB_NODE": "0",
    "TRIMTAB_INCARNATION": "1",
    "TRIMTAB_COORDINATOR": "127.0.0.1:9",
    "TRIMTAB_RANK": "0",
    "TRIMTAB_LOCAL_RANK": "0",
    "TRIMTAB_WORLD_SIZE": "1",
}

ENDS = {
    "returned code": ("return 3", 3, "", False),
    "user error": (
        "from trimtab.errors import UserError; raise UserError('model.path: no such folder')",
        ExitCode.USER_ERROR,
        "error: model.path: no such folder",
        False,
    ),
    "refusal": (
        "from trimtab.comm.control import RefusedError; raise RefusedError('attempt-older', '1, not 2')",
        ExitCode.REFUSED,
        "error: 1, not 2",
        False,
    ),
    "no memory": ("raise MemoryError('9 GB')", ExitCode.OUT_OF_MEMORY, "error: MemoryError: 9 GB", False),
    "torch without memory": (
        "import torch; raise torch.OutOfMemoryError('CUDA')",
        ExitCode.OUT_OF_MEMORY,
        "error: OutOfMemoryError: CUDA",
        False,
    ),
    "bug": ("raise KeyError('step')", ExitCode.INTERNAL, "error: KeyError: 'step'", True),
}  # fmt: skip


@pytest.mark.parametrize(("body", "code", "message", "traceback"), ENDS.values(), ids=ENDS.keys())
def test_worker_end_becomes_an_exit_code_and_a_last_line(
    tmp_path: Path, body: str, code: int, message: str, traceback: bool
) -> None:
    script = tmp_path / "worker_main.py"
    script.write_text(SCRIPT.format(body=body))
    ended = subprocess.run(
        [sys.executable, str(script)], env=ENVIRON, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == code
    assert ended.stderr.strip().rpartition("\n")[2] == message
    assert ("Traceback" in ended.stderr) == traceback
