"""Errors of the control plane, and how any exception is named on the wire."""

import sys

from trimtab.errors import DeadlineError, ExitCode, TrimtabError

_EXIT_CODES = {"user": ExitCode.USER_ERROR, "oom": ExitCode.OUT_OF_MEMORY}


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
    """Whether torch ran out of device memory; torch is not imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)
