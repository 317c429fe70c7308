"""The conditions of a job, its phase and its message. docs/reference/conditions.md is made by running this.

Each condition keeps its time as long as its status stays, and the whole condition as long as nothing of it
changes.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from trimtab.api.conditions import ConditionType, Phase, Reason
from trimtab.api.status import CheckpointState, Condition, JobStatus, StopState
from trimtab_operator.constants import REWARD, ROLLOUT
from trimtab_operator.model.actions import Event
from trimtab_operator.reconcile.clock import Clock
from trimtab_operator.reconcile.draft import MAX_EVENT_MESSAGE, Draft
from trimtab_operator.reconcile.failures import stuck_pod, stuck_reason
from trimtab_operator.reconcile.metrics import not_finite
from trimtab_operator.reconcile.outlook import Outlook, Say, Stage
from trimtab_operator.reconcile.units import Survey, Unit, ended_well, is_alive

MAX_NAMED = 5
MAX_MESSAGE = 32_000
_LOST = (Reason.ACTOR_LOST, Reason.COORDINATOR_LOST)
_ENDED = {Stage.COMPLETE: ConditionType.COMPLETE, Stage.FAILED: ConditionType.FAILED}
_PENDING = (
    Reason.PODS_PENDING,
    Reason.UNSCHEDULABLE,
    Reason.IMAGE_PULL,
    Reason.CANNOT_START,
    Reason.PENDING_DEADLINE,
)
_SUSPENDS = (Reason.SUSPEND_REQUESTED, Reason.RESUMED)
_WARNINGS = {
    (ConditionType.VALIDATED, "False"),
    (ConditionType.DEGRADED, "True"),
    (ConditionType.METRICS_HEALTHY, "False"),
    (ConditionType.FAILED, "True"),
}


def conditions_of(draft: Draft, outlook: Outlook) -> tuple[Condition, ...]:
    """One condition of each type."""
    old = {condition.type: condition for condition in draft.status.conditions}
    said = _say_all(draft, outlook, old)
    job, now = draft.job, draft.clock.now
    new = tuple(_condition(old.get(kind), kind, say, job.generation, now) for kind, say in said.items())
    same = len(new) == len(draft.status.conditions) and all(map(_is, new, draft.status.conditions))
    return draft.status.conditions if same else new


def _is(a: object, b: object) -> bool:
    return a is b


def _condition(old: Condition | None, kind: str, say: Say, generation: int, now: datetime) -> Condition:
    message = say.message[:MAX_MESSAGE]
    if old is not None:
        if (old.status, old.reason, old.message, old.observed_generation) == (
            say.status,
            say.reason,
            message,
            generation,
        ):
            return old
        if old.status == say.status:
            now = old.last_transition_time
    return Condition(
        type=kind,
        status=say.status,
        reason=str(say.reason),
        message=message,
        last_transition_time=now,
        observed_generation=generation,
    )


def _say_all(draft: Draft, outlook: Outlook, old: dict[str, Condition]) -> dict[ConditionType, Say]:
    running = _running(outlook, old)
    return {
        ConditionType.VALIDATED: outlook.validated
        or _keep(old.get(ConditionType.VALIDATED), Say("True", Reason.ACCEPTED)),
        ConditionType.ADMITTED: _admitted(draft, outlook, old),
        ConditionType.WORKERS_READY: _workers_ready(draft, outlook, old),
        ConditionType.RUNNING: running,
        ConditionType.DEGRADED: _degraded(outlook, running),
        ConditionType.METRICS_HEALTHY: _metrics_healthy(outlook, old),
        ConditionType.SUSPENDED: _suspended(draft, outlook, old),
        ConditionType.COMPLETE: _ended(outlook, Stage.COMPLETE),
        ConditionType.FAILED: _ended(outlook, Stage.FAILED),
    }


def _at_rest(outlook: Outlook) -> Say | None:
    """What most conditions say of a job without pods; None: it has some, or may have."""
    match outlook.stage:
        case Stage.INVALID:
            assert outlook.validated is not None
            return Say("False", outlook.validated.reason)
        case Stage.HELD:
            return Say("False", Reason.SUSPEND_REQUESTED)
        case Stage.COMPLETE | Stage.FAILED:
            assert outlook.end is not None
            return Say("False", outlook.end.reason)
        case _:
            return None


def _admitted(draft: Draft, outlook: Outlook, old: dict[str, Condition]) -> Say:
    before = old.get(ConditionType.ADMITTED)
    let_in = Say("True", Reason.NO_QUEUE)
    if outlook.stage in (Stage.STOPPING, Stage.FAILED):
        return _keep(before, let_in)
    rest = _at_rest(outlook)
    if rest is not None:
        return let_in if outlook.stage is Stage.COMPLETE else rest
    if not _lacks_pods(outlook.units):
        return let_in
    if draft.observed.refused:
        return Say("False", Reason.WAITING_FOR_QUOTA, draft.observed.refused)
    waits = before is not None and before.reason == Reason.WAITING_FOR_QUOTA
    return _keep(before, let_in) if waits else let_in


def _lacks_pods(units: Survey | None) -> bool:
    return units is not None and any(unit.missing for unit in units.wanted)


def _workers_ready(draft: Draft, outlook: Outlook, old: dict[str, Condition]) -> Say:
    rest = _at_rest(outlook)
    if rest is not None:
        return rest
    before = old.get(ConditionType.WORKERS_READY)
    units = outlook.units
    if units is None:  # stopping
        stops = Say("False", Reason.STOP_REQUESTED)
        return _keep(before, stops) if before is not None and before.status == "True" else stops
    if draft.status.release_until is not None:
        text = (
            f"all pods were released and are made again at {draft.status.release_until:%Y-%m-%d %H:%M:%S} UTC"
        )
        return Say("False", Reason.PENDING_DEADLINE, text)
    held_up = _held_up(units, draft.clock)
    if held_up is not None:
        return held_up
    progress = outlook.progress
    if progress is None:
        waiting = Say("False", Reason.WAITING_FOR_WORKERS, "the coordinator has not answered yet")
        return _keep(before, waiting) if before is not None and before.status == "True" else waiting
    if progress.missing:
        return Say("False", Reason.WAITING_FOR_WORKERS, f"missing: {progress.missing}")
    short = [role for role, count in progress.desired.items() if progress.ready.get(role, 0) < count]
    if short or not progress.desired:
        return Say("False", Reason.WAITING_FOR_WORKERS, f"missing: {', '.join(short)}" if short else "")
    return Say("True", Reason.ALL_REGISTERED)


def _held_up(units: Survey, clock: Clock) -> Say | None:
    """What keeps pods from running; None: all run."""
    down = [unit for unit in units.wanted if not (unit.is_up or _left(unit))]
    if not down:
        return None
    for unit in down:
        pod = stuck_pod(unit, clock)
        if pod is not None:
            return Say(
                "False",
                stuck_reason(pod),
                f"{unit.name}: pod {pod.name}: {_waiting(pod.waiting_reason, pod.waiting_message)}",
            )
    for unit in down:
        words = next(
            (pod.unschedulable for pod in unit.pods.values() if pod.unschedulable and not pod.node_name), ""
        )
        if words:
            return Say("False", Reason.UNSCHEDULABLE, f"{_names(u for u in down if u.waits)}: {words}")
    return Say("False", Reason.PODS_PENDING, f"not running yet: {_names(down)}")


def _waiting(reason: str, message: str) -> str:
    return f"{reason}: {message}" if message else reason


def _left(unit: Unit) -> bool:
    """Whether its pods ended well: they were told to leave, and the job is about to end."""
    return not unit.missing and all(is_alive(pod) or ended_well(pod) for pod in unit.pods.values())


def _names(units: Iterable[Unit]) -> str:
    names = [unit.name for unit in units]
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _running(outlook: Outlook, old: dict[str, Condition]) -> Say:
    rest = _at_rest(outlook)
    if rest is not None:
        return rest
    if outlook.stage is Stage.STOPPING:
        return Say("False", Reason.STOP_REQUESTED)
    before = old.get(ConditionType.RUNNING)
    ran = before is not None and (before.status == "True" or before.reason in _LOST)
    units, progress = outlook.units, outlook.progress
    assert units is not None
    for unit, reason in ((units.coordinator, Reason.COORDINATOR_LOST), (units.actor, Reason.ACTOR_LOST)):
        if not (unit.is_up or _left(unit)):
            return Say("False", reason, unit.state.reason) if ran else Say("False", Reason.NOT_STARTED)
    if progress is None or _is_older(progress.received, units.actor.state.created):
        return _keep(before, Say("False", Reason.NOT_STARTED))
    return _as_reported(outlook, before, ran=ran)


def _as_reported(outlook: Outlook, before: Condition | None, *, ran: bool) -> Say:
    assert outlook.progress is not None
    match outlook.progress.phase:
        case Phase.RUNNING:
            return _taking_steps(outlook)
        case Phase.STOPPING | Phase.STOPPED:
            return Say("False", Reason.STOP_REQUESTED)
        case Phase.STARTING | Phase.RECOVERING if not ran:
            return Say("False", Reason.NOT_STARTED)
        case Phase.RECOVERING:
            return Say("False", Reason.ACTOR_LOST, outlook.progress.missing)
        case Phase.STARTING:
            lost = before is not None and before.reason in _LOST
            return (
                _keep(before, Say("False", Reason.NOT_STARTED))
                if lost
                else Say("False", Reason.COORDINATOR_LOST)
            )
        case _:  # it has ended, and its pod is about to
            return _keep(before, Say("False", Reason.NOT_STARTED))


def _taking_steps(outlook: Outlook) -> Say:
    assert outlook.units is not None
    replaced = [unit for unit in outlook.units.wanted if not (unit.is_up or _left(unit))]
    again = [unit for unit in replaced if unit.state.incarnation > 1]
    if again:
        return Say("True", Reason.REPLICA_LOST, f"replaced while training goes on: {_names(again)}")
    return Say("True", Reason.TAKING_STEPS)


def _is_older(time: datetime, than: datetime | None) -> bool:
    return than is not None and time < than


def _keep(before: Condition | None, otherwise: Say) -> Say:
    """As it was."""
    if before is None:
        return otherwise
    return Say(before.status, before.reason, before.message)


def _degraded(outlook: Outlook, running: Say) -> Say:
    if running.status != "True" or outlook.units is None or outlook.live is None:
        return Say("False", running.reason)
    live = outlook.live
    least = {ROLLOUT: live.min_rollout_replicas, REWARD: live.min_reward_replicas}
    short = [
        f"{count} {role} replicas of at least {least[role]}"
        for role in least
        if (count := _present(outlook, role)) < least[role]
    ]
    return (
        Say("True", Reason.BELOW_MIN_REPLICAS, ", ".join(short))
        if short
        else Say("False", Reason.ENOUGH_REPLICAS)
    )


def _present(outlook: Outlook, role: str) -> int:
    """Replicas that run and, as far as is known, are registered."""
    assert outlook.units is not None
    up = sum(unit.is_up or _left(unit) for unit in outlook.units.of_role(role))
    progress = outlook.progress
    return up if progress is None else min(up, progress.ready.get(role, up))


def _metrics_healthy(outlook: Outlook, old: dict[str, Condition]) -> Say:
    progress = outlook.progress
    if progress is None or not (progress.metrics or progress.not_finite):
        return _keep(old.get(ConditionType.METRICS_HEALTHY), Say("Unknown", Reason.NOT_STARTED))
    bad = not_finite(progress)
    if bad:
        return Say("False", Reason.NOT_FINITE, f"not finite: {', '.join(bad)}")
    return Say("True", Reason.ALL_FINITE)


def _suspended(draft: Draft, outlook: Outlook, old: dict[str, Condition]) -> Say:
    status = draft.status
    match outlook.stage:
        case Stage.HELD:
            return Say("True", Reason.SUSPEND_REQUESTED, stop_in_words(status.stop, status.checkpoint))
        case Stage.STOPPING:
            return Say("False", Reason.SUSPEND_REQUESTED, stop_in_words(status.stop, status.checkpoint))
        case _:
            before = old.get(ConditionType.SUSPENDED)
            again = before is not None and before.reason in _SUSPENDS
            return Say("False", Reason.RESUMED if again else Reason.NOT_SUSPENDED)


def stop_in_words(stop: StopState | None, checkpoint: CheckpointState | None) -> str:
    """What became of the training state when the job was stopped."""
    if stop is None:
        return "not started yet"
    if stop.saved is None:
        return "a checkpoint is being written"
    last = "" if checkpoint is None else f"the checkpoint of step {checkpoint.step} at {checkpoint.path}"
    if stop.saved:
        return f"it resumes from {last}" if last else "stopped before the first step"
    return f"no new checkpoint was written: it resumes from {last or 'the start'}"


def _ended(outlook: Outlook, stage: Stage) -> Say:
    if outlook.end is None:
        return Say("False", Reason.NOT_FINISHED)
    return outlook.end if outlook.stage is stage else Say("False", outlook.end.reason)


def phase_of(conditions: Iterable[Condition]) -> Phase:
    """The phase, from the conditions alone."""
    by_type = {condition.type: condition for condition in conditions}
    return next(phase for phase, holds in _PHASES if holds(by_type))


def _holds(kind: ConditionType) -> Callable[[dict[str, Condition]], bool]:
    return lambda by_type: by_type[kind].status == "True"


def _is_invalid(by_type: dict[str, Condition]) -> bool:
    validated = by_type[ConditionType.VALIDATED]
    return validated.status == "False" and validated.reason != Reason.INVALID_EDIT


def _because(kind: ConditionType, *reasons: Reason) -> Callable[[dict[str, Condition]], bool]:
    return lambda by_type: by_type[kind].status != "True" and by_type[kind].reason in reasons


_PHASES: tuple[tuple[Phase, Callable[[dict[str, Condition]], bool]], ...] = (
    (Phase.FAILED, _holds(ConditionType.FAILED)),
    (Phase.COMPLETE, _holds(ConditionType.COMPLETE)),
    (Phase.INVALID, _is_invalid),
    (Phase.SUSPENDED, _holds(ConditionType.SUSPENDED)),
    (Phase.SUSPENDING, _because(ConditionType.SUSPENDED, Reason.SUSPEND_REQUESTED)),
    (Phase.RUNNING, _holds(ConditionType.RUNNING)),
    (Phase.STOPPING, _because(ConditionType.RUNNING, Reason.STOP_REQUESTED)),
    (Phase.RECOVERING, _because(ConditionType.RUNNING, *_LOST)),
    (Phase.PENDING, _because(ConditionType.WORKERS_READY, *_PENDING)),
    (Phase.STARTING, lambda by_type: True),
)
"""The first that holds is the phase."""


def message_of(phase: Phase, conditions: Iterable[Condition], status: JobStatus, activity: str) -> str:
    """What the job is doing, or why it ended, in one line."""
    by_type = {condition.type: condition for condition in conditions}
    source = {
        Phase.FAILED: ConditionType.FAILED,
        Phase.COMPLETE: ConditionType.COMPLETE,
        Phase.INVALID: ConditionType.VALIDATED,
        Phase.SUSPENDED: ConditionType.SUSPENDED,
        Phase.SUSPENDING: ConditionType.SUSPENDED,
        Phase.RECOVERING: ConditionType.RUNNING,
    }.get(phase, ConditionType.WORKERS_READY)
    if phase is Phase.RUNNING or (phase is Phase.STARTING and activity):
        text = f"step {status.step} of {status.total_steps}" if status.total_steps else ""
        return ": ".join(part for part in (text, activity) if part)
    condition = by_type[source]
    return _one_line(condition.message) or sentence(condition.reason)


def sentence(reason: str) -> str:
    """What a reason means; a newer operator's reason speaks for itself."""
    return next((known.text for known in Reason if known == reason), reason)


def _one_line(text: str) -> str:
    return " / ".join(line.strip() for line in text.splitlines() if line.strip())[:MAX_EVENT_MESSAGE]


def transitions(old: Iterable[Condition], new: Iterable[Condition]) -> tuple[Event, ...]:
    """An event for each condition whose status changed, and for those that are true from the start."""
    before = {condition.type: condition.status for condition in old}
    return tuple(
        _event(condition)
        for condition in new
        if before.get(condition.type, _initial(condition.type)) != condition.status
    )


def _initial(kind: str) -> str:
    return "Unknown" if kind in (ConditionType.VALIDATED, ConditionType.METRICS_HEALTHY) else "False"


def _event(condition: Condition) -> Event:
    warns = (condition.type, condition.status) in _WARNINGS or condition.reason == Reason.WAITING_FOR_QUOTA
    words = condition.message or sentence(condition.reason)
    return Event(
        type="Warning" if warns else "Normal",
        reason=condition.reason,
        message=f"{condition.type} is {condition.status}: {words}"[:MAX_EVENT_MESSAGE],
    )
