"""What the coordinator writes about a run: metrics.jsonl, samples.jsonl, warnings.jsonl, TensorBoard.

Called by the coordinator at the end of each step, on its own loop: a few small flushed writes, under a
millisecond without TensorBoard. `report` and the live view read the files.

A step appears once in every file. A resume from step N removes what was written about later steps, whether
the caller says so (`last_step`) or simply writes N + 1 again.
"""

import math
import time as clock
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trimtab.observability.health import non_finite_warnings
from trimtab.observability.records import JsonLines, read_lines
from trimtab.observability.tensorboard import EventFiles
from trimtab.observability.warning import HealthWarning

METRICS_FILE = "metrics.jsonl"
SAMPLES_FILE = "samples.jsonl"
WARNINGS_FILE = "warnings.jsonl"
TENSORBOARD_FOLDER = "tensorboard"


class MetricsWriter:
    """The files of one run directory. One writer at a time; not safe to share between threads."""

    def __init__(self, run_dir: Path, *, tensorboard: bool, last_step: int | None = None) -> None:
        """Open or continue the files.

        `last_step` is the step that training resumes from; None keeps every whole line that is there.
        """
        self._metrics = JsonLines(run_dir / METRICS_FILE)
        self._samples = JsonLines(run_dir / SAMPLES_FILE)
        self._warnings = JsonLines(run_dir / WARNINGS_FILE)
        self._cut_after(last_step)
        self._last_step = max((r["step"] for r in read_lines(self._metrics.path)), default=-1)
        self._events = (
            EventFiles(run_dir / TENSORBOARD_FOLDER, next_step=self._last_step + 1) if tensorboard else None
        )

    def write(self, step: int, metrics: Mapping[str, float], *, time: float | None = None) -> None:
        """Write a step's line: `{"step": 3, "time": 1732000000.0, "actor/entropy": 1.9, ...}`.

        A number that is not finite becomes null, and a warning says so once per metric. `time` is the wall
        clock in seconds, now by default. A step that is not beyond the last one replaces it and what follows.
        """
        if step <= self._last_step:
            self._cut_after(step - 1)
            if self._events is not None:
                self._events.forget_from(step)
        wall_time = clock.time() if time is None else time
        values = {name: float(value) for name, value in metrics.items()}
        line = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._metrics.append({"step": step, "time": wall_time, **line})
        self._last_step = step
        for warning in non_finite_warnings(step, values):
            self.warn(warning, time=wall_time)
        if self._events is not None:
            finite = {name: value for name, value in values.items() if math.isfinite(value)}
            self._events.write(step, finite, wall_time=wall_time)

    def rewind(self, step: int) -> None:
        """Forget what was written about steps after this one: training goes on from here."""
        self._cut_after(step)
        if self._events is not None and self._last_step > step:
            self._events.forget_from(step + 1)
        self._last_step = min(self._last_step, step)

    def sample(
        self,
        step: int,
        *,
        prompt: str,
        response: str,
        score: float | None,
        finish_reason: str,
        rewards: Mapping[str, float] | None = None,
        kind: str = "train",
    ) -> None:
        """Write one response for people to read; `score` is None where scoring failed.

        `kind` is "train" or "validation".
        """
        record: dict[str, Any] = {
            "step": step,
            "kind": kind,
            "prompt": prompt,
            "response": response,
            "score": _finite_or_none(score),
            "finish_reason": finish_reason,
            "rewards": {name: _finite_or_none(value) for name, value in (rewards or {}).items()},
        }
        self._samples.append(record)

    def warn(self, warning: HealthWarning, *, time: float | None = None) -> None:
        """Write a warning; one that is there already (same rule and metric) is left out."""
        if (warning.rule, warning.metric) not in self._warned:
            self._warned.add((warning.rule, warning.metric))
            wall_time = clock.time() if time is None else time
            self._warnings.append({"step": warning.step, "time": wall_time, **warning.to_record()})

    def warn_all(self, warnings: Sequence[HealthWarning]) -> None:
        """`warn` for each."""
        for warning in warnings:
            self.warn(warning)

    def close(self) -> None:
        """Close the files; safe to repeat."""
        for file in (self._metrics, self._samples, self._warnings):
            file.close()
        if self._events is not None:
            self._events.close()
            self._events = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cut_after(self, step: int | None) -> None:
        for file in (self._metrics, self._samples, self._warnings):
            file.cut_after(step)
        self._warned = {(r["rule"], r["metric"]) for r in read_lines(self._warnings.path)}


def _finite_or_none(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
