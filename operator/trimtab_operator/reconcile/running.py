"""A job that is started and is to run: failures, wishes, deadlines, size, and the pods that follow."""

import contextlib

from trimtab.api import JobError
from trimtab.api.conditions import Phase, Reason
from trimtab_operator.builders.resolve import resolve
from trimtab_operator.builders.roles import resolved_role
from trimtab_operator.model.actions import CreateResolved
from trimtab_operator.model.observed import Pod, Progress
from trimtab_operator.model.resolved import Resolved
from trimtab_operator.reconcile.draft import Draft
from trimtab_operator.reconcile.failures import (
    Circumstances,
    Severity,
    judge,
    stuck_pod,
    stuck_reason,
    waited_in_vain,
)
from trimtab_operator.reconcile.finishing import end_by, fail
from trimtab_operator.reconcile.outlook import Outlook, Say, Stage
from trimtab_operator.reconcile.plan import (
    children,
    gang_waits,
    groups_of,
    note_seen,
    note_sizes,
    note_waiting,
    resize,
    scale,
)
from trimtab_operator.reconcile.progress import final_word, present
from trimtab_operator.reconcile.restarts import charge, give_back, grant_wishes, pause_s, restart_for
from trimtab_operator.reconcile.spec import Live, Reading, invalid_edit, live_fields, read_spec
from trimtab_operator.reconcile.starting import (
    ACCEPTED,
    attempt_of,
    create_and_delete,
    release,
    release_pause_s,
    state_of,
    wants_suspend,
)
from trimtab_operator.reconcile.stopping import begin_stop
from trimtab_operator.reconcile.units import Survey, Unit, survey

UNREAD_AGAIN_S = 2.0
_JOB_DEADLINE = "the job has run for {0} s, and spec.activeDeadlineSeconds is {0}"


def go_on(draft: Draft) -> Outlook:
    """One look at a job that runs."""
    reading = read_spec(draft.job)
    live = live_fields(
        reading, draft.resolved, suspend=wants_suspend(draft, reading), units=draft.status.units
    )
    final = final_word(draft)
    if final is not None and final.phase == Phase.COMPLETE:
        return end_by(draft, final)
    if live.suspend:
        return begin_stop(draft)
    begun, limit_s = draft.status.start_time, live.active_deadline_s
    if begun is not None and limit_s is not None and draft.clock.been(limit_s, begun):
        return fail(draft, Reason.DEADLINE_EXCEEDED, _JOB_DEADLINE.format(limit_s))
    resolved = draft.resolved
    if resolved is None:
        return _read_again(draft, reading)
    return _run(draft, resolved, live, reading, final)


def _read_again(draft: Draft, reading: Reading) -> Outlook:
    """The attempt's resolved spec is not there: make it, where the operator ended before it did."""
    if reading.live is not None:
        with contextlib.suppress(JobError):  # said at the next start
            resolved = resolve(
                draft.job,
                draft.observed.settings,
                draft.status.attempt,
                first_attempt=attempt_of(draft.job, 1),
            )
            draft.act(CreateResolved(resolved=resolved))
    draft.clock.soon(UNREAD_AGAIN_S)
    return Outlook(stage=Stage.AS_IT_WAS)


def _run(draft: Draft, resolved: Resolved, live: Live, reading: Reading, final: Progress | None) -> Outlook:
    draft.update(resolved=state_of(resolved, draft.status.resolved))
    groups = groups_of(resolved, live)
    scale(draft, groups)
    units = survey(draft.status, groups, draft.observed.pods)
    draft.act(children(resolved, live))
    give_back(draft, units)
    ended = _end_or_restart(draft, units, resolved, live, final) or _stuck(draft, units, resolved)
    if ended is not None:
        return ended
    progress = present(draft)
    if progress is not None and not progress.final:
        grant_wishes(draft, units, progress)
        change = resize(progress, live)
        if change is not None and units.coordinator.is_up:
            draft.act(change)
    released = _pending(draft, units, resolved, live)
    if released is not None:
        return released
    note_seen(units)
    create_and_delete(draft, units, resolved)
    note_waiting(draft, units, live)
    note_sizes(draft, units, resolved, progress)
    return Outlook(
        stage=Stage.ACTIVE,
        validated=_validated(draft, reading, resolved),
        units=units,
        live=live,
        progress=progress,
    )


