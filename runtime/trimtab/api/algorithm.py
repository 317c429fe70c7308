"""`spec.algorithm`: exactly one algorithm with its own settings."""

from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.base import Model, OneOf


class ClipSpec(Model):
    """How far the policy's ratio may move in one update (PPO clipping)."""

    low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The ratio is clipped below at 1 - low. 0.2 as in the PPO paper."""
    high: Annotated[float, Field(gt=0, le=10)] = 0.2
    """The ratio is clipped above at 1 + high. 0.2 as in the PPO paper; DAPO raises it to 0.28."""
    dual: Annotated[float, Field(gt=1, le=100)] | None = 3.0
    """Bound on the ratio where the advantage is negative (dual clip). 3 as verl has it; None: no bound."""


class FixedController(Model):
    """The KL coefficient stays as it is."""


class AdaptiveController(Model):
    """The KL coefficient follows a target (Ziegler et al. 2019)."""

    target: Annotated[float, Field(gt=0, le=1000)] = 0.1
    """KL per token, in nats, that the controller holds. 0.1 as verl has it."""
    horizon: Annotated[int, Field(ge=1, le=100_000_000)] = 10_000
    """Episodes over which the coefficient adapts: larger is slower. 10,000 as verl has it."""


class ControllerSpec(OneOf):
    """What happens to the KL coefficient over time."""

    fixed: FixedController | None = None
    """The coefficient stays."""
    adaptive: AdaptiveController | None = None
    """The coefficient follows a target."""


class KLSpec(Model):
    """The pull towards the reference model."""

    coefficient: Annotated[float, Field(ge=0, le=100)] = 0.001
    """Weight of the KL term. 0 leaves it out, and no reference model is loaded. 0.001 as verl has it."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL per token (Schulman 2020). k3 by default: unbiased, never negative, of low
    variance. k1 only with `placement: reward`: in the loss its gradient has mean 0."""
    placement: Literal["loss", "reward"] = "loss"
    """Whether the term is added to the loss or taken off the reward. In the loss by default, as in the GRPO
    paper."""
    controller: ControllerSpec = Field(default_factory=lambda: ControllerSpec(fixed=FixedController()))
    """What happens to the coefficient over time. Fixed by default."""


class GRPOSpec(Model):
    """Group Relative Policy Optimization (Shao et al. 2024)."""

    group_size: Annotated[int, Field(ge=2, le=1024)] = 8
    """Responses per prompt, whose scores are compared with each other. 8 by default: below, the mean is
    noisy."""
    normalize_by_std: bool = True
    """Whether a group's advantages are divided by its standard deviation. On by default, as in the paper; off
    is Dr. GRPO."""
    clip: ClipSpec = Field(default_factory=ClipSpec)
    """How far the ratio may move in one update."""
    kl: KLSpec = Field(default_factory=KLSpec)
    """The pull towards the reference model."""
    entropy_coefficient: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Weight of the entropy bonus in the loss. 0 by default: none."""
    loss_aggregation: Literal[
        "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = "token-mean"
    """How token losses become one number: the mean over all tokens of a mini-batch, or the mean over
    sequences of their token sums, means, or sums over maxResponseTokens. token-mean by default: every token
    counts the same."""
    old_log_probs: Literal["auto", "recompute", "rollout"] = "auto"
    """Where the log-probs before the update come from. `recompute`: one more forward; `rollout`: those of the
    engine; `auto`: the current ones where a batch is used for one update, else recomputed."""


class AlgorithmSpec(OneOf):
    """The algorithm and its settings."""

    grpo: GRPOSpec | None = None
    """Group Relative Policy Optimization."""


REFUSED_ROLES: dict[str, tuple[str, ...]] = {"grpo": ("critic",)}
"""Roles of `spec.roles` that an algorithm has no use for, by the algorithm's name."""
