"""CommandLedger: a worker runs each command key once; WorkerSession uses it from two threads."""

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, auto

from trimtab.v1 import control_pb2 as pb

RESULTS_KEPT = 256


class Admission(Enum):
    """What becomes of a command that arrived."""

    RUN = auto()
    """New: hand it to the role."""
    ATTACHED = auto()
    """Running already: its result answers this arrival too."""
    ANSWERED = auto()
    """Done already, or refused: the result is at hand."""


@dataclass
class _Entry:
    digest: bytes
    body: str
    result: pb.CommandResult | None = None


class CommandLedger:
    """Keys with their commands' digests and, once done, their results; the last `RESULTS_KEPT` are kept.

    A coordinator repeats a key only until it has the answer and uses a new key for each thing it wants
    done, so that a key older than the last few hundred is never repeated.
    """

    def __init__(self, *, capacity: int = RESULTS_KEPT) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def admit(self, command: pb.Command) -> tuple[Admission, pb.CommandResult | None]:
        """Decide on a command; the result is present exactly for ANSWERED."""
        asked, body = digest(command), command.WhichOneof("body") or "nothing"
        with self._lock:
            entry = self._entries.get(command.key)
            if entry is None:
                self._entries[command.key] = _Entry(asked, body)
                return Admission.RUN, None
            if entry.digest != asked:
                return Admission.ANSWERED, pb.CommandResult(
                    key=command.key,
                    ok=False,
                    error_kind="internal",
                    error=f"key {command.key} was used for another command ({entry.body}, now {body})",
                )
            if entry.result is None:
                return Admission.ATTACHED, None
            self._entries.move_to_end(command.key)
            return Admission.ANSWERED, entry.result

    def complete(self, result: pb.CommandResult) -> None:
        """Keep a result; the oldest finished ones make room, unfinished commands are never forgotten."""
        with self._lock:
            entry = self._entries.get(result.key)
            assert entry is not None, f"a result for {result.key}, which was never handed out"
            assert entry.result is None, f"a second result for {result.key}"
            entry.result = result
            self._entries.move_to_end(result.key)
            finished = [key for key, kept in self._entries.items() if kept.result is not None]
            for key in finished[: max(0, len(finished) - self._capacity)]:
                del self._entries[key]


def digest(command: pb.Command) -> bytes:
    """What the command asks, as a hash: over all but the deadline, which a repeat may set anew."""
    body = pb.Command()
    body.CopyFrom(command)
    body.timeout_s = 0.0
    return hashlib.sha256(body.SerializeToString(deterministic=True)).digest()
