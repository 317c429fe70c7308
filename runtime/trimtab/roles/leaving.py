"""What SIGTERM means in a pod: this pod goes and another comes in its place; the job goes on.

Set up by `trimtab.roles.worker` for every role, before anything else. A rollout or reward server, a
coordinator and an actor that holds nothing yet leave at once: whoever asked them asks another, the
coordinator's journal stands. An actor with a model says so instead (`tell_first`) and leaves when the
coordinator has a checkpoint, or when there has been no coordinator for a while (the whole job is deleted, and
its GPUs are waited for). On a laptop the launcher's signals end the job, and this file is not used.
"""

import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

from trimtab.errors import ExitCode

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
PATIENCE_S: Final = 30.0
"""A coordinator that was drained as well is back within this, or what it would save is given up."""
_LOOK_EVERY_S: Final = 1.0


def leave_at_once() -> None:
    """Make the first signal end this process, with the exit code that asks for another start."""

    def leave(number: int, frame: FrameType | None) -> None:
        _say(f"{signal.Signals(number).name}: this pod goes; leaving at once")
        os._exit(ExitCode.RESTART_REQUESTED)

    for number in SIGNALS:
        signal.signal(number, leave)


def tell_first(
    tell: Callable[[str], None], *, alone_s: Callable[[], float], patience_s: float = PATIENCE_S
) -> None:
    """Make the first signal call `tell` with its name, on a thread of its own, and the second end it all.

    After the first, the process also ends once `alone_s`, for how long nobody has been there to tell, is more
    than `patience_s`.

    Called on the main thread, which may be deep in a kernel or a collective when the signal comes: Python
    would run a handler only after it, while the byte that it writes here is seen at once.
    """
    wakes, written = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    for number in SIGNALS:
        signal.signal(number, _noted)
    arguments = (wakes, tell, alone_s, patience_s)
    threading.Thread(target=_watch, args=arguments, name="signals", daemon=True).start()


def _watch(wakes: int, tell: Callable[[str], None], alone_s: Callable[[], float], patience_s: float) -> None:
    told = False
    while True:
        ready, _, _ = select.select([wakes], [], [], _LOOK_EVERY_S if told else None)
        if told and alone_s() > patience_s:
            _say(f"no coordinator for {patience_s:g} s: leaving without a checkpoint")
            os._exit(ExitCode.RESTART_REQUESTED)
        for number in os.read(wakes, 16) if ready else b"":
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
