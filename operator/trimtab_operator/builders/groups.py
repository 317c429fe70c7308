"""Which pods a resolved job has, for live replica counts and incarnations.

Called by `reconcile`, which compares the plans with the pods that exist. One group per role today; the
order (coordinator, actor, rollout, reward) is that in which pods are created.
"""

from collections.abc import Mapping

from trimtab_operator.builders.roles import resolved_role
from trimtab_operator.constants import LABEL_JOB_UID, LABEL_ROLE, REWARD, ROLES, ROLLOUT
from trimtab_operator.model.plan import PodGroup, PodPlan
from trimtab_operator.model.resolved import Resolved


def pod_groups(resolved: Resolved, *, rollout_replicas: int, reward_replicas: int) -> tuple[PodGroup, ...]:
    """The job's pod groups, each with as many units as the live spec asks for."""
    live = {ROLLOUT: rollout_replicas, REWARD: reward_replicas}
    groups = []
    for name in ROLES:
        role = resolved_role(resolved, name)
        groups.append(
            PodGroup(
                name=name,
                roles=(name,),
                replicas=live.get(name, role.replicas),
                nodes=role.nodes,
                gpus_per_node=role.gpus_per_node,
            )
        )
    return tuple(groups)


def unit_names(resolved: Resolved, *, rollout_replicas: int, reward_replicas: int) -> tuple[str, ...]:
    """What restarts together, by name: `coordinator-0`, `actor-0`, `rollout-0`, ..., `reward-0`, ..."""
    groups = pod_groups(resolved, rollout_replicas=rollout_replicas, reward_replicas=reward_replicas)
    return tuple(f"{group.roles[0]}-{index}" for group in groups for index in range(group.replicas))


def pod_plans(
    resolved: Resolved, *, rollout_replicas: int, reward_replicas: int, incarnations: Mapping[str, int]
) -> tuple[PodPlan, ...]:
    """Every pod that should exist; a unit that `incarnations` (by unit name) has not is at its first."""
    groups = pod_groups(resolved, rollout_replicas=rollout_replicas, reward_replicas=reward_replicas)
    return tuple(
        PodPlan(
            job=resolved.resolved_job.job.name,
            job_uid=resolved.job_uid,
            group=group.name,
            role=group.roles[0],
            replica=replica,
            node=node,
            incarnation=incarnations.get(f"{group.roles[0]}-{replica}", 1),
            attempt=resolved.attempt,
        )
        for group in groups
        for replica in range(group.replicas)
        for node in range(group.nodes)
    )


def rollout_selector(job_uid: str) -> str:
    """`status.rolloutSelector`: what `kubectl scale` and autoscalers find the rollout pods by."""
    return f"{LABEL_JOB_UID}={job_uid},{LABEL_ROLE}={ROLLOUT}"
