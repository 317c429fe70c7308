"""The coordinator's journal: what it was about to do, on disk before it does it.

One record, replaced atomically at every stage of a step, and the episodes of the step in progress
beside it. A coordinator that starts again in the same attempt reads it and goes on where it stood:

    generating --episodes taken--> updating --applied--> publishing --received--> idle (next step)

- generating: the sampler is as it was before the step; the same prompts are asked for again with the
  same seeds;
- updating: the batch is on disk; the update is sent again under its key, which the actor answers from
  its cache if it had been applied;
- publishing: the metrics and the new version are known; the weights are sent again;
- idle: nothing is under way.

It belongs to one process: a coordinator that was replaced because its machine seemed to be gone, and that is
there after all, finds a later owner at its next stage and ends (`SupersededError`). One that starts late,
after its successor, ends before it has written anything. By its place in the journal, and not by its
connections, is it decided who commands the actor.

Called on the coordinator's loop; a write takes about a millisecond (fsync included).
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from trimtab.episodes import Episode, FinishReason, Reward, Segment
from trimtab.errors import ExitCode, TrimtabError

Stage = Literal["idle", "generating", "updating", "publishing"]
VERSION = 1


class SupersededError(TrimtabError):
    """A later start of this coordinator has taken the journal over: this one has to end, the job goes on."""

    exit_code = ExitCode.REFUSED


@dataclass(frozen=True)
class Record:
    """Everything that a new coordinator process needs; JSON values only."""

    attempt: int
    actor_incarnation: int
    actor_checkpoint: str
    """What that incarnation was started from; empty for the job's model."""
    stage: Stage
    state: dict[str, Any]
    """`TrainingState` before the step in progress (idle: after the last one)."""
    metrics: dict[str, float] = field(default_factory=dict)
    version: int = VERSION

    @property
    def weight_version(self) -> int:
        """The highest that an engine may have been sent."""
        return max(int(self.state.get("weight_version", 0)), int(self.metrics.get("weights/version", 0)))


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file so that a reader, or the next start, sees the old or the new one, never a part."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Journal:
    """The record, the sizes and the batch file under `<run>/journal`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._record_path = directory / "record.json"
        self._sizes_path = directory / "sizes.json"
        self._owner_path = directory / "owner.json"
        self._owner: list[int] | None = None

    def take(self, *, attempt: int, incarnation: int) -> None:
        """Own the journal from now on; SupersededError where a later start has it already."""
        self._owner = [attempt, incarnation]
        self.check_owner()

    def check_owner(self) -> None:
        """SupersededError where a later start has taken the journal over.

        An earlier one that looked for an owner just before this one was written may stand there instead: the
        later keeps the journal all the same, and the earlier finds it at its next look.
        """
        if self._owner is None:
            return
        found = self._found_owner()
        if found > self._owner:
            raise SupersededError(
                f"attempt {found[0]}, incarnation {found[1]} of the coordinator has taken the journal over"
            )
        if found < self._owner:
            write_atomically(self._owner_path, json.dumps(self._owner).encode())

    def _found_owner(self) -> list[int]:
        return json.loads(self._owner_path.read_text()) if self._owner_path.exists() else []

    def read(self, *, attempt: int) -> Record | None:
        """The record of this attempt, if any: an older attempt's is not ours to go on from."""
        if not self._record_path.exists():
            return None
        values = json.loads(self._record_path.read_text())
        if values["version"] != VERSION:
            raise TrimtabError(
                f"{self._record_path}: journal version {values['version']}, this Trimtab writes {VERSION}; "
                "start the job again to resume from its checkpoint"
            )
        record = Record(**values)
        return record if record.attempt == attempt else None

    def write(self, record: Record) -> None:
        """Put the record on disk; returns when it is there."""
        self.check_owner()
        write_atomically(self._record_path, json.dumps(asdict(record)).encode())

    def read_sizes(self, *, attempt: int) -> dict[str, int] | None:
        """The numbers of replicas that this attempt was last told to have, if it was."""
        if not self._sizes_path.exists():
            return None
        values = json.loads(self._sizes_path.read_text())
        sizes: dict[str, int] | None = values["sizes"] if values["attempt"] == attempt else None
        return sizes

    def write_sizes(self, sizes: Mapping[str, int], *, attempt: int) -> None:
        """Keep them: a coordinator that starts again must not send away whom this one asked for."""
        self.check_owner()
        write_atomically(self._sizes_path, json.dumps({"attempt": attempt, "sizes": dict(sizes)}).encode())

    def batch_path(self, step: int) -> Path:
        """Where the episodes of a step are kept."""
        return self._directory / f"episodes-{step:08d}.npz"

    def write_episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        """Keep the step's episodes until the step after it is over."""
        self.check_owner()
        path = self.batch_path(step)
        temporary = path.with_name(path.name + ".new")
        with temporary.open("wb") as file:
            np.savez(file, **_flatten(episodes))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        for old in self._directory.glob("episodes-*.npz"):
            if old.name < self.batch_path(step - 1).name:
                old.unlink()

    def read_episodes(self, step: int) -> list[Episode]:
        """The episodes written for a step."""
        with np.load(self.batch_path(step), allow_pickle=False) as arrays:
            return _unflatten(dict(arrays))


def _flatten(episodes: Sequence[Episode]) -> dict[str, Any]:
    facts = [
        {
            "episode_id": e.episode_id,
            "group_id": e.group_id,
            "finish_reason": e.finish_reason,
            "segments": [[s.kind, s.start, s.end] for s in e.segments],
            "rewards": [asdict(r) for r in e.rewards],
            "num_tokens": e.num_tokens,
        }
        for e in episodes
    ]
    return {
        "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8),
        "token_ids": np.concatenate([e.token_ids for e in episodes]) if episodes else np.zeros(0, np.int32),
        "loss_mask": np.concatenate([e.loss_mask for e in episodes]) if episodes else np.zeros(0, np.bool_),
        "log_probs": np.concatenate([e.log_probs for e in episodes]) if episodes else np.zeros(0, np.float32),
        "weight_versions": (
            np.concatenate([e.weight_versions for e in episodes]) if episodes else np.zeros(0, np.int32)
        ),
    }


def _unflatten(arrays: Mapping[str, Any]) -> list[Episode]:
    episodes, position = [], 0
    for fact in json.loads(arrays["facts"].tobytes()):
        span = slice(position, position + fact["num_tokens"])
        position = span.stop
        episodes.append(
            Episode(
                episode_id=fact["episode_id"],
                group_id=fact["group_id"],
                token_ids=arrays["token_ids"][span],
                loss_mask=arrays["loss_mask"][span],
                log_probs=arrays["log_probs"][span],
                weight_versions=arrays["weight_versions"][span],
                finish_reason=cast("FinishReason", fact["finish_reason"]),
                segments=tuple(Segment(*s) for s in fact["segments"]),
                rewards=tuple(Reward(**r) for r in fact["rewards"]),
            )
        )
    return episodes


def advance(record: Record, stage: Stage, **changes: Any) -> Record:
    """The record of the next stage."""
    return replace(record, stage=stage, **changes)
