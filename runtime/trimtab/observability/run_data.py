"""What a run directory says about a job, read once.

Used by `report`, `charts` and the launcher's summary. Reads files only, on the caller's thread; works in the
middle of a run, on one that has not stepped yet and on one that crashed: whatever is missing is left out.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from google.protobuf import json_format
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from trimtab.errors import UserError
from trimtab.observability.format import duration, quantity
from trimtab.observability.records import JsonObject, read_lines
from trimtab.observability.warning import HealthWarning
from trimtab.observability.writer import METRICS_FILE, SAMPLES_FILE, WARNINGS_FILE
from trimtab.v1 import job_control_pb2 as pb

JOB_FILE = "job.yaml"
STATUS_FILE = "status.json"
SUMMARY_FILE = "summary.json"
ENDED_PHASES = ("Complete", "Failed", "Stopped")
NUM_ENDS = 3
"""Steps averaged for "at the start" and "at the end" of a noisy metric."""


@dataclass(frozen=True)
class RunData:
    """The files of one run directory."""

    folder: Path
    name: str
    steps: tuple[JsonObject, ...] = ()
    """Lines of metrics.jsonl, by rising step."""
    samples: tuple[JsonObject, ...] = ()
    warnings: tuple[HealthWarning, ...] = ()
    job_yaml: str = ""
    status: pb.JobStatus | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    """What the coordinator wrote at the end; empty while the run goes on, also after an earlier end."""

    @property
    def phase(self) -> str:
        """The job's phase; empty where nothing says it."""
        phase = self.status.phase if self.status else ""
        return phase if phase in ENDED_PHASES else str(self.summary.get("phase") or phase)

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of a metric, where it was reported and finite."""
        lines = [line for line in self.steps if isinstance(line.get(name), int | float)]
        return [line["step"] for line in lines], [float(line[name]) for line in lines]

    def has(self, name: str) -> bool:
        """Whether the metric was ever reported and finite."""
        return any(isinstance(line.get(name), int | float) for line in self.steps)

    @property
    def num_steps(self) -> int:
        """Training steps completed (step 0, where there is one, is the validation before the first)."""
        return max((line["step"] for line in self.steps), default=0)

    @property
    def failure(self) -> str:
        """Why the job failed; empty where it did not."""
        for condition in self.status.conditions if self.status else ():
            if condition.type == "Failed" and condition.status == "True":
                return f"{condition.reason}: {condition.message}" if condition.message else condition.reason
        return str(self.summary.get("message", "")) if self.phase == "Failed" else ""


def load_run(folder: Path) -> RunData:
    """Read a run directory; `UserError` where it is none."""
    known = (METRICS_FILE, JOB_FILE, STATUS_FILE, "resolved.json", "logs")
    if not any((folder / name).exists() for name in known):
        raise UserError(
            f"{folder}: not a run directory (it holds none of {', '.join(known)}); "
            "give the folder that `trimtab run` named at its start"
        )
    job_yaml = _text(folder / JOB_FILE)
    status = _status(folder / STATUS_FILE)
    steps = {line["step"]: line for line in read_lines(folder / METRICS_FILE)}
    return RunData(
        folder=folder,
        name=(status.name if status else "") or _job_name(job_yaml) or folder.resolve().name,
        steps=tuple(steps[step] for step in sorted(steps)),
        samples=tuple(read_lines(folder / SAMPLES_FILE)),
        warnings=tuple(HealthWarning.from_record(line) for line in read_lines(folder / WARNINGS_FILE)),
        job_yaml=job_yaml,
        status=status,
        summary=_summary(folder, status),
    )


def summary_rows(run: RunData) -> dict[str, str]:
    """The run in a few lines: what the end of `trimtab run` and the head of the report show."""
    rows = {"result": _result(run), "steps": _steps(run)}
    wall_s = run.summary.get("wall_s")
    if isinstance(wall_s, int | float):
        rows["time"] = f"{duration(wall_s)}, start and end included"
    rows |= _course(run, "validation score", "val/score/mean", num_ends=1)
    rows |= _course(run, "reward", "critic/score/mean", num_ends=NUM_ENDS)
    rows |= _course(run, "KL to reference", "kl/actual", num_ends=NUM_ENDS)
    rows |= _course(run, "entropy", "actor/entropy", num_ends=NUM_ENDS)
    rows |= _course(run, "response length", "response_length/mean", num_ends=NUM_ENDS)
    rows |= _speed(run)
    if run.status and run.status.checkpoint_path:
        rows["checkpoint"] = run.status.checkpoint_path
    if (run.folder / "model").is_dir():
        rows["model"] = str(run.folder / "model")
    if run.warnings:
        rows["warnings"] = ", ".join(dict.fromkeys(warning.rule for warning in run.warnings))
    return rows


def _result(run: RunData) -> str:
    if run.failure:
        return f"Failed: {run.failure}"
    if run.phase:
        return run.phase
    return "no step completed yet" if not run.steps else "no status was written"


def _steps(run: RunData) -> str:
    total = run.status.total_steps if run.status else 0
    return f"{run.num_steps} of {total}" if total else str(run.num_steps)


def _course(run: RunData, label: str, name: str, *, num_ends: int) -> dict[str, str]:
    _, values = run.series(name)
    if not values:
        return {}
    start, end = fmean(values[:num_ends]), fmean(values[-num_ends:])
    return {label: f"{quantity(start)} → {quantity(end)}" if len(values) > num_ends else quantity(end)}


def _speed(run: RunData) -> dict[str, str]:
    rows = {}
    _, step_s = run.series("timing_s/step")
    if step_s:
        rows["steps took"] = f"{duration(sum(step_s))}, median {quantity(median(step_s))} s"
    _, throughput = run.series("perf/throughput")
    if throughput:
        rows["throughput"] = f"{quantity(median(throughput))} tokens/s (median)"
    return rows


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _json_object(path: Path) -> JsonObject:
    try:
        value = json.loads(_text(path) or "{}")
    except ValueError:  # caught in the middle of being written
        return {}
    return value if isinstance(value, dict) else {}


def _status(path: Path) -> pb.JobStatus | None:
    record = _json_object(path)
    if not record:
        return None
    try:
        return json_format.ParseDict(record, pb.JobStatus(), ignore_unknown_fields=True)
    except json_format.ParseError:  # written by another release
        return None


def _summary(folder: Path, status: pb.JobStatus | None) -> JsonObject:
    """summary.json, unless the status is newer and the job runs again: then it is of an earlier start."""
    summary, written = folder / SUMMARY_FILE, folder / STATUS_FILE
    if not summary.is_file():
        return {}
    runs_again = status is not None and status.phase not in ENDED_PHASES
    if runs_again and written.stat().st_mtime_ns > summary.stat().st_mtime_ns:
        return {}
    return _json_object(summary)


def _job_name(job_yaml: str) -> str:
    try:
        document = YAML(typ="safe").load(job_yaml)
    except YAMLError:
        return ""
    metadata = document.get("metadata") if isinstance(document, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""
