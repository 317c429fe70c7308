"""Which units a job should have, and which pods are created and deleted for them."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from trimtab.api.conditions import Reason
from trimtab.api.status import RoleState, UnitState
from trimtab_operator.builders.groups import pod_groups
from trimtab_operator.builders.roles import resolved_role
from trimtab_operator.constants import ACTOR, COORDINATOR, REWARD, ROLES, ROLLOUT
from trimtab_operator.model.actions import ACT_WITHIN_S, CreatePod, DeletePod, EnsureChildren, Resize
from trimtab_operator.model.observed import BY_TAINT, Pod, Progress
from trimtab_operator.model.plan import PodGroup, PodPlan
from trimtab_operator.model.resolved import Resolved
from trimtab_operator.reconcile.clock import Clock
from trimtab_operator.reconcile.draft import Draft
from trimtab_operator.reconcile.progress import present
from trimtab_operator.reconcile.spec import Live
from trimtab_operator.reconcile.units import EXCLUSIVE, Survey, Unit, has_ended, split_name

ASK_AGAIN_S = ACT_WITHIN_S + 5.0
"""After which a pod that was asked for and is not there was not created. Also between two incarnations."""
FORCE_AGAIN_S = 30.0
REFUSED_AGAIN_S = 60.0
LONGEST_REFUSED_S = 300.0
"""Bounds of the pause while a quota or a webhook refuses pods; it is a quarter of the time waited so far."""


def groups_of(resolved: Resolved, live: Live) -> tuple[PodGroup, ...]:
    """The job's pod groups, with the replicas that the spec asks for now."""
    return pod_groups(resolved, rollout_replicas=live.rollout_replicas, reward_replicas=live.reward_replicas)


def new_ledger(
    groups: Sequence[PodGroup], before: Sequence[UnitState], clock: Clock
) -> tuple[UnitState, ...]:
    """The units of a new attempt; none is made while a create of the attempt before may be under way."""
    held = {unit.name: _held_until(unit, clock) for unit in before}
    names = [f"{group.roles[0]}-{replica}" for group in groups for replica in range(group.replicas)]
    return tuple(UnitState(name=name, not_before=held.get(name)) for name in names)


def _held_until(unit: UnitState, clock: Clock) -> datetime | None:
    """Until when pods of the unit that were asked for may still come into being; None: they do not."""
    asked = unit.created is not None and not unit.seen
    until = creates_over(unit.created) if asked else unit.not_before
    return None if until is None or until <= clock.now else min(until, clock.after(ASK_AGAIN_S))


def creates_over(asked: datetime | None) -> datetime | None:
    """When no create that was decided on at that time can be under way any more: see ACT_WITHIN_S."""
    return None if asked is None else asked + timedelta(seconds=ASK_AGAIN_S)


def scaled(ledger: tuple[UnitState, ...], groups: Sequence[PodGroup]) -> tuple[UnitState, ...]:
    """The ledger with as many units as the groups have: the highest go first, and come back as new ones."""
    known = {unit.name: unit for unit in ledger}
    units: list[UnitState] = []
    for group in groups:
        role = group.roles[0]
        names = [f"{role}-{replica}" for replica in range(group.replicas)]
        units += [_wanted(known.pop(name, None), name) for name in names]
        rest = [unit for unit in known.values() if split_name(unit.name)[0] == role]
        units += [unit if unit.retired else unit.model_copy(update={"retired": True}) for unit in rest]
    new = tuple(units)
    return ledger if new == ledger else new


def _wanted(unit: UnitState | None, name: str) -> UnitState:
    if unit is None:
        return UnitState(name=name)
    if not unit.retired:
        return unit
    return UnitState(name=name, incarnation=unit.incarnation + 1, restarts=unit.restarts)


