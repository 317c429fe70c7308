"""One step as the flow sees it: `StepContext` does what the flow asks, journalled and timed.

Runs on the coordinator's loop, made anew for every step and for every try of one. When a step is taken
up again after a coordinator restart, `resumed` is the journal's record: what that says is done is
answered from it.
"""

import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.episodes import Episode, TrainBatch
from trimtab.errors import TrimtabError
from trimtab.roles.coordinator.actors import ActorUnit
from trimtab.roles.coordinator.journal import Journal, Record, advance
from trimtab.roles.coordinator.scoring import FailureTally
from trimtab.roles.coordinator.source import EpisodeSource, Taken
from trimtab.roles.coordinator.weights import WeightSync


class StepContext:
    """Implements `trimtab.algorithms.grpo.FlowContext`."""

    def __init__(
        self,
        record: Record,
        *,
        step: int,
        source: EpisodeSource,
        actor: ActorUnit,
        weights: WeightSync,
        journal: Journal,
        resumed: bool,
        note: Callable[[str], None],
        within_grace: Callable[[Coroutine[Any, Any, Taken]], Coroutine[Any, Any, Taken]],
    ) -> None:
        self._record = record
        self._step = step
        self._source = source
        self._actor = actor
        self._weights = weights
        self._journal = journal
        self._resumed = resumed
        self.timings: dict[str, float] = {}
        self.metrics: dict[str, float] = {}
        self.taken: Taken | None = None
        self._note = note
        self._within_grace = within_grace

    @property
    def record(self) -> Record:
        """What the journal holds now."""
        return self._record

    @property
    def temperature(self) -> float:
        """See FlowContext."""
        assert self._source.settings is not None
        return float(str(self._source.settings.sampling["temperature"]))

    async def take(self, num_groups: int, *, max_staleness: int) -> Sequence[Episode]:
        """See FlowContext."""
        self._note("generating")
        if self._resumed and self._record.stage in ("updating", "publishing"):
            self.taken = self._recorded(num_groups)
            return self.taken.episodes
        self._write(advance(self._record, "generating"))
        taken = await self._within_grace(self._source.take(num_groups, max_staleness=max_staleness))
        self.timings["timing_s/gen"] = taken.generation_s
        self.timings["timing_s/reward"] = taken.scoring_tail_s
        self.taken = taken
        if not taken.episodes:
            raise TrimtabError(
                f"step {self._step}: no prompt had two scored responses, so there is nothing to learn from. "
                f"First errors: {'; '.join(taken.tally.first_errors) or 'none'}"
            )
        self._journal.write_episodes(self._step, taken.episodes)
        self._write(advance(self._record, "updating"))
        return taken.episodes

    async def log_probs(
        self, batch: TrainBatch, *, model: Literal["policy", "reference"]
    ) -> NDArray[np.float32]:
        """See FlowContext."""
        if self._record.stage == "publishing":
            # The update that they are for has been applied, and what came of them is in its metrics.
            return np.zeros(batch.num_tokens, np.float32)
        self._note(f"log-probs of the {model}")
        with self._timed("timing_s/ref" if model == "reference" else "timing_s/old_log_prob"):
            async with self._actor.lock:
                return await self._actor.log_probs(batch, model=model, temperature=self.temperature)

    async def update(
        self, batch: TrainBatch, meta: dict[str, Any], *, metrics: dict[str, float]
    ) -> dict[str, float]:
        """See FlowContext."""
        if self._record.stage == "publishing":
            self._weights.version = int(self._record.metrics["weights/version"])
            return dict(self._record.metrics)
        self._note("updating the actor")
        with self._timed("timing_s/update_actor"):
            async with self._actor.lock:
                metrics = {**metrics, **await self._actor.update(batch, meta, step=self._step)}
                # Under the lock: nobody may send these weights under the old number.
                self._weights.version += 1
        metrics["weights/version"] = float(self._weights.version)
        self._write(advance(self._record, "publishing", metrics=metrics))
        return metrics

    async def publish(self) -> None:
        """See FlowContext."""
        self._note("publishing weights")
        with self._timed("timing_s/update_weights"):
            async with self._actor.lock:
                self.metrics.update(await self._weights.publish())

    def _write(self, record: Record) -> None:
        self._journal.write(record)
        self._record = record

    def _recorded(self, num_groups: int) -> Taken:
        episodes = self._journal.read_episodes(self._step)
        leases, samples = self._source.lease(num_groups)
        return Taken(
            leases=leases,
            samples={sample.group_id: sample for sample in samples},
            episodes=episodes,
            tally=FailureTally(limit=1.0),
        )

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.timings[name] = self.timings.get(name, 0.0) + time.monotonic() - started
