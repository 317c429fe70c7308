"""What the reward role and its worker processes say to each other.

Frames of JSON with a 4-byte length in front, over the worker's standard input and output:

    parent -> worker   {lists: {train: [call...], ...}, code_paths, memory_limit_bytes}     once
    worker -> parent   {problems: [text...]}                                                once; empty: ready
    parent -> worker   {list, prompt, response, fields}                                     one response
    worker -> parent   {values: {name: number}} per call of the list, in its order, or
                       {error, kind, leaving} in place of the first that fails; the rest is then left out

The worker answers each call as it ends, so the parent knows which one is running when a deadline passes.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

if TYPE_CHECKING:  # a worker process starts in a tenth of a second without it
    from trimtab.api.rewards import RewardSpec


HEADER = struct.Struct(">I")

ErrorKind = Literal["raised", "timeout", "not_finite", "died"]


@dataclass(frozen=True)
class RewardCall:
    """One entry of a reward list, as a worker needs it."""

    name: str
    function: str
    weight: float = 1.0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 30.0
    path: str = "rewards"
    """Where in the job it stands, for messages."""

    @classmethod
    def from_specs(cls, specs: "Sequence[RewardSpec]", *, path: str) -> list["RewardCall"]:
        """The calls of a job's reward list; `path` is the list's own (`spec.rewards`)."""
        return [
            cls(
                name=spec.name,
                function=spec.function,
                weight=spec.weight,
                arguments=spec.arguments,
                timeout_s=spec.timeout_seconds,
                path=f"{path}[{index}]",
            )
            for index, spec in enumerate(specs)
        ]


@dataclass(frozen=True)
class Score:
    """One named value, before its weight."""

    name: str
    value: float
    weight: float


@dataclass(frozen=True)
class ScoreError:
    """Why a response has no score."""

    name: str
    error: str
    kind: ErrorKind


@dataclass(frozen=True)
class ScoreResult:
    """Either every reward's values, or those until the one that failed."""

    scores: tuple[Score, ...]
    errors: tuple[ScoreError, ...] = ()


def setup_message(
    lists: Mapping[str, Sequence[RewardCall]], *, code_paths: Sequence[str], memory_limit_bytes: int | None
) -> dict[str, Any]:
    """First frame to a worker."""
    return {
        "lists": {name: [asdict(call) for call in calls] for name, calls in lists.items()},
        "code_paths": list(code_paths),
        "memory_limit_bytes": memory_limit_bytes,
    }


def encode(message: Mapping[str, Any]) -> bytes:
    """A frame."""
    body = json.dumps(message).encode("ascii")
    return HEADER.pack(len(body)) + body


def decode(body: bytes) -> dict[str, Any]:
    """A frame's body."""
    message: dict[str, Any] = json.loads(body)
    return message


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """Blocking; None at the end of the stream."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (size,) = HEADER.unpack(header)
    body = stream.read(size)
    return decode(body) if len(body) == size else None