def scale(draft: Draft, groups: Sequence[PodGroup]) -> None:
    """Bring the ledger to the size that the spec asks for."""
    ledger = draft.status.units
    units = scaled(ledger, groups)
    if units is ledger:
        return
    draft.update(units=units)
    counts = ", ".join(
        f"{group.name} {group.replicas}" for group in groups if group.name in (ROLLOUT, REWARD)
    )
    draft.tell("Normal", Reason.SCALED, f"replicas wanted: {counts}")


def children(resolved: Resolved, live: Live) -> EnsureChildren:
    """What the attempt needs beside pods."""
    return EnsureChildren(
        resolved=resolved,
        rollout_replicas=live.rollout_replicas,
        min_rollout_replicas=live.min_rollout_replicas,
        reward_replicas=live.reward_replicas,
        min_reward_replicas=live.min_reward_replicas,
    )


def resize(progress: Progress, live: Live) -> Resize | None:
    """What to tell a coordinator that works with other numbers than the spec's; None: it knows them."""
    wanted = {ROLLOUT: live.rollout_replicas, REWARD: live.reward_replicas}
    least = {ROLLOUT: live.min_rollout_replicas, REWARD: live.min_reward_replicas}
    desired, minimum = progress.desired, progress.minimum
    if all(
        desired.get(role, n) == n and minimum.get(role, least[role]) == least[role]
        for role, n in wanted.items()
    ):
        return None
    return Resize(
        rollout_replicas=live.rollout_replicas,
        min_rollout_replicas=live.min_rollout_replicas,
        reward_replicas=live.reward_replicas,
        min_reward_replicas=live.min_reward_replicas,
    )


def create_pods(draft: Draft, units: Survey, resolved: Resolved) -> None:
    """Ask for the pods that are missing, where nothing stands against it."""
    for unit in units.wanted:
        if unit.missing and _may_create(draft, unit):
            if unit.state.created is not None:
                draft.make_sure()
            unit.change(created=draft.clock.now, not_before=None)
            draft.clock.soon(ASK_AGAIN_S)
            for node in unit.missing:
                draft.act(
                    CreatePod(
                        plan=_plan(draft, unit, node), resolved=resolved, exclusive=_exclusive(draft, unit)
                    )
                )


def _may_create(draft: Draft, unit: Unit) -> bool:
    state, clock = unit.state, draft.clock
    if state.not_before is not None and not clock.passed(state.not_before):
        return False
    if state.created is not None and not clock.been(_ask_again_s(draft), state.created):
        return False
    if unit.role in EXCLUSIVE:
        return all(map(has_ended, unit.older))
    return all(has_ended(pod) or pod.deleted is not None for pod in unit.older)


def _ask_again_s(draft: Draft) -> float:
    if not draft.observed.refused:
        return ASK_AGAIN_S
    since = draft.status.pending_since
    waited_s = 0.0 if since is None else (draft.clock.now - since).total_seconds()
    return min(max(waited_s / 4, REFUSED_AGAIN_S), LONGEST_REFUSED_S)


def _exclusive(draft: Draft, unit: Unit) -> bool:
    return unit.role in EXCLUSIVE and (draft.status.starts > 1 or unit.state.incarnation > 1)


def _plan(draft: Draft, unit: Unit, node: int) -> PodPlan:
    return PodPlan(
        job=draft.job.name,
        job_uid=draft.job.uid,
        group=unit.role,
        role=unit.role,
        replica=unit.replica,
        node=node,
        incarnation=unit.state.incarnation,
        attempt=draft.status.attempt,
    )


def delete_outdated(draft: Draft, units: Survey) -> None:
    """Delete the pods of earlier incarnations and attempts, and of units that are not wanted any more."""
    for unit in units.units.values():
        why = "its replica is not wanted any more" if unit.state.retired else f"replaced: {unit.state.reason}"
        for pod in unit.older:
            if _may_be_saving(draft, unit, pod):
                draft.delete(pod, why)
            else:
                draft.remove(pod, why)
    for pod in units.stray:
        draft.remove(pod, "of an earlier start of the job")


