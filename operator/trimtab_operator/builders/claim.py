"""The PersistentVolumeClaim of `spec.storage.claim`: goes with the job that owns it."""

from typing import Any

from trimtab.api.base import format_bytes
from trimtab_operator.builders.meta import Manifest, child, claim_name
from trimtab_operator.model.resolved import Resolved


def run_claim(resolved: Resolved) -> Manifest | None:
    """The claim for the run; None: the job brings its own volume."""
    storage = resolved.resolved_job.job.spec.storage
    if storage is None or storage.claim is None:
        return None
    claim = storage.claim
    spec: dict[str, Any] = {
        "accessModes": list(claim.access_modes),
        "resources": {"requests": {"storage": format_bytes(claim.size)}},
    }
    if claim.storage_class_name is not None:
        spec["storageClassName"] = claim.storage_class_name
    name = claim_name(resolved.resolved_job.job.name)
    return child(resolved, api_version="v1", kind="PersistentVolumeClaim", name=name) | {"spec": spec}
