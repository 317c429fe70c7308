"""`reconcile`: one look at a job, and what follows from it. Called by the adapter; nothing waits or sends.

Level-based: it looks at what is there and at the status, never at what happened, so that an event that was
lost or came twice changes nothing. The order of decisions:

    deleted, or another controller's     nothing is done
    complete or failed                   clean up                        finishing.py
    stopped by spec.suspend, or held     go on with it, or resume        stopping.py
    never started                        start, hold or refuse           starting.py
    otherwise                            run                             running.py
"""

from datetime import datetime

from trimtab.api.status import JobStatus
from trimtab_operator.model.actions import Decision
from trimtab_operator.model.observed import Observed
from trimtab_operator.reconcile import running, starting, stopping
from trimtab_operator.reconcile.clock import Clock
from trimtab_operator.reconcile.conditions import conditions_of, message_of, phase_of, transitions
from trimtab_operator.reconcile.draft import Draft
from trimtab_operator.reconcile.finishing import after_end, is_finished
from trimtab_operator.reconcile.metrics import numbers_of, settle
from trimtab_operator.reconcile.outlook import Outlook, Stage
from trimtab_operator.reconcile.plan import force_delete
from trimtab_operator.reconcile.progress import of_attempt
from trimtab_operator.reconcile.spec import is_ours

_RESTING = (Stage.HELD, Stage.INVALID, Stage.COMPLETE, Stage.FAILED)


def reconcile(observed: Observed, now: datetime) -> Decision:
    """What the job's status should be, and what is to be done once it is written."""
    job = observed.job
    if job.deleted is not None or not is_ours(job.spec):
        return Decision(status=job.status)
    draft = Draft(observed=observed, clock=Clock(now), status=job.status)
    force_delete(draft)
    outlook = _decide(draft)
    if draft.list_pods:
        return Decision(status=job.status, list_pods=True)
    status = settle(job.status, _status_of(draft, outlook), draft.clock)
    return Decision(
        status=status,
        actions=tuple(draft.actions),
        events=(*draft.events, *transitions(job.status.conditions, status.conditions)),
        requeue_after_s=draft.clock.requeue_after_s,
    )


def _decide(draft: Draft) -> Outlook:
    if is_finished(draft.status):
        return after_end(draft)
    if draft.status.stop is not None:
        return stopping.go_on(draft)
    if draft.status.starts == 0:
        return starting.first(draft)
    return running.go_on(draft)


def _status_of(draft: Draft, outlook: Outlook) -> JobStatus:
    if draft.status.observed_generation != draft.job.generation:
        draft.update(observed_generation=draft.job.generation)
    if outlook.stage is Stage.AS_IT_WAS:
        return draft.status
    reported = of_attempt(draft)
    if reported is not None:
        draft.update(**numbers_of(reported, draft.status))
    if outlook.stage in _RESTING:
        draft.update(
            roles=tuple(role.model_copy(update={"replicas": 0, "ready": 0}) for role in draft.status.roles)
        )
    conditions = conditions_of(draft, outlook)
    phase = phase_of(conditions)
    activity = "" if outlook.progress is None else outlook.progress.activity
    message = message_of(phase, conditions, draft.status, activity)
    draft.update(conditions=conditions, phase=phase.value, message=message)
    return draft.status
