"""The end of a job, and what is left to do after it: the pods by spec.cleanupPolicy, the job by its TTL.

Nothing is ever started again after the end; its conditions stay as they are.
"""

from trimtab.api.conditions import ConditionType, Phase, Reason
from trimtab.api.status import JobStatus
from trimtab_operator.model.actions import DeleteJob
from trimtab_operator.model.observed import Pod, Progress
from trimtab_operator.reconcile.draft import Draft
from trimtab_operator.reconcile.failures import describe_end
from trimtab_operator.reconcile.outlook import Outlook, Say, Stage
from trimtab_operator.reconcile.progress import coordinator_pod
from trimtab_operator.reconcile.spec import Live, read_spec

LEAVE_S = 15.0
"""From the end until running pods are deleted: they were told to leave, and those that do keep their logs."""


def is_finished(status: JobStatus) -> bool:
    """Whether the job is complete or has failed."""
    ends = (ConditionType.COMPLETE, ConditionType.FAILED)
    return any(condition.status == "True" and condition.type in ends for condition in status.conditions)


def end_by(draft: Draft, final: Progress) -> Outlook:
    """End the job as the coordinator says."""
    if final.phase == Phase.COMPLETE:
        steps = f"all {final.total_steps} steps are done" if final.total_steps else Reason.STEPS_DONE.text
        return _finish(draft, Stage.COMPLETE, Reason.STEPS_DONE, final.message or steps, final)
    known = {reason.value: reason for reason in Reason}
    reason = known.get(final.reason, Reason.INTERNAL_ERROR)
    pod = coordinator_pod(draft)
    text = (
        final.message if pod is None else f"coordinator-0: pod {pod.name} {describe_end(pod, final.message)}"
    )
    return _finish(draft, Stage.FAILED, reason, text, final)


def fail(draft: Draft, reason: Reason, message: str) -> Outlook:
    """Give the job up."""
    return _finish(draft, Stage.FAILED, reason, message, None)


def _finish(draft: Draft, stage: Stage, reason: Reason, message: str, final: Progress | None) -> Outlook:
    draft.update(
        completion_time=draft.clock.now,
        units=(),
        pending_since=None,
        release_until=None,
        stop=None,
        rollout_replicas=0,
    )
    draft.clock.soon(LEAVE_S)
    return Outlook(stage=stage, end=Say("True", reason, message), progress=final)


def after_end(draft: Draft) -> Outlook:
    """Clean up."""
    reading = read_spec(draft.job)
    live = reading.live or Live()
    end = draft.status.completion_time or draft.clock.now
    outdated = [pod for pod in draft.observed.pods if pod.deleted is None and _goes(pod, live.cleanup_policy)]
    if outdated and draft.clock.been(LEAVE_S, end):
        for pod in outdated:
            draft.delete(pod, f"the job has ended (cleanupPolicy: {live.cleanup_policy})")
        draft.tell("Normal", Reason.CLEANED_UP, f"{len(outdated)} pods are deleted")
    if live.ttl_s is not None and draft.clock.been(live.ttl_s, end):
        draft.tell("Normal", Reason.CLEANED_UP, f"ttlSecondsAfterFinished ({live.ttl_s} s) has passed")
        draft.act(DeleteJob(uid=draft.job.uid))
    return Outlook(stage=Stage.AS_IT_WAS)


def _goes(pod: Pod, policy: str) -> bool:
    return policy == "All" or (policy == "Running" and pod.phase not in ("Succeeded", "Failed"))
