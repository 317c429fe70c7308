"""A module of user functions that misbehave in every way we know."""

from pathlib import Path

import pytest

USER_CODE = '''
import asyncio, ctypes, os, subprocess, sys, time
from fractions import Fraction

def good(*, prompt, response, fields, bonus=0.0):
    return len(response) + bonus

async def slow_but_fine(*, prompt, response, fields):
    await asyncio.sleep(0.01)
    return 2

def parts(*, prompt, response, fields):
    return {"correct": Fraction(1, 2), "short": True}

def printing(*, prompt, response, fields):
    print("x" * 100_000)
    sys.stdout.flush()
    os.write(1, b"straight to the descriptor\\n")
    subprocess.run(["echo", "from a child"])
    assert sys.stdin.read() == ""
    return 1.0

def behave(*, prompt, response, fields):
    """Does what the response says."""
    if response == "raise":
        raise ValueError("the row is odd")
    if response == "hang":
        while True:
            time.sleep(3600)
    if response == "spin":
        while True:
            pass
    if response == "nan":
        return float("nan")
    if response == "inf":
        return {"a": 1.0, "b": float("inf")}
    if response == "none":
        return None
    if response == "text":
        return "0.5"
    if response == "sys.exit":
        sys.exit(3)
    if response == "os._exit":
        os._exit(7)
    if response == "sigkill":
        os.kill(os.getpid(), 9)
    if response == "segfault":
        ctypes.string_at(0)
    if response == "memory":
        hoard = []
        while True:
            hoard.append(bytearray(16 << 20))
    if response == "grandchild":
        child = subprocess.Popen(["sleep", "3600"])
        with open(fields["pid_file"], "w") as file:
            file.write(str(child.pid))
        child.wait()
    return 1.0

def pid(*, prompt, response, fields):
    return os.getpid()
'''


@pytest.fixture(scope="session")
def code_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user") / "code"
    folder.mkdir()
    (folder / "user_rewards.py").write_text(USER_CODE)
    (folder / "broken_rewards.py").write_text("import os\nlimit = os.environ['NO_SUCH_VARIABLE_HERE']\n")
    (folder / "endless_rewards.py").write_text("import time\ntime.sleep(3600)\n")
    (folder / "leaving_rewards.py").write_text("import os, sys\nprint('bye', file=sys.stderr)\nos._exit(5)\n")
    return folder
