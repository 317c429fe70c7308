"""The record of one thing that looks wrong, as log, report, status and warnings.jsonl show it.

Made by `health`, written by `writer`. Pure data.
"""

from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class HealthWarning:
    """A health rule that fired, once in the life of a job."""

    rule: str
    """The rule's name, as docs/troubleshooting.md lists it."""
    step: int
    metric: str
    value: float | None
    """What the metric was; None where it was not finite."""
    message: str
    """One sentence with the figures."""
    advice: str
    """What to try."""

    def __str__(self) -> str:
        return f"step {self.step}: {self.message} {self.advice}"

    def to_record(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Inverse of `to_record`; further keys are ignored."""
        return cls(**{name: record[name] for name in cls.__dataclass_fields__})
