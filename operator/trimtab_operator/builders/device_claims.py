"""ResourceClaimTemplates: the GPUs of each role's pods where a DeviceClass gives them (DRA)."""

from trimtab_operator.builders.accelerator import CLAIM, claim_template_name, device_class
from trimtab_operator.builders.meta import Manifest, child
from trimtab_operator.builders.roles import resolved_role
from trimtab_operator.constants import ROLES
from trimtab_operator.model.resolved import Resolved


def device_claim_templates(resolved: Resolved) -> list[Manifest]:
    """One for each role with GPUs, from which every pod of it gets a claim of its own."""
    job = resolved.resolved_job.job
    chosen = device_class(job.spec)
    if chosen is None:
        return []
    templates = []
    for name in ROLES:
        count = resolved_role(resolved, name).gpus_per_node
        if count == 0:
            continue
        exactly = {"deviceClassName": chosen, "allocationMode": "ExactCount", "count": count}
        head = child(
            resolved,
            api_version="resource.k8s.io/v1",
            kind="ResourceClaimTemplate",
            name=claim_template_name(job.name, name),
        )
        templates.append(
            head | {"spec": {"spec": {"devices": {"requests": [{"name": CLAIM, "exactly": exactly}]}}}}
        )
    return templates
