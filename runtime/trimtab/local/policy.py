"""What to do when a pod ends or the coordinator asks for a new one: pure decisions, no clock, no process.

A replica is restarted as a whole; restarts without progress in between are counted against
`failurePolicy.maxRestarts`, over all roles, and each waits longer than the one before.
"""

import signal
from dataclasses import dataclass
from enum import Enum, auto

from trimtab.errors import ExitCode
from trimtab.roles.environment import COORDINATOR

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0

_FATAL = (ExitCode.USER_ERROR, ExitCode.REFUSED)
_FATAL_OF_COORDINATOR = (*_FATAL, ExitCode.OUT_OF_MEMORY, ExitCode.JOB_FAILED)


class Verdict(Enum):
    """What the end of a replica means for the job."""

    JOB_DONE = auto()
    """The coordinator has finished: complete, or stopped with a checkpoint."""
    LEFT = auto()
    """A worker was told to leave; it is not started again unless the coordinator asks for it."""
    JOB_FAILED = auto()
    """Only an edit of the job helps."""
    RESTART = auto()
    """Start it again, against the budget."""
    RESTART_FREE = auto()
    """Start it again; the budget was charged where the fault was."""


def judge(role: str, code: int) -> Verdict:
    """The verdict on a replica whose first failing process had this exit code (0: none failed)."""
    if role == COORDINATOR:
        if code == ExitCode.OK:
            return Verdict.JOB_DONE
        return Verdict.JOB_FAILED if code in _FATAL_OF_COORDINATOR else Verdict.RESTART
    if code == ExitCode.OK:
        return Verdict.LEFT
    if code in _FATAL:
        return Verdict.JOB_FAILED
    return Verdict.RESTART_FREE if code == ExitCode.RESTART_REQUESTED else Verdict.RESTART


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code > 128 and code - 128 in set(signal.Signals):
        return f"was ended by {signal.Signals(code - 128).name}"
    if code in set(ExitCode):
        return f"exited with code {code} ({ExitCode(code).name.lower().replace('_', ' ')})"
    return f"exited with code {code}"


@dataclass
class RestartBudget:
    """Counts restarts since the job last finished a step."""

    max_restarts: int
    used: int = 0
    _step: int = -1

    def progressed(self, step: int) -> None:
        """Take note of the number of finished steps; a rise gives the whole budget back."""
        if step > self._step >= 0:
            self.used = 0
        self._step = max(step, self._step)

    def charge(self) -> float | None:
        """Take one restart and return how long to wait before it; None where none is left."""
        if self.used >= self.max_restarts:
            return None
        self.used += 1
        return float(min(FIRST_DELAY_S * 2 ** (self.used - 1), LONGEST_DELAY_S))
