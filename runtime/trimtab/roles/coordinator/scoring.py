"""Scores of episodes: text out to a reward replica, rewards (or the reason for none) back.

Runs on the coordinator's loop. A reward that raises, hangs or is not finite costs that episode; how
many of those a step bears is `spec.failurePolicy.maxFailedRewardShare`, checked by `FailureTally`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from trimtab.episodes import Episode, Reward, Sample
from trimtab.errors import UserError, WorkerLostError
from trimtab.roles.coordinator.dispatch import WorkPool

RewardSet = Literal["train", "validation"]


@dataclass
class FailureTally:
    """Failed scorings of one step or validation."""

    limit: float
    total: int = 0
    failed: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    first_errors: list[str] = field(default_factory=list)
    failed_episodes: list[Episode] = field(default_factory=list)

    def add(self, episode: Episode, errors: Sequence[str], kinds: Sequence[str]) -> None:
        """Count one episode; `errors` is empty where it was scored."""
        self.total += 1
        if errors:
            self.failed += 1
            self.failed_episodes.append(episode)
            for kind in kinds:
                self.by_kind[kind] = self.by_kind.get(kind, 0) + 1
            if len(self.first_errors) < 3:
                self.first_errors.append(errors[0])

    def check(self) -> None:
        """Raise UserError where more failed than the job bears."""
        if self.total and self.failed / self.total > self.limit:
            raise UserError(
                f"{self.failed} of {self.total} responses could not be scored, above "
                f"spec.failurePolicy.maxFailedRewardShare = {self.limit:g}. "
                f"The first errors: {'; '.join(self.first_errors)}"
            )


class Scorer:
    """Sends episodes to the reward role."""

    def __init__(self, pool: WorkPool, decode: Callable[[Sequence[int]], str], *, timeout_s: float) -> None:
        self._pool = pool
        self._decode = decode
        self._timeout_s = timeout_s

    async def score(
        self, sample: Sample, episode: Episode, *, which: RewardSet, tally: FailureTally
    ) -> Episode | None:
        """The episode with its rewards, or None where it could not be scored (counted in `tally`)."""
        response = self._decode(episode.token_ids[episode.loss_mask].tolist())
        meta: dict[str, object] = {
            "episode_id": episode.episode_id,
            "prompt": sample.prompt_text,
            "response": response,
            "finish_reason": episode.finish_reason,
            "fields": dict(sample.fields),
            "rewards": which,
        }
        try:
            answer = await self._pool.submit("score", meta, {}, timeout_s=self._timeout_s)
        except WorkerLostError as error:
            tally.add(episode, [str(error)], ["died"])
            return None
        errors = answer.message.meta["errors"]
        tally.add(episode, [f"{e['name']}: {e['error']}" for e in errors], [str(e["kind"]) for e in errors])
        if errors:
            return None
        rewards = tuple(
            Reward(name=str(s["name"]), value=float(s["value"]), weight=float(s["weight"]))
            for s in answer.message.meta["scores"]
        )
        return replace(episode, rewards=rewards)
