"""Policy losses: pure torch functions over flat response tokens, called once per micro-batch by the engine.

    loss, metrics = loss_fn(inputs, denominators)   # in: one micro-batch; the denominators: its mini-batch's
    loss.backward()                                 # gradients add up over micro-batches and ranks

A loss never averages over what it sees. It sums and divides by the mini-batch's `Denominators`, so that the
sum over all pieces is the mini-batch's loss, and so are its metrics and gradients. Ranks therefore SUM their
gradients. A new algorithm adds a function of this shape; the engine does not change.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, Self

import torch
from torch import Tensor

from trimtab.algorithms.aggregation import AggregationMode, aggregate, masked_values, token_mean
from trimtab.algorithms.denominators import Denominators
from trimtab.algorithms.kl import LOG_RATIO_LIMIT, KLEstimator, kl_penalty

if TYPE_CHECKING:
    from trimtab.api.algorithm import GRPOSpec

__all__ = ["Denominators", "GrpoLoss", "GrpoLossConfig", "LossFn", "PolicyLossInputs", "grpo_loss"]


@dataclass(frozen=True)
class PolicyLossInputs:
    """One micro-batch: R response tokens of whole sequences; gradients go to `log_probs` and `entropy`."""

    log_probs: Tensor  # [R], the current policy's
    old_log_probs: Tensor | None  # [R]; None: the current ones, detached (the ratio is exactly 1)
    advantages: Tensor  # [R]
    mask: Tensor  # [R], 1 where the policy wrote the token
    sequence_ids: Tensor  # [R], 0..num_sequences-1
    num_sequences: int
    reference_log_probs: Tensor | None = None  # [R]
    entropy: Tensor | None = None  # [R], in nats, at the sampling temperature
    rollout_log_probs: Tensor | None = None  # [R], as the inference engine reported them


class LossFn(Protocol):
    """What the training engine is given."""

    def __call__(
        self, inputs: PolicyLossInputs, denominators: Denominators, /
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the micro-batch's share of the loss, and of each metric (detached): both add up by sums."""


@dataclass(frozen=True)
class GrpoLossConfig:
    """Settings of `grpo_loss`; everything but the KL coefficient is fixed for a training."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    """Bound c > 1 on the loss of tokens with a negative advantage; None leaves it out."""
    aggregation: AggregationMode = "token-mean"
    scale_factor: float | None = None
    """For `seq-mean-token-sum-norm`, where the denominators bring none."""
    kl_coefficient: float = 0.0
    kl_estimator: KLEstimator = "k3"
    kl_placement: Literal["loss", "reward"] = "loss"
    entropy_coefficient: float = 0.0

    @classmethod
    def from_spec(cls, spec: "GRPOSpec", *, max_response_tokens: int) -> Self:
        """Read a job's `algorithm.grpo`; the scale factor is the longest response that the job allows."""
        return cls(
            clip_low=spec.clip.low,
            clip_high=spec.clip.high,
            dual_clip=spec.clip.dual,
            aggregation=spec.loss_aggregation,
            scale_factor=float(max_response_tokens),
            kl_coefficient=spec.kl.coefficient,
            kl_estimator=spec.kl.estimator,
            kl_placement=spec.kl.placement,
            entropy_coefficient=spec.entropy_coefficient,
        )

    def with_kl_coefficient(self, coefficient: float) -> Self:
        """The same settings with this step's coefficient, which the coordinator's controller adapts."""
        return replace(self, kl_coefficient=coefficient)


