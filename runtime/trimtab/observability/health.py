"""Health rules: what in a job's metrics deserves a warning, and what to try.

Called by the coordinator after each step with that step's metrics. Pure: no clock, no I/O, no thread; the
state is JSON and goes into the checkpoint, so that a resumed job neither forgets its baseline nor repeats a
warning. `RULES` is the source of the table in docs/troubleshooting.md.

A rule warns once in the life of a job, when its metric has been beyond the limit for `patience` reported
steps in a row. A step that does not report the metric leaves the rule as it is.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from trimtab.api.operations import HealthSpec
from trimtab.observability.warning import HealthWarning

NUM_BASELINE_STEPS = 5
"""Steps whose mean is "at the start" for rules that compare with it."""
SATURATED_SHARE = 0.9
"""A mean score above this share of the best single score means: the task is nearly solved."""
COLLAPSED_SHARE = 0.1
"""Entropy below this share of what it was at the start has collapsed, whatever its absolute value."""
FAR_ABOVE_TARGET = 4.0
"""KL beyond this multiple of the adaptive controller's target: the controller has lost it."""
GROWN = 4.0
"""A log-prob difference beyond this multiple of the one at the start is growing..."""
WORTH_A_LOOK = 0.2
"""...if it is above this share of its limit."""
SCORE = "critic/score/mean"
BEST_SCORE = "critic/score/max"


@dataclass(frozen=True)
class Observation:
    """What a rule judges: its metric now, the rest of the step, and what came before."""

    value: float
    metrics: Mapping[str, float]
    limits: HealthSpec
    baseline: float | None
    """The metric's mean over the first steps; None until they are complete."""
    recent: tuple[float, ...]
    """Up to `flat_reward_steps` last values, this one included."""
    best_score: float | None
    """The largest single score so far."""

    @property
    def solved(self) -> bool:
        """Nearly every response gets the best score seen: falling entropy and a flat reward are right."""
        score = self.metrics.get(SCORE)
        if score is None or self.best_score is None or self.best_score <= 0:
            return False
        return score >= SATURATED_SHARE * self.best_score


@dataclass(frozen=True)
class Rule:
    """One health rule."""

    name: str
    metric: str
    condition: str
    """When it fires, for the documentation."""
    advice: str
    judge: Callable[[Observation], str | None]
    """The message where the observation is beyond the limit, else None."""
    patience: int = 1
    """Reported steps in a row beyond the limit before the rule fires."""
    has_baseline: bool = False
    has_window: bool = False


def _entropy(seen: Observation) -> str | None:
    limit = seen.limits.min_entropy
    if limit is None or seen.solved:
        return None
    if seen.baseline and seen.value < COLLAPSED_SHARE * seen.baseline:
        share = seen.value / seen.baseline
        return f"entropy fell to {seen.value:.3g} nats, {share:.0%} of {seen.baseline:.3g} at the start."
    return f"entropy is {seen.value:.3g} nats, limit {limit:g}." if seen.value < limit else None


def _latency(seen: Observation) -> str | None:
    limit = seen.limits.max_latency_seconds
    if limit is None or seen.value <= 1000 * limit:
        return None
    return f"a response takes {seen.value / 1000:.3g} s on average, limit {limit:g} s."


def _kl(seen: Observation) -> str | None:
    limit, target = seen.limits.max_kl, seen.metrics.get("kl/target")
    if limit is None:
        return None
    what = f"KL to the reference is {seen.value:.3g} nats per token"
    if target and seen.value > FAR_ABOVE_TARGET * target:
        return f"{what}, {seen.value / target:.1f} times its target {target:g}."
    return f"{what}, limit {limit:g}." if seen.value > limit else None


def _flat_reward(seen: Observation) -> str | None:
    window = seen.limits.flat_reward_steps
    if window is None or len(seen.recent) < window or seen.solved:
        return None
    half = window // 2
    before, after = fmean(seen.recent[:half]), fmean(seen.recent[-half:])
    if after - before >= seen.limits.min_reward_change:
        return None
    return f"the mean score has not risen in {window} steps ({before:.3g}, then {after:.3g})."


