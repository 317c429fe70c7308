"""spec.suspend of a job that runs: a checkpoint is written, the pods go, and the job is held.

    stop.since set --the coordinator ends, or cannot--> stop.saved --no pods, and none to come--> stop.done

Begun, a stop is gone through with: a job that is to run again meanwhile is resumed when it is done.
"""

from datetime import datetime, timedelta

from trimtab.api.conditions import Phase, Reason
from trimtab.api.status import StopState
from trimtab_operator.builders.groups import pod_groups
from trimtab_operator.model.actions import StopTraining
from trimtab_operator.model.observed import Pod, Progress
from trimtab_operator.reconcile.draft import Draft
from trimtab_operator.reconcile.finishing import end_by
from trimtab_operator.reconcile.outlook import Outlook, Stage
from trimtab_operator.reconcile.plan import ASK_AGAIN_S, note_seen
from trimtab_operator.reconcile.progress import coordinator_pod, final_word, present
from trimtab_operator.reconcile.spec import read_spec
from trimtab_operator.reconcile.starting import held, start, wants_suspend
from trimtab_operator.reconcile.units import has_ended, survey

MARGIN_S = 30.0
"""On top of the job's own deadlines, for messages and for the end of the processes."""
STOP_GRACE_S = 60.0
CHECKPOINT_S = 1800.0
"""The API's defaults of spec.deadlines, where the resolved spec is not read."""
REASON = "spec.suspend"


def begin_stop(draft: Draft) -> Outlook:
    """Enter the stop in the status and ask for it."""
    draft.update(stop=StopState(since=draft.clock.now), pending_since=None, release_until=None)
    return go_on(draft)


def go_on(draft: Draft) -> Outlook:
    """One look at a job that is being stopped, or is held."""
    stop = draft.status.stop
    assert stop is not None
    final = final_word(draft)
    if final is not None and not stop.done and _is_the_end(final):
        return end_by(draft, final)
    _note_seen(draft)
    if stop.saved is None:
        saved = _outcome(draft, stop, final)
        if saved is None:
            return Outlook(stage=Stage.STOPPING, progress=present(draft))
        stop = stop.model_copy(update={"saved": saved})
        draft.update(stop=stop)
    # Another operator may have resumed the job since it was observed: the pods after that are left alone.
    pods = [pod for pod in draft.observed.pods if pod.attempt <= draft.status.attempt]
    for pod in pods:
        draft.remove(pod, "the job is suspended")
    if not stop.done:
        if pods or _creates_under_way(draft, stop):
            return Outlook(stage=Stage.STOPPING, progress=final)
        draft.make_sure()
        draft.update(stop=stop.model_copy(update={"done": True}), units=(), rollout_replicas=0)
    reading = read_spec(draft.job)
    return held(draft, reading) if wants_suspend(draft, reading) else start(draft, reading)


def _is_the_end(final: Progress) -> bool:
    """Whether the job ended by itself meanwhile. A wait that was too long can be tried again."""
    return final.phase == Phase.COMPLETE or (
        final.phase == Phase.FAILED and final.reason != Reason.DEADLINE_EXCEEDED
    )


def _note_seen(draft: Draft) -> None:
    """Remember the pods that are there: no create of those is under way."""
    if draft.resolved is None or all(unit.seen for unit in draft.status.units):
        return
    groups = pod_groups(draft.resolved, rollout_replicas=1, reward_replicas=1)
    units = survey(draft.status, groups, draft.observed.pods)
    note_seen(units)
    draft.update(units=units.ledger)


def _creates_under_way(draft: Draft, stop: StopState) -> bool:
    """Whether pods that were asked for before the stop may still come into being."""
    asked_after = stop.since - timedelta(seconds=ASK_AGAIN_S)
    return any(
        not unit.seen
        and (unit.not_before is not None if unit.created is None else unit.created > asked_after)
        for unit in draft.status.units
    ) and not draft.clock.been(ASK_AGAIN_S, stop.since)


def _outcome(draft: Draft, stop: StopState, final: Progress | None) -> bool | None:
    """Whether a checkpoint was written; None: the coordinator is still at it."""
    if final is not None and final.phase == Phase.STOPPED:
        return True
    pod = coordinator_pod(draft)
    if pod is None or has_ended(pod) or pod.phase == "Pending":
        draft.make_sure()
        return False
    if draft.clock.passed(_give_up_at(draft, stop)):
        return False
    if pod.deleted is None:
        _ask(draft, pod)
    return None


def _give_up_at(draft: Draft, stop: StopState) -> datetime:
    """When the coordinator has had its time: for the checkpoint too, as long as it answers."""
    grace_s, checkpoint_s = _deadlines(draft)
    progress = present(draft)
    answered = stop.since if progress is None else max(stop.since, progress.received)
    soon = timedelta(seconds=grace_s + MARGIN_S)
    return min(answered + soon, stop.since + soon + timedelta(seconds=checkpoint_s))


def _deadlines(draft: Draft) -> tuple[float, float]:
    if draft.resolved is None:
        return STOP_GRACE_S, CHECKPOINT_S
    deadlines = draft.resolved.resolved_job.job.spec.deadlines
    return deadlines.stop_grace_seconds, deadlines.checkpoint_seconds


def _ask(draft: Draft, pod: Pod) -> None:
    """Ask for the stop, until the coordinator is at it."""
    progress = present(draft)
    if progress is None or progress.phase not in (Phase.STOPPING, Phase.STOPPED):
        draft.act(StopTraining(reason=REASON, grace_s=_deadlines(draft)[0]))
