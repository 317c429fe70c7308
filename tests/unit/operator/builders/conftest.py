"""A small valid job, changed by paths, and the platform's settings."""

import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from trimtab_operator.builders.resolve import resolve
from trimtab_operator.model.observed import Job
from trimtab_operator.model.resolved import Resolved, Settings

UID = "0f4e6c1a-3f5b-4b0e-9d52-1d6a3c1f7a10"

SPEC: dict[str, Any] = {
    "model": {"path": "/models/tiny"},
    "data": {"train": {"path": "/data/train.jsonl"}},
    "algorithm": {"grpo": {"groupSize": 8, "kl": {"coefficient": 0.0}}},
    "training": {"steps": 30, "promptsPerStep": 16},
    "rewards": [{"function": "exact_match"}],
    "storage": {"claim": {"size": "10Gi"}},
}
SETTINGS: dict[str, Any] = {
    "roles": {
        "coordinator": {"image": "registry.test/control:1"},
        "actor": {"image": "registry.test/worker:1"},
        "rollout": {"image": "registry.test/worker:1"},
        "reward": {"image": "registry.test/control:1"},
    },
    "operatorLabels": {"app.kubernetes.io/name": "trimtab-operator"},
}


def changed(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy with values set by path (`roles__rollout__replicas=2`); None removes."""
    result = copy.deepcopy(document)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return result


def _job(**changes: Any) -> Job:
    return Job(
        namespace="team-a",
        name="sums",
        uid=UID,
        generation=3,
        resource_version="17",
        created=datetime(2026, 11, 1, tzinfo=UTC),
        spec=changed(SPEC, **changes),
    )


def _settings(**changes: Any) -> Settings:
    return Settings.model_validate(changed(SETTINGS, **changes))


@pytest.fixture
def make_job() -> Callable[..., Job]:
    """Makes the small job with changes to its spec."""
    return _job


@pytest.fixture
def make_settings() -> Callable[..., Settings]:
    """Makes the platform's settings with changes."""
    return _settings


@pytest.fixture
def make() -> Callable[..., Resolved]:
    """Resolves the small job with changes to its spec and, by `settings`, to the platform's settings."""

    def make(settings: dict[str, Any] | None = None, **changes: Any) -> Resolved:
        return resolve(_job(**changes), _settings(**(settings or {})), attempt=1001)

    return make
