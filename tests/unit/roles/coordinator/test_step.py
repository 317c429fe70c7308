"""StepContext: what a step does, in which order, and what of it the journal answers the second time."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.episodes import Episode, TrainBatch, single_turn
from trimtab.errors import TrimtabError
from trimtab.roles.coordinator.actors import ActorLostError
from trimtab.roles.coordinator.journal import Journal, Record
from trimtab.roles.coordinator.scoring import FailureTally
from trimtab.roles.coordinator.source import RequestSettings, Taken
from trimtab.roles.coordinator.step import StepContext

STEP = 4


def episode(number: int) -> Episode:
    return single_turn(
        episode_id=f"0/1/{number}",
        group_id="0/1",
        prompt_ids=np.array([7, 8], np.int32),
        response_ids=np.arange(number, number + 3, dtype=np.int32),
        response_log_probs=np.full(3, -0.5, np.float32),
        response_versions=np.full(3, 6, np.int32),
        finish_reason="stop",
    )


EPISODES = [episode(0), episode(1)]
BATCH = TrainBatch.from_episodes(EPISODES)


class Source:
    """Episodes as if generated."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.settings = RequestSettings(sampling={"temperature": 0.7}, max_tokens=8)
        self.episodes = EPISODES

    def lease(self, num_groups: int) -> tuple[list[Any], list[Any]]:
        self.calls.append(f"lease {num_groups}")
        return [], []

    async def take(self, num_groups: int, *, max_staleness: int) -> Taken:
        self.calls.append(f"take {num_groups}")
        tally = FailureTally(limit=1.0, first_errors=["length: too odd"])
        return Taken(leases=[], samples={}, episodes=self.episodes, tally=tally, generation_s=1.5)


class Actor:
    """Answers an update with a metric."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.lock = asyncio.Lock()
        self.lost = False

    async def log_probs(self, batch: TrainBatch, *, model: str, temperature: float) -> Any:
        self.calls.append(f"log-probs of the {model} at {temperature}")
        return np.full(batch.num_tokens, -1.0, np.float32)

    async def update(self, batch: TrainBatch, meta: dict[str, Any], *, step: int) -> dict[str, float]:
        assert self.lock.locked()
        self.calls.append(f"update {step}")
        if self.lost:
            raise ActorLostError("actor-0/rank-0 was lost")
        return {"actor/loss": 0.25}


class Weights:
    """Notes which version is published."""

    def __init__(self, calls: list[str], actor: Actor) -> None:
        self.calls = calls
        self.actor = actor
        self.version = 6

    async def publish(self) -> dict[str, float]:
        assert self.actor.lock.locked()
        self.calls.append(f"publish {self.version}")
        return {"weights/sync_s": 0.1}


class Scene:
    """One try of a step; `calls` is everything that was asked for, journal entries included."""

    def __init__(self, folder: Path, record: Record, *, resumed: bool) -> None:
        self.calls: list[str] = []
        self.journal = Journal(folder)
        write = self.journal.write

        def note(record: Record) -> None:
            self.calls.append(f"journal: {record.stage}")
            write(record)

        self.journal.write = note  # type: ignore[method-assign]
        self.source, self.actor = Source(self.calls), Actor(self.calls)
        self.weights = Weights(self.calls, self.actor)
        parts: dict[str, Any] = {"source": self.source, "actor": self.actor, "weights": self.weights}

        async def without_grace(work: Coroutine[Any, Any, Taken]) -> Taken:
            return await work

        self.context = StepContext(
            record,
            step=STEP,
            journal=self.journal,
            resumed=resumed,
            note=lambda activity: None,
            within_grace=without_grace,
            **parts,
        )

    async def flow(self) -> dict[str, float]:
        """As `grpo_step` goes about it."""
        episodes = await self.context.take(2, max_staleness=0)
        assert [e.episode_id for e in episodes] == [e.episode_id for e in EPISODES]
        np.testing.assert_array_equal(episodes[1].token_ids, EPISODES[1].token_ids)
        self.reference = await self.context.log_probs(BATCH, model="reference")
        metrics = await self.context.update(BATCH, {}, metrics={"critic/score/mean": 0.5})
        await self.context.publish()
        return metrics


IDLE = Record(attempt=1, actor_incarnation=1, actor_checkpoint="", stage="idle", state={"step": STEP - 1})
ALL = [
    "journal: generating",
    "take 2",
    "journal: updating",
    "log-probs of the reference at 0.7",
    "update 4",
    "journal: publishing",
    "publish 7",
]
METRICS = {"critic/score/mean": 0.5, "actor/loss": 0.25, "weights/version": 7.0}


def record_of(scene: Scene) -> Record:
    record = scene.journal.read(attempt=1)
    assert record is not None
    return record


def test_step_is_journalled_before_each_stage_and_the_update_makes_a_new_version(tmp_path: Path) -> None:
    scene = Scene(tmp_path, IDLE, resumed=False)
    assert asyncio.run(scene.flow()) == METRICS
    assert scene.calls == ALL
    assert scene.weights.version == 7
    assert record_of(scene) == scene.context.record
    assert record_of(scene).metrics == METRICS
    assert scene.context.metrics == {"weights/sync_s": 0.1}
    assert scene.context.timings["timing_s/gen"] == 1.5


def interrupted(folder: Path, stage: str) -> Record:
    """What a coordinator that was killed after it had written this stage has left."""
    scene = Scene(folder, IDLE, resumed=False)
    asyncio.run(scene.flow())
    record = record_of(scene)
    metrics = record.metrics if stage == "publishing" else {}
    return Record(**{**vars(record), "stage": stage, "metrics": metrics})


@pytest.mark.parametrize(
    ("stage", "calls"),
    [
        ("generating", ALL),
        ("updating", ["lease 2", *ALL[3:]]),
        ("publishing", ["lease 2", ALL[-1]]),
    ],
)
def test_resumed_step_repeats_only_what_the_journal_does_not_answer(
    tmp_path: Path, stage: str, calls: list[str]
) -> None:
    scene = Scene(tmp_path, interrupted(tmp_path, stage), resumed=True)
    assert asyncio.run(scene.flow()) == METRICS
    assert scene.calls == calls
    assert scene.weights.version == 7


def test_log_probs_of_an_update_that_is_done_are_not_computed_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, interrupted(tmp_path, "publishing"), resumed=True)
    asyncio.run(scene.flow())
    assert scene.reference.shape == (BATCH.num_tokens,)


def test_actor_lost_in_the_update_leaves_the_version_and_the_stage(tmp_path: Path) -> None:
    scene = Scene(tmp_path, IDLE, resumed=False)
    scene.actor.lost = True
    with pytest.raises(ActorLostError):
        asyncio.run(scene.flow())
    assert scene.weights.version == 6
    assert record_of(scene).stage == "updating"
    assert not scene.actor.lock.locked()


def test_step_without_episodes_names_the_first_errors_and_is_generated_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, IDLE, resumed=False)
    scene.source.episodes = []
    with pytest.raises(TrimtabError, match=r"step 4: .* nothing to learn from\. First errors: length: too"):
        asyncio.run(scene.flow())
    assert record_of(scene).stage == "generating"
