"""A job of a few lines for tests that are not about what it trains."""

from pathlib import Path
from typing import Any, Protocol

import pytest

from trimtab.api import ResolvedJob, parse_job


class Resolve(Protocol):
    """`resolve(folder, checkpoint={"resume": "never"}, attempt=2)`."""

    def __call__(
        self, folder: Path, *, attempt: int = 1, first_attempt: int | None = None, **spec: Any
    ) -> ResolvedJob: ...


@pytest.fixture
def resolve() -> Resolve:
    def make(folder: Path, *, attempt: int = 1, first_attempt: int | None = None, **spec: Any) -> ResolvedJob:
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

    return make
