"""GRPO as a dataflow: the steps of DeepSeekMath (arXiv 2402.03300) over episodes, and the pure parts of it.

`grpo_step` is awaited by the coordinator once per step, on its asyncio loop; everything with a side
effect is behind `FlowContext`. No torch here: the loss itself runs in the actor (`losses.py`).

A step may be run again from its start after a coordinator restart: the context answers what had been
done already (episodes taken, update applied) from the journal, and the flow does not notice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from trimtab.algorithms.advantages import group_advantages, spread_to_tokens
from trimtab.algorithms.denominators import count_denominators
from trimtab.algorithms.kl import AdaptiveKLController, FixedKLController, KLController, kl_in_reward
from trimtab.algorithms.masked import sum_by_sequence
from trimtab.episodes import Episode, TrainBatch

if TYPE_CHECKING:
    from trimtab.api import RLTrainingJob
    from trimtab.api.algorithm import GRPOSpec


class FlowContext(Protocol):
    """What a flow may do to the world."""

    @property
    def temperature(self) -> float:
        """At which this step's responses are drawn, and so at which log-probs are taken."""

    async def take(self, num_groups: int, *, max_staleness: int) -> Sequence[Episode]:
        """Scored episodes, grouped by `group_id`."""

    async def log_probs(
        self, batch: TrainBatch, *, model: Literal["policy", "reference"]
    ) -> NDArray[np.float32]:
        """Log-probs of the batch's tokens, [N]."""

    async def update(
        self, batch: TrainBatch, meta: dict[str, Any], *, metrics: dict[str, float]
    ) -> dict[str, float]:
        """The actor's optimiser updates of this step; its global metrics beside the given ones."""

    async def publish(self) -> None:
        """The new weights to every rollout engine."""


def _settings(job: "RLTrainingJob") -> "GRPOSpec":
    assert job.spec.algorithm.grpo is not None
    return job.spec.algorithm.grpo


def kl_controller(job: "RLTrainingJob") -> KLController:
    """The controller that `spec.algorithm.grpo.kl.controller` names."""
    kl = _settings(job).kl
    if kl.controller.adaptive is not None:
        adaptive = kl.controller.adaptive
        return AdaptiveKLController(kl.coefficient, target=adaptive.target, horizon=adaptive.horizon)
    return FixedKLController(kl.coefficient)


async def grpo_step(job: "RLTrainingJob", context: FlowContext, controller: KLController) -> dict[str, float]:
    """One step; returns what the update reported and what the batch was like."""
    training, grpo = job.spec.training, _settings(job)
    episodes = await context.take(training.prompts_per_step, max_staleness=0)
    batch = with_mini_batches(episodes, prompts_per_mini_batch=training.mini_batch_prompts)
    num_updates = (
        int(batch.mini_batch.max() + 1) * training.update_epochs if batch.mini_batch is not None else 0
    )

    reference_used = grpo.kl.coefficient > 0
    if reference_used:
        batch = replace(batch, reference_log_probs=await context.log_probs(batch, model="reference"))
    source = old_log_prob_source(job, num_updates=num_updates)
    if source == "rollout":
        batch = replace(batch, old_log_probs=batch.behaviour_log_probs)
    elif source == "recompute":
        batch = replace(batch, old_log_probs=await context.log_probs(batch, model="policy"))

    advantages = batch_advantages(job, episodes, batch, coefficient=controller.coefficient)
    batch = replace(batch, advantages=advantages.token_advantages)
    in_loss = reference_used and grpo.kl.placement == "loss"
    meta = update_meta(
        job,
        batch,
        temperature=context.temperature,
        kl_coefficient=controller.coefficient if in_loss else 0.0,
    )
    metrics = await context.update(batch, meta, metrics=advantages.metrics)
    if reference_used:
        if not in_loss:
            metrics["kl/actual"] = metrics["actor/reward_kl_penalty"]
        metrics["kl/coefficient"] = controller.coefficient
        if grpo.kl.controller.adaptive is not None:
            metrics["kl/target"] = grpo.kl.controller.adaptive.target
        controller.update(metrics["kl/actual"], batch.num_sequences)
    metrics["training/num_updates"] = float(num_updates)
    await context.publish()
    return metrics