@dataclass(frozen=True)
class GrpoLoss:
    """`grpo_loss` with its settings: the `LossFn` of GRPO."""

    config: GrpoLossConfig

    def __call__(
        self, inputs: PolicyLossInputs, denominators: Denominators, /
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See `grpo_loss`."""
        return grpo_loss(inputs, denominators, self.config)


def grpo_loss(
    inputs: PolicyLossInputs, denominators: Denominators, config: GrpoLossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped policy loss + kl_coefficient * KL - entropy_coefficient * entropy (DeepSeekMath, eq. 3).

    All three terms are aggregated alike. Metrics are this micro-batch's contributions, to be summed:
    `actor/loss`, `actor/pg_loss` and `actor/kl_loss` (before its coefficient) as aggregated; `actor/ppo_kl`,
    `actor/pg_clipfrac`, `actor/pg_clipfrac_lower`, `actor/entropy` and `rollout/logprob_diff_mean` (mean of
    |current - rollout|) per token; `kl/actual` as the mean over sequences of their means, which is what a
    KL controller takes.
    """
    if denominators.scale_factor is None:
        denominators = replace(denominators, scale_factor=config.scale_factor)
    mask = inputs.mask.bool()
    log_probs = _kept(inputs.log_probs, mask)
    old_log_probs = log_probs if inputs.old_log_probs is None else _kept(inputs.old_log_probs, mask)

    def combine(values: Tensor, mode: AggregationMode) -> Tensor:
        return aggregate(values, mask, inputs.sequence_ids, inputs.num_sequences, mode, denominators)

    policy = clipped_policy_loss(
        log_probs,
        old_log_probs.detach(),
        inputs.advantages,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
    )
    loss = combine(policy.loss, config.aggregation)
    metrics = {
        "actor/pg_loss": loss,
        "actor/ppo_kl": token_mean(policy.approximate_kl, mask, denominators),
        "actor/pg_clipfrac": token_mean(policy.clipped, mask, denominators),
        "actor/pg_clipfrac_lower": token_mean(policy.clipped_lower, mask, denominators),
    }
    if inputs.reference_log_probs is not None:
        kl = kl_penalty(log_probs, _kept(inputs.reference_log_probs, mask).detach(), config.kl_estimator)
        metrics["actor/kl_loss"] = combine(kl, config.aggregation)
        metrics["kl/actual"] = combine(kl, "seq-mean-token-mean")
    if config.kl_placement == "loss" and config.kl_coefficient != 0.0:
        assert "actor/kl_loss" in metrics, "a KL term in the loss needs the reference's log-probs"
        loss = loss + config.kl_coefficient * metrics["actor/kl_loss"]
    if inputs.entropy is not None:
        entropy = _kept(inputs.entropy, mask)
        metrics["actor/entropy"] = token_mean(entropy, mask, denominators)
        if config.entropy_coefficient != 0.0:
            loss = loss - config.entropy_coefficient * combine(entropy, config.aggregation)
    if inputs.rollout_log_probs is not None:
        difference = (log_probs - _kept(inputs.rollout_log_probs, mask)).abs()
        metrics["rollout/logprob_diff_mean"] = token_mean(difference, mask, denominators)
    metrics["actor/loss"] = loss
    return loss, {name: value.detach() for name, value in metrics.items()}


@dataclass(frozen=True)
class ClippedPolicyLoss:
    """Per token, all [R]."""

    loss: Tensor
    approximate_kl: Tensor
    """old - new log-prob, after the clamp; detached."""
    clipped: Tensor
    """1 where the clipped term was the larger one."""
    clipped_lower: Tensor
    """1 where the dual clip bounded the loss."""


def clipped_policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> ClippedPolicyLoss:
    """max(-A r, -A clip(r, 1 - low, 1 + high)) per token, r = exp(log_prob - old_log_prob).

    PPO's clipped surrogate (arXiv 1707.06347, eq. 7) with a bound for each side (DAPO, arXiv 2503.14476,
    section 3.1). Where A < 0 and `dual_clip` is c, at most -A c (dual-clip PPO, arXiv 1912.09729). The
    log-ratio is clamped to +-20, beyond which the gradient is 0. Elementwise and unmasked; `clipped` also
    counts tokens that the dual clip bounds afterwards, as verl does.
    """
    log_ratio = (log_probs - old_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(unclipped, clipped)
    bounded = torch.zeros_like(advantages, dtype=torch.bool)
    if dual_clip is not None:
        bound = -advantages * dual_clip
        bounded = (advantages < 0) & (loss > bound)
        loss = torch.where(bounded, bound, loss)
    return ClippedPolicyLoss(
        loss=loss,
        approximate_kl=-log_ratio.detach(),
        clipped=(clipped > unclipped).to(loss.dtype),
        clipped_lower=bounded.to(loss.dtype),
    )


def _kept(values: Tensor, mask: Tensor) -> Tensor:
    """Masked positions as 0, in float32 or better."""
    return masked_values(values.to(torch.promote_types(values.dtype, torch.float32)), mask)
