"""A job with nothing but what is required, as the file gives it."""

from collections.abc import Callable
from typing import Any

import pytest


def _merge(base: Any, changes: Any) -> Any:
    if isinstance(base, dict) and isinstance(changes, dict):
        return base | {name: _merge(base.get(name), value) for name, value in changes.items()}
    return changes


@pytest.fixture
def job_data() -> Callable[..., dict[str, Any]]:
    """Builds the smallest valid job with changes merged into its spec: `job_data(training={"steps": 2})`."""

    def build(**changes: Any) -> dict[str, Any]:
        spec: dict[str, Any] = {
            "model": {"path": "model"},
            "data": {"train": {"path": "train.jsonl"}},
            "algorithm": {"grpo": {}},
            "training": {"steps": 10},
            "rewards": [{"function": "exact_match"}],
        }
        return {
            "apiVersion": "trimtab.dev/v1alpha1",
            "kind": "RLTrainingJob",
            "metadata": {"name": "test"},
            "spec": _merge(spec, changes),
        }

    return build
