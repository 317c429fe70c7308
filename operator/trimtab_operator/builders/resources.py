"""What a pod's containers ask of their node."""

from typing import Any, Final

from trimtab.api import JobSpec
from trimtab_operator.builders.accelerator import device_resources
from trimtab_operator.builders.roles import Role

_KINDS: Final = ("requests", "limits")
_PLAIN: Final = frozenset({"cpu", "memory", "ephemeral-storage"})


def container_resources(spec: JobSpec, role: Role) -> dict[str, Any]:
    """`resources` of the main container: the job's, for what it does not name the platform's; and devices.

    Of a resource that the job names at all, the platform's request and limit both go: its limit may be below
    the job's request.
    """
    job = role.spec.resources
    own = {"requests": job.requests, "limits": job.limits}
    named = job.requests.keys() | job.limits.keys()
    devices = device_resources(spec, role)
    result: dict[str, Any] = dict(job.model_extra or {})
    for kind in _KINDS:
        platform = {
            name: value for name, value in role.defaults.resources.get(kind, {}).items() if name not in named
        }
        together = platform | own[kind] | devices.get(kind, {})
        if together:
            result[kind] = together
    if "claims" in devices:
        result["claims"] = [*result.get("claims", ()), *devices["claims"]]
    return result


def plain_resources(resources: dict[str, Any]) -> dict[str, Any]:
    """The same without devices, for an init container: it runs before the main one, so it costs nothing."""
    plain = {
        kind: {name: value for name, value in resources.get(kind, {}).items() if name in _PLAIN}
        for kind in _KINDS
    }
    return {kind: values for kind, values in plain.items() if values}
