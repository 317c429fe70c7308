"""What the coordinator reports, as the status has it; and when numbers alone are worth a write.

A change of a condition or of the ledger is written at once, and takes the newest numbers along. Numbers and
wording alone are written once a minute.
"""

import math
from collections.abc import Mapping
from typing import Any

from trimtab.api.status import CheckpointState, JobStatus, MetricsStatus, UnitState
from trimtab_operator.model.observed import Progress
from trimtab_operator.reconcile.clock import Clock

WRITE_EVERY_S = 60.0
MAX_WHOLE = 2**53
_NAMES = {
    "reward": ("critic/rewards/mean", "critic/score/mean"),
    "kl": ("kl/actual", "actor/kl_loss", "actor/reward_kl_penalty"),
    "entropy": ("actor/entropy",),
    "response_length": ("response_length/mean",),
    "staleness": ("training/staleness",),
}
"""Field of MetricsStatus: the runtime's names (docs/metrics.md), the first that is there counts."""
_VOLATILE = frozenset({"step", "total_steps", "epoch", "metrics", "metrics_time", "checkpoint", "message"})
_COMPARED = frozenset({"conditions", "roles", "units"})
"""Fields that are compared in part."""
_PLAIN = tuple(name for name in JobStatus.model_fields if name not in _VOLATILE | _COMPARED)


def numbers_of(progress: Progress, status: JobStatus) -> dict[str, Any]:
    """The fields of the status that come from the coordinator's report."""
    fields: dict[str, Any] = {
        "step": _whole(progress.step),
        "total_steps": _whole(progress.total_steps) or status.total_steps,
        "epoch": progress.epoch if math.isfinite(progress.epoch) else status.epoch,
    }
    if progress.metrics:
        fields["metrics"] = metrics_of(progress.metrics)
    if progress.checkpoint_step >= 0:
        fields["checkpoint"] = CheckpointState(
            step=_whole(progress.checkpoint_step), path=progress.checkpoint_path
        )
    return fields


def metrics_of(metrics: Mapping[str, float]) -> MetricsStatus:
    """The handful of metrics that the status has; those that are not finite are left out."""
    chosen = {field: _first(metrics, names) for field, names in _NAMES.items()}
    return MetricsStatus(**chosen, tokens_per_second=_tokens_per_second(metrics))


def not_finite(progress: Progress) -> list[str]:
    """Names of the metrics that are not finite."""
    bad = {name for name, value in progress.metrics.items() if not math.isfinite(value)}
    return sorted(bad.union(progress.not_finite))


def _first(metrics: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    value = next((metrics[name] for name in names if name in metrics), None)
    return value if value is not None and math.isfinite(value) else None


def _tokens_per_second(metrics: Mapping[str, float]) -> float | None:
    tokens = _first(metrics, ("perf/total_num_tokens",))
    seconds = _first(metrics, ("perf/time_per_step", "timing_s/step"))
    return tokens / seconds if tokens is not None and seconds else None


def _whole(value: int) -> int:
    return min(max(value, 0), MAX_WHOLE)


def settle(old: JobStatus, new: JobStatus, clock: Clock) -> JobStatus:
    """The status to write: `new`, or exactly `old` where what changed can wait."""
    if new == old:
        return old
    if not _same_state(old, new) or old.metrics_time is None or clock.been(WRITE_EVERY_S, old.metrics_time):
        return new.model_copy(update={"metrics_time": clock.now})
    return old


def _same_state(old: JobStatus, new: JobStatus) -> bool:
    """Whether they differ in numbers and wording at most."""
    return (
        all(getattr(old, name) == getattr(new, name) for name in _PLAIN)
        and [(c.type, c.status, c.reason, c.observed_generation) for c in old.conditions]
        == [(c.type, c.status, c.reason, c.observed_generation) for c in new.conditions]
        and [(r.name, r.replicas, r.restarts) for r in old.roles]
        == [(r.name, r.replicas, r.restarts) for r in new.roles]
        and _same_units(old.units, new.units)
    )


def _same_units(old: tuple[UnitState, ...], new: tuple[UnitState, ...]) -> bool:
    """Whether the ledgers are the same; which pods have been seen waits until all have."""
    if old == new:
        return True
    if len(old) != len(new) or all(unit.seen or unit.retired for unit in new):
        return False
    return all(a == b or a.model_copy(update={"seen": b.seen}) == b for a, b in zip(old, new, strict=True))