def _validated(draft: Draft, reading: Reading, resolved: Resolved) -> Say:
    refused = invalid_edit(draft.job, reading, resolved)
    return Say("False", Reason.INVALID_EDIT, refused) if refused else ACCEPTED


def _end_or_restart(
    draft: Draft, units: Survey, resolved: Resolved, live: Live, final: Progress | None
) -> Outlook | None:
    """Judge every unit; the job's end, or None after those that need it were given their next incarnation."""
    progress = present(draft)
    around = Circumstances(
        clock=draft.clock,
        units=units,
        gang_waits=gang_waits(units, live),
        registration_s=resolved.resolved_job.job.spec.deadlines.registration_seconds,
        heard=None if progress is None else progress.heard,
    )
    if final is not None and final.phase == Phase.STOPPED:
        return _again(draft, resolved, live)
    if final is not None and final.phase == Phase.FAILED and not _excused(final, around):
        return end_by(draft, final)
    if any(unit.state.seen and unit.missing for unit in units.wanted):
        draft.make_sure()
    verdicts = [(unit, verdict) for unit in units.wanted if (verdict := judge(unit, around)) is not None]
    for _, verdict in verdicts:
        if verdict.severity is Severity.FATAL:
            draft.tell("Warning", Reason.POD_FAILED, verdict.text)
            return fail(draft, verdict.reason, verdict.text)
    for unit, verdict in verdicts:
        exhausted = restart_for(draft, unit, verdict, max_restarts=live.max_restarts)
        if exhausted:
            oom = verdict.reason is Reason.OUT_OF_MEMORY
            return fail(draft, verdict.reason if oom else Reason.RESTARTS_EXHAUSTED, exhausted)
    return None


def _excused(final: Progress, around: Circumstances) -> bool:
    """Whether the coordinator gave up for want of workers that had no chance to register yet."""
    return final.reason == Reason.DEADLINE_EXCEEDED and any(
        waited_in_vain(pod, around) for pod in around.units.coordinator.pods.values()
    )


def _again(draft: Draft, resolved: Resolved, live: Live) -> Outlook:
    """The coordinator was stopped, and not by spec.suspend: begin again where it left off."""
    text = "coordinator-0 was stopped, though spec.suspend is false: the job is started again"
    draft.tell("Warning", Reason.POD_REPLACED, text)
    exhausted = charge(draft, max_restarts=live.max_restarts)
    if exhausted:
        return fail(draft, Reason.RESTARTS_EXHAUSTED, f"{exhausted}; the last failure: {text}")
    pause = pause_s(draft.status.budget.used, draft.observed.settings)
    return release(draft, resolved, live, pause_s=pause)


def _pending(draft: Draft, units: Survey, resolved: Resolved, live: Live) -> Outlook | None:
    """Release all pods where some wait for a node for too long; None: they may wait on."""
    since, limit_s = draft.status.pending_since, live.pending_deadline_s
    if since is None or not gang_waits(units, live):
        return None
    if not draft.clock.been(limit_s, since):
        return None
    draft.make_sure()
    pause = release_pause_s(draft, limit_s)
    draft.tell(
        "Warning",
        Reason.PENDING_DEADLINE,
        f"not all pods found a node within spec.pendingDeadlineSeconds ({limit_s} s):"
        f" all are released, and made again in {pause:.0f} s",
    )
    return release(draft, resolved, live, pause_s=pause)


def _stuck(draft: Draft, units: Survey, resolved: Resolved) -> Outlook | None:
    """Take note of containers that cannot be started; the job's end where one could not for too long."""
    for unit in units.wanted:
        pod = stuck_pod(unit, draft.clock)
        since = unit.state.stuck_since
        if pod is None:
            if since is not None and unit.is_up:
                unit.change(stuck_since=None)
            continue
        if since is None:
            since = draft.clock.now
            unit.change(stuck_since=since)
        limit_s = draft.observed.settings.image_pull_deadline_s
        if draft.clock.been(limit_s, since):
            draft.make_sure()
            return fail(draft, stuck_reason(pod), _stuck_text(unit, pod, resolved, limit_s))
    return None


def _stuck_text(unit: Unit, pod: Pod, resolved: Resolved, limit_s: int) -> str:
    image = resolved_role(resolved, unit.role).image
    words = f"{pod.waiting_reason}: {pod.waiting_message}" if pod.waiting_message else pod.waiting_reason
    return f"{unit.name}: pod {pod.name} could not be started within {limit_s} s (image {image}): {words}"
