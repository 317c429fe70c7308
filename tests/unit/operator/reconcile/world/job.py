"""The job that the world is about, and the platform's settings."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from trimtab_operator.model.resolved import Settings

START = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
SPEC: dict[str, Any] = {
    "model": {"path": "/models/tiny"},
    "data": {"train": {"path": "/data/train.jsonl"}},
    "algorithm": {"grpo": {"groupSize": 8, "kl": {"coefficient": 0.0}}},
    "training": {"steps": 25, "promptsPerStep": 16},
    "rewards": [{"function": "exact_match"}],
    "storage": {"claim": {"size": "10Gi"}},
    "roles": {"actor": {"nodes": 2}, "rollout": {"replicas": 2, "minReplicas": 1}},
}
SETTINGS = Settings.model_validate(
    {
        "roles": {
            role: {"image": f"registry.test/{image}:1"}
            for role, image in (
                ("coordinator", "control"),
                ("actor", "worker"),
                ("rollout", "worker"),
                ("reward", "control"),
            )
        }
    }
)


def changed(spec: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy with values set by path (`roles__rollout__replicas=2`); None removes."""

    def copy(value: Any) -> Any:
        return {key: copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value

    result: dict[str, Any] = copy(spec)
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
