"""A resolved job of a few lines, for tests that are not about what it trains."""

from pathlib import Path
from typing import Any

from trimtab.api import ResolvedJob, parse_job


def small_job(
    folder: Path, *, attempt: int = 1, first_attempt: int | None = None, **spec: Any
) -> ResolvedJob:
    """One step of GRPO in `folder`; `spec` replaces or adds fields of the spec."""
    job = parse_job(
        {
            "apiVersion": "trimtab.dev/v1alpha1",
            "kind": "RLTrainingJob",
            "metadata": {"name": "test"},
            "spec": {
                "model": {"path": "model"},
                "data": {"train": {"path": "train.jsonl"}},
                "algorithm": {"grpo": {"groupSize": 2}},
                "training": {"steps": 1, "promptsPerStep": 4, "maxResponseTokens": 8},
                "rewards": [{"function": "exact_match"}],
                **spec,
            },
        }
    )
    return ResolvedJob.resolve(
        job, attempt=attempt, first_attempt=first_attempt, base_dir=folder, run_dir=folder / "run"
    )
