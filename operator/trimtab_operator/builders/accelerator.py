"""How a pod asks for its GPUs: a device plugin's resource, or a claim (dynamic resource allocation)."""

from typing import Any, Final

from trimtab.api import JobSpec
from trimtab_operator.builders.roles import Role

CLAIM: Final = "gpu"
"""Name of the pod's resource claim."""


def resource_name(spec: JobSpec) -> str | None:
    """The resource that nodes count GPUs as; None: GPUs are claimed from a DeviceClass."""
    resource = spec.scheduling.accelerator.resource
    return None if resource is None else resource.name


def device_class(spec: JobSpec) -> str | None:
    """The DeviceClass that GPUs are claimed from; None: GPUs are a resource of the nodes."""
    chosen = spec.scheduling.accelerator.device_class
    return None if chosen is None else chosen.name


def claim_template_name(job: str, role: str) -> str:
    """Name of the ResourceClaimTemplate of a role's pods."""
    return f"{job}-gpu-{role}"


def device_resources(spec: JobSpec, role: Role) -> dict[str, Any]:
    """What the main container's `resources` has for the role's GPUs and RDMA devices."""
    if role.gpus_per_node == 0:
        return {}
    resources: dict[str, Any] = {}
    limits = {}
    if (name := resource_name(spec)) is not None:
        limits[name] = str(role.gpus_per_node)
    else:
        resources["claims"] = [{"name": CLAIM}]
    if spec.scheduling.rdma is not None:
        limits |= spec.scheduling.rdma.resources
    # Kubernetes takes the limits of such resources as the requests too.
    return resources | ({"limits": limits} if limits else {})


def pod_claims(spec: JobSpec, role: Role, *, job: str) -> list[dict[str, Any]]:
    """`resourceClaims` of the pod."""
    if role.gpus_per_node == 0 or device_class(spec) is None:
        return []
    return [{"name": CLAIM, "resourceClaimTemplateName": claim_template_name(job, role.name)}]


def on_host_network(spec: JobSpec, role: Role) -> bool:
    """Whether the role's pods share the network of their node."""
    return spec.scheduling.rdma is not None and spec.scheduling.rdma.host_network and uses_rdma(spec, role)


def uses_rdma(spec: JobSpec, role: Role) -> bool:
    """Whether the role's pods get the RDMA profile: those with GPUs."""
    return spec.scheduling.rdma is not None and role.gpus_per_node > 0
