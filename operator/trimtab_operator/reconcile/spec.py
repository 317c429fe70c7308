"""What the job's spec says now: the fields that count while it runs, and what is wrong with it.

Reading a spec takes a millisecond, so it is done once per generation and only what is needed is kept.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from trimtab.api import JobError, JobSpec
from trimtab.api.changes import changed
from trimtab.api.status import UnitState
from trimtab_operator.builders.resolve import parse
from trimtab_operator.builders.storage import claim_names
from trimtab_operator.constants import MANAGER, REWARD, ROLLOUT
from trimtab_operator.model.observed import Job
from trimtab_operator.model.resolved import Resolved

_KEPT = 4096
"""Jobs whose reading is kept."""
V = TypeVar("V")


@dataclass(frozen=True, kw_only=True)
class Live:
    """The fields that are read anew at each look, of a running job too (`trimtab.api.changes.ALWAYS`)."""

    suspend: bool = False
    rollout_replicas: int = 1
    min_rollout_replicas: int = 1
    reward_replicas: int = 1
    min_reward_replicas: int = 1
    max_restarts: int = 0
    active_deadline_s: int | None = None
    pending_deadline_s: int = JobSpec.model_fields["pending_deadline_seconds"].default
    ttl_s: int | None = None
    cleanup_policy: str = "Running"

    @classmethod
    def of(cls, spec: JobSpec) -> "Live":
        """Read them off a valid spec."""
        rollout, reward = spec.roles.rollout, spec.roles.reward
        return cls(
            suspend=spec.suspend,
            rollout_replicas=rollout.replicas,
            min_rollout_replicas=rollout.min_replicas,
            reward_replicas=reward.replicas,
            min_reward_replicas=reward.min_replicas,
            max_restarts=spec.failure_policy.max_restarts,
            active_deadline_s=spec.active_deadline_seconds,
            pending_deadline_s=spec.pending_deadline_seconds,
            ttl_s=spec.ttl_seconds_after_finished,
            cleanup_policy=spec.cleanup_policy,
        )


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One generation of a job's spec."""

    live: Live | None
    """None: the spec is not valid."""
    problems: tuple[str, ...] = ()
    """Each with the path of its field."""
    claims: tuple[str, ...] = ()
    """PersistentVolumeClaims that its volumes name."""


class _Memory(Generic[V]):
    """The last answer for each job, with what it was given for; the longest unchanged ones are forgotten."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._answers: dict[str, tuple[tuple[object, ...], V]] = {}

    def recall(self, uid: str, given: tuple[object, ...], answer: Callable[[], V]) -> V:
        """The answer from memory where it was given the same, else a new one."""
        known = self._answers.get(uid)
        if known is not None and known[0] == given:
            return known[1]
        new = answer()
        self._answers.pop(uid, None)
        if len(self._answers) >= self._size:
            del self._answers[next(iter(self._answers))]
        self._answers[uid] = (given, new)
        return new


_READINGS: _Memory[Reading] = _Memory(_KEPT)
_EDITS: _Memory[str] = _Memory(_KEPT)


def read_spec(job: Job) -> Reading:
    """What the spec says, from memory where it was read before."""
    return _READINGS.recall(job.uid, (job.generation, job.spec), lambda: _read(job))


def _read(job: Job) -> Reading:
    try:
        spec = parse(job).spec
    except JobError as error:
        return Reading(live=None, problems=tuple(map(str, error.problems)))
    return Reading(live=Live.of(spec), claims=claim_names(spec))


def is_ours(spec: Mapping[str, Any]) -> bool:
    """Whether this operator acts on the job; if not, even its status is another controller's."""
    return spec.get("managedBy") in (None, MANAGER)


def live_fields(
    reading: Reading, resolved: Resolved | None, *, suspend: bool, units: tuple[UnitState, ...]
) -> Live:
    """The live fields of a job that runs; where an edit made the spec invalid, as they were before it.

    `suspend` is then what the invalid spec says: holding a job is always safe.
    """
    if reading.live is not None:
        return reading.live
    before = Live() if resolved is None else Live.of(resolved.resolved_job.job.spec)
    rollouts, rewards = _wanted(units, ROLLOUT), _wanted(units, REWARD)
    return replace(
        before,
        suspend=suspend,
        rollout_replicas=rollouts,
        min_rollout_replicas=min(before.min_rollout_replicas, rollouts),
        reward_replicas=rewards,
        min_reward_replicas=min(before.min_reward_replicas, rewards),
    )


def _wanted(units: tuple[UnitState, ...], role: str) -> int:
    """How many units of a role the ledger has."""
    return sum(unit.name.startswith(f"{role}-") and not unit.retired for unit in units) or 1


def invalid_edit(job: Job, reading: Reading, resolved: Resolved) -> str:
    """What a running job does not take up of its spec as it is now; empty: nothing."""
    if reading.problems:
        return "; ".join(reading.problems)
    if job.generation == resolved.generation:
        return ""
    return _EDITS.recall(
        job.uid, (job.generation, job.spec, resolved.name), lambda: _not_taken_up(job, resolved)
    )


def _not_taken_up(job: Job, resolved: Resolved) -> str:
    parts = changed(resolved.resolved_job.job.spec, parse(job).spec)
    paths = [f"spec.{part.path}" for part in parts if part.when != "always"]
    if not paths:
        return ""
    return (
        f"{', '.join(paths)} {'is' if len(paths) == 1 else 'are'} taken up at the next start of the job: set"
        " spec.suspend to true, and to false again once it is suspended"
    )
