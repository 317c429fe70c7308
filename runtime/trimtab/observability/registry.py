"""Every metric a job reports: name, unit and meaning, in one place.

Used by the writers of metrics (for units and HELP texts), the report (for captions) and
`scripts/generate_metrics_page.py` (for docs/metrics.md). Pure data; no thread, no I/O.

Names follow verl's wherever verl reports the same thing, so that dashboards and habits carry over.
A name in the registry may hold `{placeholders}` for what a job itself names, such as a reward.
"""

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Metric:
    """One metric, or a family of them where the name holds `{placeholders}`."""

    name: str
    unit: str
    """Shown after a value; empty for a pure number."""
    description: str
    from_verl: bool = False
    """verl reports the same quantity under this name."""


@dataclass(frozen=True)
class Section:
    """Metrics that are read together; one heading of docs/metrics.md."""

    title: str
    intro: str
    metrics: tuple[Metric, ...]


def _verl(name: str, unit: str, description: str) -> Metric:
    return Metric(name, unit, description, from_verl=True)


def _spread(prefix: str, unit: str, what: str) -> tuple[Metric, ...]:
    return (
        _verl(f"{prefix}/mean", unit, f"Mean {what}."),
        _verl(f"{prefix}/max", unit, f"Largest {what}."),
        _verl(f"{prefix}/min", unit, f"Smallest {what}."),
    )


