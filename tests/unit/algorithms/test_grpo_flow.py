"""The GRPO flow against a context that records what it is asked to do."""

import asyncio
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from trimtab.algorithms.grpo import grpo_step, kl_controller, with_mini_batches
from trimtab.api import parse_job
from trimtab.episodes import Episode, Reward, TrainBatch, single_turn

JOB = """
apiVersion: trimtab.dev/v1alpha1
kind: RLTrainingJob
metadata: {name: flow}
spec:
  model: {path: m}
  data: {train: {path: train.jsonl}, maxPromptTokens: 8}
  algorithm: {grpo: {groupSize: 2, KL}}
  training:
    {steps: 1, promptsPerStep: 2, miniBatchPrompts: MINI, maxResponseTokens: 8, maxTokensPerMicroBatch: 64}
  rewards: [{function: exact_match}]
"""


def job(kl: str = "kl: {coefficient: 0}", mini: int = 2) -> Any:
    return parse_job(YAML(typ="safe").load(JOB.replace("KL", kl).replace("MINI", str(mini))))


def episode(group: int, number: int, score: float, length: int) -> Episode:
    made = single_turn(
        episode_id=f"0/{group}/{number}",
        group_id=f"0/{group}",
        prompt_ids=np.array([1, 2], np.int32),
        response_ids=np.full(length, 3, np.int32),
        response_log_probs=np.full(length, -0.5, np.float32),
        response_versions=np.zeros(length, np.int32),
        finish_reason="stop",
    )
    return Episode(**{**vars(made), "rewards": (Reward("exact_match", score),)})


EPISODES = [episode(0, 0, 1.0, 2), episode(0, 1, 0.0, 1), episode(1, 0, 1.0, 3), episode(1, 1, 1.0, 1)]


class Context:
    temperature = 0.7

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.batch: TrainBatch | None = None
        self.meta: dict[str, Any] = {}

    async def take(self, num_groups: int, *, max_staleness: int) -> list[Episode]:
        self.calls.append(f"take {num_groups}")
        return EPISODES

    async def log_probs(self, batch: TrainBatch, *, model: str) -> np.ndarray:
        self.calls.append(f"log_probs {model}")
        # log-ratio policy - reference is 0.1 on every token
        return np.where(batch.loss_mask, -0.5 if model == "policy" else -0.6, 0.0).astype(np.float32)

    async def update(
        self, batch: TrainBatch, meta: dict[str, Any], *, metrics: dict[str, float]
    ) -> dict[str, float]:
        self.calls.append("update")
        self.batch, self.meta = batch, meta
        return {**metrics, "actor/kl_loss": 0.25, "kl/actual": 0.125}

    async def publish(self) -> None:
        self.calls.append("publish")


def run(spec: Any) -> tuple[Context, dict[str, float]]:
    context = Context()
    return context, asyncio.run(grpo_step(spec, context, kl_controller(spec)))


def test_one_update_without_kl_needs_no_extra_forward():
    context, metrics = run(job())
    assert context.calls == ["take 2", "update", "publish"]
    assert context.batch is not None
    assert context.batch.old_log_probs is None
    assert metrics["reward/uniform_groups"] == 1.0


def test_several_updates_recompute_the_old_log_probs_once():
    context, metrics = run(job(mini=1))
    assert context.calls == ["take 2", "log_probs policy", "update", "publish"]
    assert metrics["training/num_updates"] == 2.0
    # group 0: 2 + 1 response tokens in 2 sequences; group 1: 3 + 1 in 2
    assert context.meta["denominators"] == [
        {"tokens": 3.0, "sequences": 2.0},
        {"tokens": 4.0, "sequences": 2.0},
    ]
    assert context.meta["temperature"] == 0.7


def test_rollouts_own_log_probs_are_taken_by_choice():
    context, _ = run(job("oldLogProbs: rollout, kl: {coefficient: 0}", mini=1))
    assert context.calls == ["take 2", "update", "publish"]
    assert context.batch is not None
    np.testing.assert_array_equal(context.batch.old_log_probs, context.batch.behaviour_log_probs)


def test_kl_in_the_loss_goes_to_the_actor_and_not_into_the_reward():
    context, metrics = run(job("kl: {coefficient: 0.5}"))
    assert context.calls == ["take 2", "log_probs reference", "update", "publish"]
    assert context.meta["kl_coefficient"] == 0.5
    assert metrics["critic/rewards/mean"] == metrics["critic/score/mean"] == 0.75
    assert metrics["kl/actual"] == 0.125


def test_kl_in_the_reward_is_taken_off_and_not_sent_to_the_actor():
    context, metrics = run(job("kl: {coefficient: 0.5, estimator: k1, placement: reward}"))
    assert context.calls == ["take 2", "log_probs reference", "log_probs policy", "update", "publish"]
    assert context.meta["kl_coefficient"] == 0.0
    # k1 = 0.1 a token; 0.5 * 0.1 * (2 + 1 + 3 + 1) tokens / 4 responses = 0.0875
    assert metrics["critic/rewards/mean"] == pytest.approx(0.75 - 0.0875, abs=1e-6)
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(0.1, abs=1e-6)


def test_adaptive_controller_moves_with_the_measured_kl():
    spec = job("kl: {coefficient: 0.5, controller: {adaptive: {target: 0.0625, horizon: 40}}}")
    controller = kl_controller(spec)
    asyncio.run(grpo_step(spec, Context(), controller))
    # error = clip(0.125 / 0.0625 - 1, -0.2, 0.2) = 0.2; 0.5 * (1 + 0.2 * 4 / 40) = 0.51
    assert controller.coefficient == pytest.approx(0.51)


def test_group_is_never_split_over_mini_batches():
    batch = with_mini_batches(EPISODES, prompts_per_mini_batch=1)
    assert batch.mini_batch is not None
    assert batch.mini_batch.tolist() == [0, 0, 1, 1]


def test_advantages_are_on_response_tokens_alone_and_zero_in_a_uniform_group():
    context, _ = run(job())
    assert context.batch is not None
    advantages = context.batch.advantages
    assert advantages is not None
    assert (advantages[~context.batch.loss_mask] == 0).all()
    # group 0 scores 1 and 0: (1 - 0.5) / (std 0.7071 + 1e-6) = 0.70711
    np.testing.assert_allclose(advantages[:7], [0, 0, 0.707106, 0.707106, 0, 0, -0.707106], atol=1e-5)
    assert (advantages[7:] == 0).all()
