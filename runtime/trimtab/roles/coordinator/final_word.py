"""FinalWord: how the job ended, as the coordinator leaves it in its pod's termination log.

Kubernetes copies it into the pod's status (4096 bytes at most), so that the operator learns the outcome from
the pod alone, also when nobody could ask the coordinator any more. Written by `main` before the workers are
told to leave; the agent leaves it alone. Pure but for `write`.
"""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.api.conditions import Phase, Reason
from trimtab.roles.environment import FINAL_WORD_BEGINS

log = logging.getLogger(__name__)

VERSION: Final = 1
MAX_BYTES: Final = 4096
METRICS: Final = (
    "critic/rewards/mean",
    "critic/score/mean",
    "kl/actual",
    "actor/ppo_kl",
    "actor/entropy",
    "response_length/mean",
    "perf/total_num_tokens",
    "perf/time_per_step",
    "training/staleness",
    "val/score/mean",
)
"""Those of the last step that are told; the rest is in the run directory."""
_MAX_NAMES: Final = 768
_MAX_PATH: Final = 1536
"""Bytes that the names, and the path, may take; the rest is the message's."""


@dataclass(frozen=True, kw_only=True)
class FinalWord:
    """The end of a job."""

    phase: Phase
    reason: Reason
    message: str
    step: int
    total_steps: int
    epoch: float
    metrics: Mapping[str, float]
    """Of the last step, all of them."""
    checkpoint: tuple[str, int]
    """Path and step; an empty path: there is none."""

    def encode(self) -> bytes:
        """JSON of at most `MAX_BYTES`; where it would be longer, the message is cut off at its end."""
        whole = self._render(self.message)
        kept = self.message
        while kept and (excess := len(whole) - MAX_BYTES) > 0:
            kept = kept[: -max(1, excess // 12)]  # a character takes up to 12 bytes
            whole = self._render(f"{kept} ...")
        return whole

    def write(self, path: Path) -> None:
        """Leave it; a log that cannot be written costs the word, not the job."""
        try:
            path.write_bytes(self.encode())
        except OSError as error:
            log.warning("the termination log %s could not be written: %s", path, error.strerror)

    def _render(self, message: str) -> bytes:
        values = {
            "trimtab": VERSION,
            "phase": self.phase.value,
            "reason": self.reason.value,
            "message": message,
            "step": self.step,
            "totalSteps": self.total_steps,
            "epoch": self.epoch,
            "metrics": {name: self.metrics[name] for name in METRICS if self._finite(name)},
            "notFinite": _as_many_as_fit(not_finite(self.metrics)),
            "checkpointStep": self.checkpoint[1],
            "checkpointPath": self.checkpoint[0] if len(json.dumps(self.checkpoint[0])) <= _MAX_PATH else "",
        }
        text = json.dumps(values, allow_nan=False, separators=(",", ":")).encode()
        assert text.startswith(FINAL_WORD_BEGINS)
        return text

    def _finite(self, name: str) -> bool:
        return math.isfinite(self.metrics.get(name, math.nan))


def _as_many_as_fit(names: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for name in names:
        if len(json.dumps([*kept, name])) > _MAX_NAMES:
            break
        kept.append(name)
    return kept


def not_finite(metrics: Mapping[str, float]) -> Sequence[str]:
    """Names of the metrics that no status can carry."""
    return sorted(name for name, value in metrics.items() if not math.isfinite(value))