SECTIONS: tuple[Section, ...] = (
    Section(
        "Progress",
        "Where the job is.",
        (
            _verl("training/global_step", "steps", "Optimiser batches completed, this one included."),
            _verl("training/epoch", "epochs", "Passes over the training data, as a fraction."),
            Metric("training/num_responses", "responses", "Responses that this step trained on."),
            Metric("training/num_groups", "groups", "Groups (prompts) that this step trained on."),
            Metric("training/num_updates", "updates", "Optimiser updates taken in this step."),
            Metric("health/warnings", "warnings", "Warnings of the health rules so far."),
            Metric("training/staleness", "versions", "Mean age of the weights that wrote the tokens."),
        ),
    ),
    Section(
        "Policy",
        "What the update of the policy did. Values are means over the step's response tokens, as "
        "`lossAggregation` weighs them, unless said otherwise.",
        (
            Metric("actor/loss", "", "The whole loss: policy gradient, KL and entropy terms."),
            _verl("actor/pg_loss", "", "Policy-gradient loss after clipping."),
            _verl("actor/entropy", "nats", "Entropy of the policy's next-token distribution."),
            _verl("actor/ppo_kl", "nats", "Estimated KL from the sampling policy to the current one."),
            _verl("actor/pg_clipfrac", "share", "Tokens whose ratio was clipped."),
            _verl("actor/pg_clipfrac_lower", "share", "Tokens caught by the dual clip (negative advantage)."),
            _verl("actor/kl_loss", "nats", "KL to the reference in the loss, before its coefficient."),
            _verl("actor/reward_kl_penalty", "nats", "Mean KL to the reference taken off the rewards."),
            _verl("actor/reward_kl_penalty_coeff", "", "Coefficient of the KL penalty in the rewards."),
            _verl("actor/grad_norm", "", "Norm of the gradient before clipping (mean over updates)."),
            Metric("actor/skipped_updates", "updates", "Updates left out: gradient not finite."),
            _verl("actor/lr", "", "Learning rate of the last update."),
        ),
    ),
    Section(
        "KL control",
        "How far the policy is from the reference, whichever placement the job chose.",
        (
            Metric("kl/actual", "nats", "Mean KL to the reference per response token."),
            Metric("kl/coefficient", "", "Coefficient in force; moves under the adaptive controller."),
            Metric("kl/target", "nats", "Target of the adaptive controller."),
        ),
    ),
    Section(
        "Rewards and advantages",
        "`score` is what the reward functions gave, `rewards` what is left after a KL penalty in the reward. "
        "(verl files both under `critic/`, with or without a critic.)",
        (
            *_spread("critic/score", "", "score of a response"),
            *_spread("critic/rewards", "", "reward of a response"),
            *_spread("critic/advantages", "", "advantage of a token"),
            Metric("reward/{name}/mean", "", "Mean of one reward function, before its weight."),
            Metric("reward/failed", "responses", "Responses whose scoring raised, hung or was not finite."),
            Metric(
                "reward/failed/{kind}",
                "responses",
                "The same by kind: raised, timeout, not_finite, died, empty.",
            ),
            Metric("reward/failed_share", "share", "The same as a share of the step's responses."),
            Metric("reward/dropped_groups", "groups", "Groups left out: too few responses with a score."),
            Metric("reward/uniform_groups", "groups", "Groups of one score throughout; they teach nothing."),
        ),
    ),
    Section(
        "Lengths",
        "In tokens. An ended response counts its end-of-sequence token.",
        (
            *_spread("response_length", "tokens", "response length"),
            _verl("response_length/clip_ratio", "share", "Responses cut off at `maxResponseTokens`."),
            *_spread("prompt_length", "tokens", "prompt length"),
            _verl("prompt_length/clip_ratio", "share", "Prompts exactly as long as `maxPromptTokens`."),
        ),
    ),
    Section(
        "Rollout",
        "How generation went.",
        (
            Metric("rollout/latency_ms", "ms", "Mean time from request to finished response."),
            Metric("rollout/latency_max_ms", "ms", "The slowest response of the step."),
            Metric(
                "rollout/throughput",
                "tokens/s",
                "Response tokens per second, all replicas together.",
            ),
            Metric("rollout/success", "share", "Requests that yielded a response at the first attempt."),
            Metric("rollout/out_of_memory", "requests", "Requests that failed for want of memory."),
            Metric("rollout/retried", "requests", "Requests given to another replica after a failure."),
            Metric("rollout/replicas_ready", "replicas", "Rollout replicas that served this step."),
            Metric(
                "rollout/logprob_diff_mean",
                "nats",
                "Mean absolute difference between rollout's and trainer's log-probs of the same tokens.",
            ),
        ),
    ),
    Section(
        "Weights",
        "Publishing the policy to the rollout engines.",
        (
            Metric("weights/version", "", "Version that the engines serve after this step."),
            Metric("weights/sync_s", "s", "Time of the publication, pausing and resuming included."),
            Metric("weights/bytes_per_s", "bytes/s", "Bytes published over the time of the publication."),
        ),
    ),
    Section(
        "Time",
        "Seconds of the step by phase. Generation and scoring overlap: `timing_s/reward` is what is left.",
        (
            _verl("timing_s/step", "s", "The whole step."),
            _verl("timing_s/gen", "s", "Generation, until the last response."),
            _verl("timing_s/reward", "s", "Waiting for scores after the last response."),
            _verl("timing_s/old_log_prob", "s", "Recomputing the log-probs of the sampled tokens."),
            _verl("timing_s/ref", "s", "Log-probs under the reference."),
            _verl("timing_s/update_actor", "s", "Forward, backward and optimiser."),
            _verl("timing_s/update_weights", "s", "Publishing the weights."),
            Metric(
                "timing_s/coordination", "s", "What is left: advantages, the coordinator and its messages."
            ),
            _verl("timing_s/testing", "s", "Validation; not part of the step."),
            _verl("timing_s/save_checkpoint", "s", "Writing a checkpoint; not part of the step."),
        ),
    ),
    Section(
        "Speed and memory",
        "",
        (
            _verl(
                "perf/throughput",
                "tokens/s",
                "Tokens of the step over its time, per GPU (per rank on CPUs).",
            ),
            _verl("perf/total_num_tokens", "tokens", "Tokens of the step, prompts included."),
            _verl("perf/time_per_step", "s", "The same as `timing_s/step`."),
            Metric("perf/update_tokens", "tokens", "Tokens that the update went through."),
            Metric(
                "perf/update_tokens_per_s",
                "tokens/s",
                "The same per second, all ranks together.",
            ),
            Metric("perf/update_micro_batches", "", "Forward and backward passes on each rank."),
            Metric("perf/max_memory_gb", "GB", "Peak memory of the update (on CPUs: resident)."),
        ),
    ),
    Section(
        "Validation",
        "Every `validation.everySteps` steps, on the validation data and its own sampling settings.",
        (
            Metric("val/score/mean", "", "Mean score; the share of right answers where the score is 0 or 1."),
            Metric("val/reward/{name}/mean", "", "Mean of one reward function, before its weight."),
            Metric("val/response_length/mean", "tokens", "Mean response length."),
            Metric("val/response_length/clip_ratio", "share", "Responses cut off at the longest length."),
            Metric("val/num_samples", "prompts", "Prompts evaluated."),
            Metric("val/failed", "responses", "Responses that could not be generated or scored."),
        ),
    ),
    Section(
        "Workers",
        "At the Prometheus endpoint of each process alone, beside `process_resident_memory_bytes`, "
        "`process_cpu_seconds_total` and the like.",
        (
            Metric("worker/running", "items", "Work items in progress in the process."),
            Metric("worker/scored", "responses", "Responses scored since the process began (reward)."),
            Metric("worker/failed", "responses", "Those of them that got an error and no score (reward)."),
            Metric("worker/replaced", "processes", "Reward worker processes that died and were replaced."),
        ),
    ),
)

TIMING_PHASES: tuple[str, ...] = (
    "timing_s/gen",
    "timing_s/reward",
    "timing_s/old_log_prob",
    "timing_s/ref",
    "timing_s/update_actor",
    "timing_s/update_weights",
    "timing_s/coordination",
)
"""Phases that add up to `timing_s/step`."""


def all_metrics() -> tuple[Metric, ...]:
    """Every entry, in the order of the page."""
    return tuple(metric for section in SECTIONS for metric in section.metrics)


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], Metric], ...]:
    return tuple(
        (re.compile(re.sub(r"\\{\w+\\}", ".+", re.escape(metric.name))), metric) for metric in all_metrics()
    )


def lookup(name: str) -> Metric | None:
    """The entry that a reported name falls under, or None for a name of the user's own."""
    return next((metric for pattern, metric in _patterns() if pattern.fullmatch(name)), None)


def prometheus_name(name: str) -> str:
    """The name under which Prometheus sees a metric: `actor/ppo_kl` is `trimtab_actor_ppo_kl`."""
    return "trimtab_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