def _may_be_saving(draft: Draft, unit: Unit, pod: Pod) -> bool:
    """Whether it may be at its last checkpoint, as an actor is that was told to leave and is all there."""
    progress = present(draft)
    given_up = progress is not None and any(
        (wish.role, wish.replica) == (unit.role, unit.replica) and wish.incarnation >= pod.incarnation
        for wish in progress.restart_wishes
    )
    torn = any(has_ended(other) for other in unit.older if other.incarnation == pod.incarnation)
    return unit.role == ACTOR and not (given_up or torn or _is_out_of_reach(pod))


def _is_out_of_reach(pod: Pod) -> bool:
    """Whether its node is: its pods are then taken away, and Kubernetes calls them not ready."""
    return pod.disruption == BY_TAINT and not pod.ready


def gang_waits(units: Survey, live: Live) -> bool:
    """Whether pods that the job cannot do without have no node: those that have one hold it for nothing."""
    if units.coordinator.waits or units.actor.waits:
        return True
    least = {ROLLOUT: live.min_rollout_replicas, REWARD: live.min_reward_replicas}
    return any(sum(not unit.waits for unit in units.of_role(role)) < count for role, count in least.items())


def note_waiting(draft: Draft, units: Survey, live: Live) -> None:
    """Remember since when the job waits for nodes."""
    if not gang_waits(units, live):
        draft.update(pending_since=None)
        return
    since = draft.status.pending_since or draft.clock.now
    draft.update(pending_since=since)
    draft.clock.been(live.pending_deadline_s, since)


def force_delete(draft: Draft) -> None:
    """Delete by force what a dead node keeps Terminating past its time."""
    for pod in draft.observed.pods:
        limit_s = draft.observed.settings.terminating_deadline_s
        if pod.deleted is not None and draft.clock.been(limit_s, pod.deleted):
            why = f"still there {limit_s} s after it should have been gone"
            draft.act(DeletePod(name=pod.name, uid=pod.uid, why=why, grace_s=0))
            draft.tell("Warning", Reason.POD_FORCED, f"{pod.name} on {pod.node_name or 'no node'}: {why}")
            draft.clock.soon(FORCE_AGAIN_S)


def note_seen(units: Survey) -> None:
    """Remember the units whose pods have all been there."""
    for unit in units.wanted:
        if not unit.state.seen and unit.state.created is not None and not unit.missing:
            unit.change(seen=True)


def note_sizes(draft: Draft, units: Survey, resolved: Resolved, progress: Progress | None) -> None:
    """Write the ledger and the counts by role into the status."""
    before = {state.name: state for state in draft.status.roles}
    roles = []
    for role in ROLES:
        old = before.get(role, RoleState(name=role))
        roles.append(_role_state(old, units.of_role(role), resolved, progress))
    created = sum(unit.state.created is not None for unit in units.of_role(ROLLOUT))
    draft.update(units=units.ledger, roles=tuple(roles), rollout_replicas=created)


def _role_state(
    old: RoleState, units: list[Unit], resolved: Resolved, progress: Progress | None
) -> RoleState:
    replicas = sum(unit.nodes for unit in units)
    up = sum(unit.nodes for unit in units if unit.is_up)
    ready = min(up, _ready(old, resolved, progress))
    if (replicas, ready) == (old.replicas, old.ready):
        return old
    return old.model_copy(update={"replicas": replicas, "ready": ready})


def _ready(old: RoleState, resolved: Resolved, progress: Progress | None) -> int:
    """Pods whose workers are registered, as far as is known."""
    if progress is None:
        return old.ready
    if old.name == COORDINATOR:
        return 1
    ranks = max(1, resolved_role(resolved, ACTOR).gpus_per_node) if old.name == ACTOR else 1
    return progress.ready.get(old.name, 0) // ranks
