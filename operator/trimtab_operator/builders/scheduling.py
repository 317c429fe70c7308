"""Where a role's pods run: the job's `scheduling`, and for what it leaves open the platform's."""

from typing import Any

from trimtab_operator.builders.accelerator import on_host_network, pod_claims
from trimtab_operator.builders.meta import selector
from trimtab_operator.builders.roles import Role
from trimtab_operator.constants import LABEL_ROLE
from trimtab_operator.model.resolved import Resolved


def scheduling(resolved: Resolved, role: Role) -> dict[str, Any]:
    """Fields of the pod's spec; those that would be empty are left out."""
    job = resolved.resolved_job.job
    asked, settings, defaults = job.spec.scheduling, resolved.settings, role.defaults
    secrets = dict.fromkeys([*settings.image_pull_secrets, *asked.image_pull_secrets])
    tolerations = [toleration.model_dump(mode="json", exclude_none=True) for toleration in asked.tolerations]
    spread = [item.model_dump(mode="json", by_alias=True) for item in asked.topology_spread_constraints]
    host_network = on_host_network(job.spec, role)
    fields: dict[str, Any] = {
        "nodeSelector": defaults.node_selector | asked.node_selector,
        "tolerations": [*defaults.tolerations, *tolerations],
        "affinity": defaults.affinity | (asked.affinity or {}),
        "topologySpreadConstraints": [
            _of_the_role(resolved, role, item) for item in spread or defaults.topology_spread_constraints
        ],
        "priorityClassName": asked.priority_class_name or settings.priority_class_name,
        "runtimeClassName": asked.runtime_class_name or settings.runtime_class_name,
        "schedulerName": asked.scheduler_name or settings.scheduler_name,
        "imagePullSecrets": [{"name": name} for name in secrets],
        "resourceClaims": pod_claims(job.spec, role, job=job.name),
        "hostNetwork": host_network,
        "dnsPolicy": "ClusterFirstWithHostNet" if host_network else "",
    }
    return {name: value for name, value in fields.items() if value}


def _of_the_role(resolved: Resolved, role: Role, constraint: dict[str, Any]) -> dict[str, Any]:
    """A constraint without a selector, which would spread nothing, spreads the role's pods of this job."""
    if "labelSelector" in constraint:
        return constraint
    return constraint | {"labelSelector": selector(resolved, **{LABEL_ROLE: role.name})}
