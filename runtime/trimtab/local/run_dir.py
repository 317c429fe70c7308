"""The run directory as the launcher keeps it: one launcher at a time, the attempt number, the address.

.lock                  held while a launcher lives; its text is the launcher's pid
attempt.json           the number of the last start, on disk before anything is started
job.yaml               the job as the user wrote it
resolved.json          the job as the processes read it
coordinator.address    host:port of the control plane, while the job runs
logs/                  one file per pod, appended to
"""

import contextlib
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from trimtab.errors import UserError
from trimtab.roles.environment import ADDRESS_FILE

ATTEMPT_FILE = "attempt.json"
RESOLVED_FILE = "resolved.json"
JOB_FILE = "job.yaml"
SUMMARY_FILE = "summary.json"


def coordinator_address(run_dir: Path) -> str:
    """Where the coordinator of the run listens; UserError where the run is not running."""
    path = run_dir / ADDRESS_FILE
    if not run_dir.is_dir():
        raise UserError(f"{run_dir}: there is no such run directory")
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError as error:
        raise UserError(f"{run_dir}: this run is not running (it has no {ADDRESS_FILE})") from error


class RunDirectory:
    """Held by one launcher, as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.logs = self.path / "logs"
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UserError(
                f"the run directory {self.path} cannot be used ({error.strerror}); choose another --run-dir"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.read(self._lock, 32).decode().strip()
            os.close(self._lock)
            self._lock = None
            raise UserError(
                f"{self.path} is in use by another `trimtab run` (process {pid}); stop it with "
                f"`trimtab stop {self.path}` or choose another --run-dir"
            ) from error
        os.ftruncate(self._lock, 0)
        os.write(self._lock, f"{os.getpid()}\n".encode())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        (self.path / ADDRESS_FILE).unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def last_attempt(self) -> int:
        """The number of the last start; 0 where there was none."""
        path = self.path / ATTEMPT_FILE
        if not path.exists():
            return 0
        try:
            return int(json.loads(path.read_text(encoding="utf-8"))["attempt"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f'{path} does not hold {{"attempt": N}}; write the number of the last start into it '
                "(it is in every checkpoint's manifest), or choose another --run-dir"
            ) from error

    def last_identity(self) -> str | None:
        """The training identity of the last start; None where there was none."""
        path = self.path / RESOLVED_FILE
        if not path.exists():
            return None
        try:
            identity = json.loads(path.read_text(encoding="utf-8")).get("trainingIdentity")
        except ValueError:  # the disk was full, or an editor was here; it is written anew
            return None
        return identity if isinstance(identity, str) else None

    def raise_attempt(self, attempt: int) -> None:
        """Record a start, durably: a worker of an earlier one must be told from it even after a crash."""
        temporary = self.path / f"{ATTEMPT_FILE}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({"attempt": attempt}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / ATTEMPT_FILE)
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def begin(self, job_path: Path, address: str) -> None:
        """Leave what people and commands look for; drop the last run's end."""
        (self.path / SUMMARY_FILE).unlink(missing_ok=True)
        target = self.path / JOB_FILE
        if not (target.exists() and target.samefile(job_path)):
            shutil.copyfile(job_path, target)
        (self.path / ADDRESS_FILE).write_text(address + "\n", encoding="utf-8")


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port of 127.0.0.1 for the coordinator of a run, and for the one that is started after it.

    It is bound here and never listened on: no outgoing connection and no other process that asks for a
    free port is given it, while a listener that sets SO_REUSEADDR, as gRPC does, can take it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
