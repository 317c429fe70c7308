"""What the coordinator must remember: the part of a checkpoint and of the journal that is not the actor's."""

from dataclasses import asdict, dataclass, field
from typing import Any

STATE_VERSION = 1


@dataclass(frozen=True)
class TrainingState:
    """Everything after `step` completed steps. JSON values only."""

    step: int = 0
    weight_version: int = 0
    sampler: dict[str, Any] = field(default_factory=dict)
    kl_controller: dict[str, Any] = field(default_factory=dict)
    health: dict[str, Any] = field(default_factory=dict)
    rollout_changes: dict[str, float] = field(default_factory=dict)
    """What UpdateRollout changed, by field of the request."""
    num_tokens: int = 0
    elapsed_s: float = 0.0
    validated_step: int = -1
    """The last step whose validation is in the metrics, so that a restart does not repeat it."""
    version: int = STATE_VERSION

    def to_json(self) -> dict[str, Any]:
        """For the journal and the checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "TrainingState":
        """Inverse of `to_json`."""
        if values["version"] != STATE_VERSION:
            raise ValueError(
                f"coordinator state has version {values['version']}, this Trimtab reads {STATE_VERSION}"
            )
        return cls(**values)
