"""Numbers about a batch of episodes, under the names of `trimtab.observability.registry`. Pure."""

from collections.abc import Sequence

import numpy as np

from trimtab.episodes import Episode
from trimtab.roles.coordinator.dispatch import Counts
from trimtab.roles.coordinator.source import Taken


def _spread(prefix: str, values: Sequence[float]) -> dict[str, float]:
    array = np.asarray(values, np.float64)
    return {
        f"{prefix}/mean": float(array.mean()),
        f"{prefix}/max": float(array.max()),
        f"{prefix}/min": float(array.min()),
    }


def reward_means(episodes: Sequence[Episode], prefix: str) -> dict[str, float]:
    """Mean of each reward by name, before its weight."""
    by_name: dict[str, list[float]] = {}
    for episode in episodes:
        for reward in episode.rewards:
            by_name.setdefault(reward.name, []).append(reward.value)
    return {f"{prefix}/{name}/mean": float(np.mean(values)) for name, values in by_name.items()}


def rollout_metrics(counts: Counts, num_ready: int) -> dict[str, float]:
    """How the requests since the last step went, and how many replicas are there."""
    return {
        "rollout/success": 1.0 - counts.retried / max(1, counts.submitted),
        "rollout/out_of_memory": float(counts.out_of_memory),
        "rollout/retried": float(counts.retried),
        "rollout/replicas_ready": float(num_ready),
    }


def episode_metrics(taken: Taken, *, max_prompt_tokens: int, weight_version: int) -> dict[str, float]:
    """Lengths, rewards by name, and how generation and scoring went."""
    episodes = taken.episodes
    responses = [e.num_response_tokens for e in episodes]
    prompts = [e.num_tokens - e.num_response_tokens for e in episodes]
    groups = {e.group_id for e in episodes}
    versions = np.concatenate([e.weight_versions[e.loss_mask] for e in episodes])
    metrics = {
        **_spread("response_length", responses),
        "response_length/clip_ratio": float(np.mean([e.finish_reason == "length" for e in episodes])),
        **_spread("prompt_length", prompts),
        "prompt_length/clip_ratio": float(np.mean([p >= max_prompt_tokens for p in prompts])),
        **reward_means(episodes, "reward"),
        "reward/failed": float(taken.tally.failed),
        **{f"reward/failed/{kind}": float(count) for kind, count in taken.tally.by_kind.items()},
        "reward/failed_share": taken.tally.failed / max(1, taken.tally.total),
        "reward/dropped_groups": float(len(taken.samples) - len(groups)),
        "training/num_responses": float(len(episodes)),
        "training/num_groups": float(len(groups)),
        "training/staleness": float(weight_version - versions.mean()),
        "perf/total_num_tokens": float(sum(e.num_tokens for e in episodes)),
    }
    if taken.latencies_s:
        metrics["rollout/latency_ms"] = 1000.0 * float(np.mean(taken.latencies_s))
        metrics["rollout/latency_max_ms"] = 1000.0 * max(taken.latencies_s)
        metrics["rollout/throughput"] = sum(responses) / max(taken.generation_s, 1e-9)
    return metrics


def timing_metrics(
    timings: dict[str, float], *, step_s: float, num_tokens: float, num_ranks: int
) -> dict[str, float]:
    """The step's phases, what coordination took beside them, and throughput per GPU (per rank on CPUs)."""
    phases = sum(timings.values())
    return {
        **timings,
        "timing_s/step": step_s,
        "timing_s/coordination": max(0.0, step_s - phases),
        "perf/time_per_step": step_s,
        "perf/throughput": num_tokens / max(step_s, 1e-9) / max(1, num_ranks),
    }
