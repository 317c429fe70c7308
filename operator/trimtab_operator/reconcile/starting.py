"""The starts of a job: the first, each resume, and each one after all pods were released.

A start has an attempt number of its own, in the status before anything is made for it, and a resolved spec
of its own, which holds to its end.
"""

import hashlib
from datetime import UTC, datetime
from typing import Final

from trimtab.api import JobError, Problem
from trimtab.api.conditions import Reason
from trimtab.api.status import BudgetState, ResolvedState
from trimtab_operator.builders.groups import rollout_selector
from trimtab_operator.builders.resolve import resolve, resolved_name
from trimtab_operator.builders.storage import storage_problem
from trimtab_operator.model.actions import CreateResolved
from trimtab_operator.model.observed import Job
from trimtab_operator.model.resolved import Resolved
from trimtab_operator.reconcile.draft import Draft
from trimtab_operator.reconcile.outlook import Outlook, Say, Stage
from trimtab_operator.reconcile.plan import (
    children,
    create_pods,
    delete_outdated,
    groups_of,
    new_ledger,
    note_sizes,
    note_waiting,
)
from trimtab_operator.reconcile.spec import Live, Reading, read_spec
from trimtab_operator.reconcile.units import Survey, survey

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
STARTS_PER_SECOND: Final = 1000
CLAIMS_AGAIN_S = 2.0
STORAGE_AGAIN_S = 60.0
"""A claim may be replaced by one that several nodes can write, which no event tells."""
ACCEPTED: Final = Say("True", Reason.ACCEPTED)


def attempt_of(job: Job, starts: int) -> int:
    """The fencing number of a start: later than every start of a job of this name that was made before."""
    seconds = int((job.created - EPOCH).total_seconds())
    return max(0, seconds) * STARTS_PER_SECOND + starts


def start(draft: Draft, reading: Reading) -> Outlook:
    """Begin a new start from the spec as it is now, or say what is wrong with it."""
    if reading.live is None:
        return Outlook(stage=Stage.INVALID, validated=_refusal(reading.problems))
    if reading.claims and draft.observed.claims is None:
        draft.clock.soon(CLAIMS_AGAIN_S)
        return Outlook(stage=Stage.AS_IT_WAS)
    starts = draft.status.starts + 1
    try:
        resolved = resolve(
            draft.job,
            draft.observed.settings,
            attempt_of(draft.job, starts),
            first_attempt=attempt_of(draft.job, 1),
        )
        _check_identity(draft, resolved)
    except JobError as error:
        return Outlook(stage=Stage.INVALID, validated=_refusal(tuple(map(str, error.problems))))
    unshared = storage_problem(resolved.resolved_job.job.spec, draft.observed.claims)
    if unshared is not None:
        draft.clock.soon(STORAGE_AGAIN_S)
        return Outlook(stage=Stage.INVALID, validated=Say("False", Reason.STORAGE_NOT_SHARED, unshared))
    if draft.observed.rehearsal:
        return Outlook(stage=Stage.INVALID, validated=_refusal(draft.observed.rehearsal))
    draft.update(start_time=draft.clock.now, budget=BudgetState())
    return begin(draft, resolved, reading.live, starts=starts)


def _refusal(problems: tuple[str, ...]) -> Say:
    return Say("False", Reason.INVALID_SPEC, "\n".join(problems))


def _check_identity(draft: Draft, resolved: Resolved) -> None:
    """A resumed job is the same training as before, or its checkpoint does not fit."""
    before = draft.status.resolved
    if before is None or before.identity in ("", resolved.resolved_job.training_identity):
        return
    text = (
        "model, data, algorithm, training.precision and seed make the training, and stay as they were at"
        f" generation {before.generation}: its checkpoint would not fit. Set them back, or make a new job"
    )
    raise JobError([Problem("spec", None, text)], source=draft.job.name)


def begin(draft: Draft, resolved: Resolved, live: Live, *, starts: int, pause_s: float = 0.0) -> Outlook:
    """Enter a start in the status, and ask for all that it needs; its pods after the pause."""
    groups = groups_of(resolved, live)
    draft.update(
        starts=starts,
        attempt=resolved.attempt,
        resolved=state_of(resolved),
        units=new_ledger(groups, draft.status.units, draft.clock),
        stop=None,
        pending_since=None,
        release_until=draft.clock.after(pause_s) if pause_s else None,
        rollout_selector=rollout_selector(draft.job.uid),
    )
    draft.act(CreateResolved(resolved=resolved))
    draft.act(children(resolved, live))
    units = survey(draft.status, groups, draft.observed.pods)
    create_and_delete(draft, units, resolved)
    note_waiting(draft, units, live)
    note_sizes(draft, units, resolved, None)
    return Outlook(stage=Stage.ACTIVE, validated=ACCEPTED, units=units, live=live)


def state_of(resolved: Resolved, before: ResolvedState | None = None) -> ResolvedState:
    """What the status says of the resolved spec; the stored one counts, whoever stored it."""
    identity = resolved.resolved_job.training_identity
    if before is not None and (before.generation, before.identity) == (resolved.generation, identity):
        return before
    return ResolvedState(name=resolved.name, generation=resolved.generation, identity=identity)


def create_and_delete(draft: Draft, units: Survey, resolved: Resolved) -> None:
    """Make the pods what the ledger says; none is created while all are released."""
    delete_outdated(draft, units)
    until = draft.status.release_until
    if until is not None and draft.clock.passed(until):
        draft.update(release_until=None)
        until = None
    if until is None:
        before = len(draft.actions)
        fresh = all(unit.state.created is None and unit.state.incarnation == 1 for unit in units.wanted)
        create_pods(draft, units, resolved)
        if fresh and len(draft.actions) > before:
            draft.tell("Normal", Reason.PODS_CREATED, f"start {draft.status.starts}: the pods are created")


def release(draft: Draft, resolved: Resolved, live: Live, *, pause_s: float) -> Outlook:
    """Give all pods up and begin again after a pause, with the spec as it was resolved for this start."""
    starts = draft.status.starts + 1
    attempt = attempt_of(draft.job, starts)
    again = resolved.model_copy(
        update={
            "name": resolved_name(draft.job.name, draft.job.uid, attempt),
            "resolved_job": resolved.resolved_job.model_copy(update={"attempt": attempt}),
        }
    )
    return begin(draft, again, live, starts=starts, pause_s=pause_s)


def release_pause_s(draft: Draft, deadline_s: float) -> float:
    """How long released pods stay away: another time for each job, so that they do not all meet again."""
    digest = hashlib.sha256(f"{draft.job.uid}/{draft.status.starts}".encode()).digest()
    share = int.from_bytes(digest[:4], "big") / 2**32
    return float(round(min(max(deadline_s, 20.0), 300.0) * (0.5 + share)))


def first(draft: Draft) -> Outlook:
    """A job that has never been started."""
    reading = read_spec(draft.job)
    if wants_suspend(draft, reading):
        return held(draft, reading)
    return start(draft, reading)


def wants_suspend(draft: Draft, reading: Reading) -> bool:
    """spec.suspend, of an invalid spec too."""
    return draft.job.spec.get("suspend") is True if reading.live is None else reading.live.suspend


def held(draft: Draft, reading: Reading) -> Outlook:
    """No pods until spec.suspend is false."""
    refused = reading.live is None
    return Outlook(
        stage=Stage.HELD,
        validated=_refusal(reading.problems) if refused else ACCEPTED,
        live=reading.live,
    )