def _logprob_diff(seen: Observation) -> str | None:
    limit = seen.limits.max_log_prob_difference
    if limit is None:
        return None
    what = f"log-probs of rollout and trainer differ by {seen.value:.3g} nats on average"
    if seen.baseline and seen.value > max(GROWN * seen.baseline, WORTH_A_LOOK * limit):
        return f"{what}, {seen.value / seen.baseline:.1f} times the {seen.baseline:.3g} at the start."
    return f"{what}, limit {limit:g}." if seen.value > limit else None


def _clip_ratio(seen: Observation) -> str | None:
    limit = seen.limits.max_truncated_share
    if limit is None or seen.value <= limit:
        return None
    return f"{seen.value:.0%} of the responses are cut off at the longest length, limit {limit:.0%}."


def _failed_rewards(seen: Observation) -> str | None:
    if seen.value <= 0:
        return None
    return f"{_count(seen.value, 'response')} could not be scored."


def _skipped_updates(seen: Observation) -> str | None:
    if seen.value <= 0:
        return None
    return f"{_count(seen.value, 'optimiser update')} left out: the gradient was not finite."


def _out_of_memory(seen: Observation) -> str | None:
    if seen.value <= 0:
        return None
    return f"{_count(seen.value, 'generation request')} failed for want of memory."


def _count(number: float, noun: str) -> str:
    return f"{number:.0f} {noun}{'' if number == 1 else 's'}"


RULES: tuple[Rule, ...] = (
    Rule(
        "entropy-collapse",
        "actor/entropy",
        "Entropy below `minEntropy`, or below a tenth of its mean over the first 5 steps, 3 steps in a row, "
        "while the task is not yet solved.",
        "The policy stops exploring: try an `entropyCoefficient` above 0, a higher `clip.high`, a lower "
        "`learningRate`, or a larger KL coefficient.",
        _entropy,
        patience=3,
        has_baseline=True,
    ),
    Rule(
        "rollout-latency",
        "rollout/latency_ms",
        "Mean time of a response above `maxLatencySeconds`, 3 steps in a row.",
        "Try more rollout replicas, fewer `maxConcurrentRequests` (preempted requests start again), a larger "
        "KV cache, or a smaller `maxResponseTokens`.",
        _latency,
        patience=3,
    ),
    Rule(
        "kl-above-target",
        "kl/actual",
        "KL to the reference above `maxKl`, or 4 times the adaptive controller's target, 3 steps in a row.",
        "The policy leaves the reference: try a larger `kl.coefficient`, a lower `learningRate`, or fewer "
        "`updateEpochs`; read some samples for a reward that is being gamed.",
        _kl,
        patience=3,
    ),
    Rule(
        "reward-flat",
        SCORE,
        "Mean score of the later half of the last `flatRewardSteps` steps not above the earlier half by "
        "`minRewardChange`, while the task is not yet solved.",
        "Look at samples and `reward/uniform_groups`: where all responses of a group score the same there is "
        "nothing to learn. Try easier prompts, a larger `groupSize`, a graded reward, or a higher "
        "`learningRate`.",
        _flat_reward,
        has_window=True,
    ),
    Rule(
        "logprob-difference",
        "rollout/logprob_diff_mean",
        "Mean log-prob difference of rollout and trainer above `maxLogProbDifference`, or 4 times that of "
        "the first 5 steps and above a fifth of `maxLogProbDifference`, 3 steps in a row.",
        "Off-policy noise: let the rollout's `dtype` equal `precision.compute`, check sampling for `topP`, "
        "`topK` or `minP` that reshape the distribution, or set `oldLogProbs: rollout`.",
        _logprob_diff,
        patience=3,
        has_baseline=True,
    ),
    Rule(
        "responses-cut-off",
        "response_length/clip_ratio",
        "Share of responses cut off at `maxResponseTokens` above `maxTruncatedShare`, 3 steps in a row.",
        "Cut responses rarely earn a reward: raise `maxResponseTokens`, check that chat template and stop "
        "tokens let the model end, or reward brevity.",
        _clip_ratio,
        patience=3,
    ),
    Rule(
        "rewards-failing",
        "reward/failed",
        "Any response whose scoring raised, hung or gave no finite number.",
        "The reward log names the function and the error; those samples are dropped, and above "
        "`failurePolicy.maxFailedRewardShare` the job fails.",
        _failed_rewards,
    ),
    Rule(
        "updates-skipped",
        "actor/skipped_updates",
        "Any optimiser update that was left out because its gradient was not finite.",
        "Once in a while is harmless. If it recurs: lower `learningRate` or `gradientClip`, or try "
        "`precision.compute: float32`.",
        _skipped_updates,
    ),
    Rule(
        "rollout-out-of-memory",
        "rollout/out_of_memory",
        "Any generation request that failed for want of memory.",
        "Lower `maxConcurrentRequests` or `gpuMemoryUtilization`, or raise `tensorParallelSize`.",
        _out_of_memory,
    ),
)

