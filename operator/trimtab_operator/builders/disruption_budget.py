"""PodDisruptionBudgets: how many rollout or reward pods a drain leaves.

Absolute numbers, as `maxUnavailable` over pods that a custom resource owns counts by its scale subresource.
The actor has none: it leaves with a checkpoint, all ranks at once.
"""

from trimtab_operator.builders.meta import Manifest, child, selector
from trimtab_operator.builders.roles import resolved_role
from trimtab_operator.constants import LABEL_ROLE
from trimtab_operator.model.resolved import Resolved


def disruption_budget(resolved: Resolved, role: str, *, replicas: int) -> Manifest:
    """One replica at a time may go: of one, that one, as a drain must end."""
    nodes = resolved_role(resolved, role).nodes
    name = f"{resolved.resolved_job.job.name}-{role}"
    return child(resolved, api_version="policy/v1", kind="PodDisruptionBudget", name=name) | {
        "spec": {
            "minAvailable": (replicas - 1) * nodes,
            "selector": selector(resolved, **{LABEL_ROLE: role}),
            # A pod that is not ready must not keep its node from being drained.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        }
    }
