"""KL to the reference: estimators, the penalty in the reward, and the controllers of its coefficient.

Imports numpy alone. `kl_penalty` also takes torch tensors, so that the loss and the reward share one formula.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args, overload

import numpy as np
from numpy.typing import NDArray

from trimtab.algorithms.masked import Float64s, Floats, Mask, mean_by_sequence

if TYPE_CHECKING:
    from torch import Tensor

KLEstimator = Literal[
    "k1", "k2", "k3", "kl", "abs", "mse", "low_var_kl",
    "k1+", "k2+", "k3+", "kl+", "abs+", "mse+", "low_var_kl+",
]  # fmt: skip
"""`kl`, `mse` and `low_var_kl` are verl's names of k1, k2 and k3. A trailing `+` keeps the value and takes
the gradient of k2, the unbiased one of the KL itself."""

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to this before an exp, so that one stray token cannot overflow."""
K3_LIMIT = 10.0
"""k3's value is clamped to this; beyond it (log-ratio about 2.61) its gradient is 0."""


@overload
def kl_penalty(log_probs: Floats, reference_log_probs: Floats, estimator: KLEstimator) -> Float64s: ...
@overload
def kl_penalty(log_probs: "Tensor", reference_log_probs: "Tensor", estimator: KLEstimator) -> "Tensor": ...
def kl_penalty(log_probs: Any, reference_log_probs: Any, estimator: KLEstimator) -> Any:
    """Estimate KL(policy || reference) per token, elementwise and unmasked, in nats.

    With d = log_prob - reference_log_prob (J. Schulman, "Approximating KL divergence", 2020):
    k1: d; k2: d^2 / 2; k3: exp(-d) - 1 + d, with -d clamped to +-20 and the result to +-10; abs: |d|.
    numpy in gives float64; tensors keep their dtype and are differentiable.
    """
    if estimator not in get_args(KLEstimator):
        raise ValueError(f"unknown KL estimator {estimator!r}; one of {', '.join(get_args(KLEstimator))}")
    if isinstance(log_probs, np.ndarray):
        difference = log_probs.astype(np.float64) - reference_log_probs.astype(np.float64)
        return _estimate(difference, estimator.removesuffix("+"))
    tensor = cast("Tensor", log_probs - reference_log_probs)
    value = cast("Tensor", _estimate(tensor, estimator.removesuffix("+")))
    if estimator.endswith("+"):
        surrogate = tensor.square() / 2
        return value.detach() + surrogate - surrogate.detach()
    return value


def _estimate(difference: Any, estimator: str) -> Any:
    match estimator:
        case "k1" | "kl":
            return difference
        case "abs":
            return abs(difference)
        case "k2" | "mse":
            return difference * difference / 2
    negative = (-difference).clip(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    # Not exp(x) - 1: in float32 that leaves no digits of a log-ratio of 1e-3, which is a typical one.
    growth = np.expm1(negative) if isinstance(negative, np.ndarray) else negative.expm1()
    return (growth - negative).clip(-K3_LIMIT, K3_LIMIT)


@dataclass(frozen=True)
class PenalisedRewards:
    """What `kl_in_reward` gives."""

    token_rewards: Float64s
    """[N]; sum over a sequence for its score."""
    current_kl: float
    """Mean over sequences of each one's mean over its tokens: what the controller is updated with."""


def kl_in_reward(
    token_scores: Floats,
    log_probs: Floats,
    reference_log_probs: Floats,
    mask: Mask,
    offsets: NDArray[np.int64],
    *,
    estimator: KLEstimator,
    coefficient: float,
) -> PenalisedRewards:
    """Subtract coefficient * KL from every response token's reward; arrays [N], `offsets` [S + 1].

    `log_probs` are the old ones (the policy that the update starts from). A sequence without a masked token
    counts as KL 0 in the mean. Update the controller afterwards with (current_kl, S).
    """
    penalty = np.where(mask, kl_penalty(log_probs, reference_log_probs, estimator), 0.0)
    by_sequence = mean_by_sequence(penalty, mask, offsets)
    return PenalisedRewards(
        token_rewards=token_scores.astype(np.float64) - coefficient * penalty,
        current_kl=float(by_sequence.mean()) if by_sequence.size else 0.0,
    )


class KLController(Protocol):
    """Holds the KL coefficient of the coming step; lives on the coordinator and in its checkpoint."""

    @property
    def coefficient(self) -> float:
        """What the coming step multiplies the KL with."""

    def update(self, current_kl: float, num_sequences: int) -> None:
        """Take note of a finished step, once per step."""

    def state(self) -> dict[str, Any]:
        """JSON for the checkpoint."""

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state()`; refuses the state of another kind of controller."""


class FixedKLController:
    """A coefficient that never changes."""

    def __init__(self, coefficient: float) -> None:
        self._coefficient = coefficient

    @property
    def coefficient(self) -> float:
        """The constant."""
        return self._coefficient

    def update(self, current_kl: float, num_sequences: int) -> None:
        """Do nothing: the coefficient is fixed."""

    def state(self) -> dict[str, Any]:
        """JSON for the checkpoint."""
        return {"controller": "fixed"}

    def load(self, state: dict[str, Any]) -> None:
        """Check the kind; the coefficient is the job's."""
        _check_kind(state, "fixed")


class AdaptiveKLController:
    """Steers the KL towards a target (Ziegler et al., arXiv 1909.08593, section 2.2).

    e = clip(current_kl / target - 1, -0.2, 0.2); coefficient *= 1 + e * num_sequences / horizon. Kept at 0 or
    above: the references turn negative, and so reward distance, once a batch exceeds five horizons.
    """

    MAX_ERROR = 0.2

    def __init__(self, coefficient: float, *, target: float, horizon: float) -> None:
        self._coefficient = coefficient
        self._target = target
        self._horizon = horizon

    @property
    def coefficient(self) -> float:
        """The current value."""
        return self._coefficient

    def update(self, current_kl: float, num_sequences: int) -> None:
        """Raise the coefficient above the target, lower it below."""
        if not np.isfinite(current_kl):
            raise ValueError(f"the KL to the reference is {current_kl}: log-probs are not finite")
        error = min(max(current_kl / self._target - 1.0, -self.MAX_ERROR), self.MAX_ERROR)
        self._coefficient = max(0.0, self._coefficient * (1.0 + error * num_sequences / self._horizon))

    def state(self) -> dict[str, Any]:
        """JSON for the checkpoint."""
        return {"controller": "adaptive", "coefficient": self._coefficient}

    def load(self, state: dict[str, Any]) -> None:
        """Continue with the saved coefficient; target and horizon are the job's."""
        _check_kind(state, "adaptive")
        self._coefficient = float(state["coefficient"])


def _check_kind(state: dict[str, Any], expected: str) -> None:
    found = state.get("controller")
    if found != expected:
        raise ValueError(f"the checkpoint is of a KL controller {found!r}, the job's is {expected!r}")
