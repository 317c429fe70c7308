"""Errors that reach a user, and the exit codes that a launcher or operator acts on.

Raised by every layer; caught at the edge (CLI, worker main), which prints the message alone for a
`UserError` and exits with its code. Anything else is a bug and keeps its traceback.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a process's exit code tells whoever started it (documented in docs/troubleshooting.md)."""

    OK = 0
    INTERNAL = 1
    """A bug or a lost peer: restart, against the budget."""
    USER_ERROR = 64
    """Only an edit of the job cures it: fail the job at once."""
    REFUSED = 65
    """The coordinator refused this worker (older attempt, other identity): do not restart it as it is."""
    OUT_OF_MEMORY = 66
    COORDINATOR_LOST = 67
    """No coordinator within the deadline."""
    RESTART_REQUESTED = 68
    """The coordinator asked this unit to start again (a peer rank was lost)."""
    JOB_FAILED = 69
    """The coordinator gave the job up, and starting it again at once would not help; its message says why."""


class TrimtabError(Exception):
    """Base of our errors; `kind` travels over the wire in place of the type."""

    kind = "internal"
    exit_code = ExitCode.INTERNAL


class UserError(TrimtabError, ValueError):
    """A mistake in what the user gave: says the field, the value, and what would be right."""

    kind = "user"
    exit_code = ExitCode.USER_ERROR


class OutOfMemoryError(TrimtabError):
    """A device or the host ran out of memory; the message names the setting that lowers the need."""

    kind = "oom"
    exit_code = ExitCode.OUT_OF_MEMORY


class DeadlineError(TrimtabError):
    """A wait passed its deadline; the message names who was waited for."""

    kind = "timeout"


class WorkerLostError(TrimtabError):
    """A worker's stream broke or its heartbeats stopped; the message names it."""

    kind = "lost"
