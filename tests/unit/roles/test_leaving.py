"""Signals in a pod, in a process of its own."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from trimtab.errors import ExitCode

AT_ONCE = """
import time
from trimtab.roles.leaving import leave_at_once
leave_at_once()
print("ready", flush=True)
time.sleep(60)
"""

# A call that runs no bytecode until it is over: Python would not run a signal handler before.
TOLD_FIRST = """
import hashlib, time
from trimtab.roles.leaving import tell_first
tell_first(lambda name: print("told", name, flush=True))
print("ready", flush=True)
hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2**31 - 1)
"""


@pytest.fixture
def start() -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    started: list[subprocess.Popen[str]] = []

    def start_script(script: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start_script
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_that_holds_nothing_leaves_at_the_first_signal(
    start: Callable[[str], "subprocess.Popen[str]"], number: signal.Signals
) -> None:
    process = start(AT_ONCE)
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert process.returncode == ExitCode.RESTART_REQUESTED
    assert said == f"{number.name}: this pod goes; leaving at once\n"


def test_first_signal_is_told_in_the_middle_of_a_long_call_and_the_second_ends_it(
    start: Callable[[str], "subprocess.Popen[str]"],
) -> None:
    process = start(TOLD_FIRST)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "told SIGTERM\n"
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=20)
    assert process.returncode == ExitCode.RESTART_REQUESTED
    assert "waiting for the coordinator's checkpoint" in said
