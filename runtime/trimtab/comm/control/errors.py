"""Errors of the control plane, and how any exception is named on the wire."""

import sys

from trimtab.errors import DeadlineError, ExitCode, TrimtabError

_EXIT_CODES = {"user": ExitCode.USER_ERROR, "oom": ExitCode.OUT_OF_MEMORY}
_CPU_ALLOCATOR = "DefaultCPUAllocator: "
"""Begins what torch's allocator for CPUs says, and nothing but a failed allocation makes it speak."""


class RefusedError(TrimtabError):
    """The coordinator refused the registration; final, the process must not dial again."""

    kind = "refused"
    exit_code = ExitCode.REFUSED

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class CoordinatorLostError(DeadlineError):
    """No coordinator answered within the dial deadline."""

    exit_code = ExitCode.COORDINATOR_LOST


class CommandError(TrimtabError):
    """A worker answered a command with an error; `kind` is "user", "oom", "timeout" or "internal"."""

    def __init__(self, worker: str, kind: str, message: str) -> None:
        super().__init__(f"{worker}: {message}")
        self.worker = worker
        self.kind = kind
        self.message = message
        self.exit_code = _EXIT_CODES.get(kind, ExitCode.INTERNAL)


def error_kind(error: BaseException) -> str:
    """The `error_kind` that stands for this exception on the wire."""
    if isinstance(error, TrimtabError):
        return error.kind
    if isinstance(error, MemoryError) or is_torch_out_of_memory(error):
        return "oom"
    if isinstance(error, TimeoutError):
        return "timeout"
    return "internal"


def is_torch_out_of_memory(error: BaseException) -> bool:
    """Whether torch ran out of memory; torch is not imported for the question.

    On a CPU torch raises a bare RuntimeError, which only its allocator's name sets apart: the one place
    where a message decides.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    return isinstance(error, torch.OutOfMemoryError) or (
        type(error) is RuntimeError and _CPU_ALLOCATOR in str(error)
    )
