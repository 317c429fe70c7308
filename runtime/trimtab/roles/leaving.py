"""What SIGTERM means in a pod: this pod goes and another comes in its place; the job goes on.

Set up by `trimtab.roles.worker` for every role, before anything else. A rollout or reward server, a
coordinator and an actor that holds nothing yet leave at once: whoever asked them asks another, the
coordinator's journal stands. An actor with a model says so instead (`tell_first`) and leaves when the
coordinator has a checkpoint. On a laptop the launcher's signals end the job, and this file is not used.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

from trimtab.errors import ExitCode

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def leave_at_once() -> None:
    """Make the first signal end this process, with the exit code that asks for another start."""

    def leave(number: int, frame: FrameType | None) -> None:
        _say(f"{signal.Signals(number).name}: this pod goes; leaving at once")
        os._exit(ExitCode.RESTART_REQUESTED)

    for number in SIGNALS:
        signal.signal(number, leave)


def tell_first(tell: Callable[[str], None]) -> None:
    """Make the first signal call `tell` with its name, on a thread of its own, and the second end it all.

    Called on the main thread, which may be deep in a kernel or a collective when the signal comes: Python
    would run a handler only after it, while the byte that it writes here is seen at once.
    """
    wakes, written = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    for number in SIGNALS:
        signal.signal(number, _noted)
    threading.Thread(target=_watch, args=(wakes, tell), name="signals", daemon=True).start()


def _watch(wakes: int, tell: Callable[[str], None]) -> None:
    told = False
    while True:
        for number in os.read(wakes, 16):
            if number not in SIGNALS:
                continue
            name = signal.Signals(number).name
            if told:
                _say(f"second {name}: ending at once")
                os._exit(ExitCode.RESTART_REQUESTED)
            told = True
            _say(f"{name}: this pod goes; waiting for the coordinator's checkpoint")
            tell(name)


def _noted(number: int, frame: FrameType | None) -> None:
    """What counts is the byte on the pipe."""


def _say(text: str) -> None:
    os.write(sys.stderr.fileno(), f"{text}\n".encode())  # logging may be what the signal interrupted
