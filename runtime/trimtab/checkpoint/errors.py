"""Storage errors of a checkpoint, said so that a person can act on them.

Used by the store (coordinator) and by the training engine (actor ranks).
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trimtab.errors import TrimtabError, UserError

_REMEDIES = {
    errno.ENOSPC: "the disk is full: free space, lower checkpoint.keep, or change checkpoint.uri",
    errno.EDQUOT: "the quota is used up: free space, lower checkpoint.keep, or change checkpoint.uri",
    errno.EROFS: "that file system is read-only: point checkpoint.uri at a writable place",
    errno.EACCES: "this user may not write there: change its permissions or checkpoint.uri",
    errno.EPERM: "this user may not write there: change its permissions or checkpoint.uri",
    errno.ENOTDIR: "a part of that path is a file: point checkpoint.uri at a directory",
}


class CheckpointStorageError(UserError):
    """A checkpoint could not be written or read for a reason outside Trimtab (full disk, permissions)."""


class StaleAttemptError(TrimtabError):
    """A later start of the job owns this checkpoint directory; this process must not write there."""


def storage_error(error: OSError, path: str | Path) -> CheckpointStorageError | None:
    """Translate an operating-system error, or None where it is not one that a user can cure."""
    remedy = _REMEDIES.get(error.errno) if error.errno is not None else None
    if remedy is None:
        return None
    where = error.filename or str(path)
    return CheckpointStorageError(f"checkpoint.uri: cannot write {where} ({error.strerror}); {remedy}")


@contextmanager
def storage_errors(path: str | Path) -> Iterator[None]:
    """Raise `CheckpointStorageError` for the errors that a user can cure; others pass unchanged."""
    try:
        yield
    except OSError as error:
        translated = storage_error(error, path)
        if translated is None:
            raise
        raise translated from error
