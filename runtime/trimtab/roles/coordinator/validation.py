"""Validation: one response to each held-out prompt, with settings and rewards of its own.

Runs on the coordinator's loop between two steps. The prompts are not leased: the same ones are asked
every time, in the same order, so that two measurements differ by the policy alone.
"""

import time
from dataclasses import dataclass

import numpy as np

from trimtab.data import PromptDataset
from trimtab.episodes import Episode, Sample
from trimtab.roles.coordinator.source import Generator, RequestSettings
from trimtab.roles.coordinator.step_metrics import reward_means


@dataclass(frozen=True)
class ValidationResult:
    """Metrics under val/, and the episodes with their samples for people to read."""

    metrics: dict[str, float]
    episodes: list[tuple[Sample, Episode]]


async def validate(
    dataset: PromptDataset, generator: Generator, *, settings: RequestSettings, max_samples: int | None
) -> ValidationResult:
    """Measure the policy that the rollouts serve. Raises UserError where too many rewards failed."""
    started = time.monotonic()
    count = len(dataset) if max_samples is None else min(max_samples, len(dataset))
    samples = []
    for index in range(count):
        row = dataset[index]
        samples.append(Sample(-1, index, row.prompt_ids, row.prompt_text, row.fields))
    groups, taken = await generator.run(samples, per_prompt=1, settings=settings, which="validation")
    pairs = [(sample, group[0]) for sample, group in zip(samples, groups, strict=True) if group]
    episodes = [episode for _, episode in pairs]
    metrics = {
        "val/num_samples": float(count),
        "val/failed": float(taken.tally.failed),
        "timing_s/testing": time.monotonic() - started,
    }
    if episodes:
        metrics["val/score/mean"] = float(np.mean([e.score for e in episodes]))
        metrics["val/response_length/mean"] = float(np.mean([e.num_response_tokens for e in episodes]))
        metrics["val/response_length/clip_ratio"] = float(
            np.mean([e.finish_reason == "length" for e in episodes])
        )
        metrics.update(reward_means(episodes, "val/reward"))
    return ValidationResult(metrics, pairs)