def old_log_prob_source(
    job: "RLTrainingJob", *, num_updates: int
) -> Literal["current", "recompute", "rollout"]:
    """Where the ratio's denominator comes from.

    `auto`: the current log-probs, detached, where a batch serves one update (they are equal then, and a
    forward is saved); recomputed where it serves several, or where the reward's KL penalty needs them.
    """
    grpo = _settings(job)
    if grpo.old_log_probs == "rollout":
        return "rollout"
    needed = grpo.kl.coefficient > 0 and grpo.kl.placement == "reward"
    if grpo.old_log_probs == "recompute" or needed or num_updates > 1:
        return "recompute"
    return "current"


def with_mini_batches(episodes: Sequence[Episode], *, prompts_per_mini_batch: int) -> TrainBatch:
    """The episodes as a batch whose groups are dealt to mini-batches in order, a group never split."""
    batch = TrainBatch.from_episodes(episodes)
    order = {group: number for number, group in enumerate(dict.fromkeys(e.group_id for e in episodes))}
    mini = np.array([order[e.group_id] // prompts_per_mini_batch for e in episodes], np.int32)
    return replace(batch, mini_batch=mini)


@dataclass(frozen=True)
class Advantages:
    """What `batch_advantages` gives."""

    token_advantages: NDArray[np.float32]
    """[N]"""
    metrics: dict[str, float]


def batch_advantages(
    job: "RLTrainingJob", episodes: Sequence[Episode], batch: TrainBatch, *, coefficient: float
) -> Advantages:
    """Group-normalised advantages of the response tokens, after a KL penalty in the reward."""
    grpo = _settings(job)
    scores = np.array([e.score for e in episodes], np.float64)
    rewards, metrics = scores, {}
    if grpo.kl.coefficient > 0 and grpo.kl.placement == "reward":
        assert batch.old_log_probs is not None
        assert batch.reference_log_probs is not None
        penalised = kl_in_reward(
            np.zeros(batch.num_tokens, np.float64),
            batch.old_log_probs,
            batch.reference_log_probs,
            batch.loss_mask,
            batch.offsets,
            estimator=grpo.kl.estimator,
            coefficient=coefficient,
        )
        rewards = scores + sum_by_sequence(penalised.token_rewards, batch.offsets)
        metrics["actor/reward_kl_penalty"] = penalised.current_kl
        metrics["actor/reward_kl_penalty_coeff"] = coefficient
    groups = [e.group_id for e in episodes]
    values = group_advantages(rewards, groups, normalize_by_std=grpo.normalize_by_std)
    tokens = spread_to_tokens(values, batch.loss_mask, batch.offsets).astype(np.float32)
    by_group: dict[str, set[float]] = {}
    for episode, score in zip(episodes, scores, strict=True):
        by_group.setdefault(episode.group_id, set()).add(float(score))
    metrics["reward/uniform_groups"] = float(sum(len(distinct) == 1 for distinct in by_group.values()))
    for name, array in (("score", scores), ("rewards", rewards), ("advantages", values)):
        metrics[f"critic/{name}/mean"] = float(array.mean())
        metrics[f"critic/{name}/max"] = float(array.max())
        metrics[f"critic/{name}/min"] = float(array.min())
    return Advantages(tokens, metrics)


def update_meta(
    job: "RLTrainingJob", batch: TrainBatch, *, temperature: float, kl_coefficient: float
) -> dict[str, Any]:
    """What the actor needs beside its shard: the global denominators of every mini-batch, above all."""
    assert batch.mini_batch is not None
    counted = count_denominators(
        batch.loss_mask,
        batch.offsets,
        batch.mini_batch,
        scale_factor=float(job.spec.training.max_response_tokens),
    )
    denominators = [{"tokens": d.num_tokens, "sequences": d.num_sequences} for d in counted]
    return {
        "denominators": denominators,
        "epochs": job.spec.training.update_epochs,
        "temperature": temperature,
        "kl_coefficient": kl_coefficient,
        "scale_factor": float(job.spec.training.max_response_tokens),
    }
