"""Responses that are kept to read: samples.jsonl. Called by the coordinator after a step and a validation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from trimtab.episodes import Episode, Sample
from trimtab.observability.writer import MetricsWriter

SampleKind = Literal["train", "unscored", "validation"]
"""`unscored`: of training too, and its scoring failed."""


def write_samples(
    writer: MetricsWriter,
    step: int,
    episodes: Sequence[Episode],
    samples: Mapping[str, Sample],
    *,
    kind: SampleKind,
    decode: Callable[[Sequence[int]], str],
) -> None:
    """Write each episode as text, with its prompt and its scores."""
    for episode in episodes:
        writer.sample(
            step,
            prompt=samples[episode.group_id].prompt_text,
            response=decode(episode.token_ids[episode.loss_mask].tolist()),
            score=None if kind == "unscored" else episode.score,
            finish_reason=episode.finish_reason,
            rewards={reward.name: reward.value for reward in episode.rewards},
            kind="validation" if kind == "validation" else "train",
        )
