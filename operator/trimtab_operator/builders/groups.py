"""Which pod groups a resolved job has, for live replica counts.

Called by `reconcile`, which compares them with the pods that exist. One group per role today; the
order (coordinator, actor, rollout, reward) is that in which pods are created.
"""

from trimtab_operator.builders.roles import resolved_role
from trimtab_operator.constants import LABEL_JOB_UID, LABEL_ROLE, REWARD, ROLES, ROLLOUT
from trimtab_operator.model.plan import PodGroup
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


def rollout_selector(job_uid: str) -> str:
    """`status.rolloutSelector`: what `kubectl scale` and autoscalers find the rollout pods by."""
    return f"{LABEL_JOB_UID}={job_uid},{LABEL_ROLE}={ROLLOUT}"
