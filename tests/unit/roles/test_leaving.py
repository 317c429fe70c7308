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
tell_first(lambda name: print("told", name, flush=True), alone_s=lambda: 0.0)
print("ready", flush=True)
hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2**31 - 1)
"""

ALONE = """
import time
from trimtab.roles.leaving import tell_first
since = time.monotonic()
tell_first(lambda name: None, alone_s=lambda: time.monotonic() - since, patience_s=0.5)
time.sleep(1)
print("ready", flush=True)
time.sleep(60)
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


def test_process_that_nobody_can_tell_to_leave_leaves_by_itself_once_it_was_signalled(
    start: Callable[[str], "subprocess.Popen[str]"],
) -> None:
    process = start(ALONE)  # it is alone for longer than its patience, and stays: no signal has come
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=20)
    assert process.returncode == ExitCode.RESTART_REQUESTED
    assert "no coordinator for 0.5 s: leaving without a checkpoint" in said