NON_FINITE = "non-finite"
NON_FINITE_CONDITION = "Any metric that is NaN or infinite; once for each metric."
NON_FINITE_ADVICE = (
    "The files hold null in its place. For `actor/grad_norm` or a loss: lower `learningRate`, check "
    "`gradientClip`, and try `precision.compute: float32`; the checkpoint before is the last good one."
)


def non_finite_warnings(step: int, metrics: Mapping[str, float]) -> list[HealthWarning]:
    """A warning for each metric of the step that is NaN or infinite."""
    return [
        HealthWarning(NON_FINITE, step, name, None, f"`{name}` is {value}.", NON_FINITE_ADVICE)
        for name, value in metrics.items()
        if not math.isfinite(value)
    ]


class HealthMonitor:
    """Applies the rules step by step and remembers what it needs for that."""

    def __init__(self, limits: HealthSpec) -> None:
        self._limits = limits
        self._warned: set[tuple[str, str]] = set()
        self._streaks: dict[str, int] = {}
        self._starts: dict[str, list[float]] = {}
        self._recent: dict[str, list[float]] = {}
        self._best_score: float | None = None

    def check(self, step: int, metrics: Mapping[str, float]) -> list[HealthWarning]:
        """The warnings that this step's metrics give rise to, each for the first time."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        if BEST_SCORE in finite:
            best = finite[BEST_SCORE]
            self._best_score = best if self._best_score is None else max(best, self._best_score)
        found = non_finite_warnings(step, metrics)
        for rule in RULES:
            if rule.metric in finite:
                message = self._apply(rule, finite)
                if message is not None:
                    found.append(
                        HealthWarning(rule.name, step, rule.metric, finite[rule.metric], message, rule.advice)
                    )
        fresh = [warning for warning in found if (warning.rule, warning.metric) not in self._warned]
        self._warned.update((warning.rule, warning.metric) for warning in fresh)
        return fresh

    def state(self) -> dict[str, Any]:
        """What a resumed job needs, as JSON values."""
        return {
            "warned": sorted(list(pair) for pair in self._warned),
            "streaks": dict(self._streaks),
            "starts": {name: list(values) for name, values in self._starts.items()},
            "recent": {name: list(values) for name, values in self._recent.items()},
            "best_score": self._best_score,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self._warned = {(rule, metric) for rule, metric in state["warned"]}
        self._streaks = dict(state["streaks"])
        self._starts = {name: list(values) for name, values in state["starts"].items()}
        self._recent = {name: list(values) for name, values in state["recent"].items()}
        self._best_score = state["best_score"]

    def _apply(self, rule: Rule, metrics: Mapping[str, float]) -> str | None:
        value = metrics[rule.metric]
        message = rule.judge(self._observe(rule, value, metrics))
        streak = 0 if message is None else self._streaks.get(rule.name, 0) + 1
        self._streaks[rule.name] = streak
        return message if streak >= rule.patience else None

    def _observe(self, rule: Rule, value: float, metrics: Mapping[str, float]) -> Observation:
        start = self._starts.setdefault(rule.metric, []) if rule.has_baseline else []
        baseline = fmean(start) if len(start) >= NUM_BASELINE_STEPS else None
        if rule.has_baseline and baseline is None:
            start.append(value)
        recent = self._recent.setdefault(rule.metric, []) if rule.has_window else []
        if rule.has_window:
            recent.append(value)
            del recent[: -(self._limits.flat_reward_steps or 1)]
        return Observation(value, metrics, self._limits, baseline, tuple(recent), self._best_score)
