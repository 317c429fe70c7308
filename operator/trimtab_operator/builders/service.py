"""The headless Service: gives every pod a name, ready or not."""

from trimtab_operator.builders.meta import Manifest, child
from trimtab_operator.constants import CONTROL_PORT, LABEL_JOB_UID
from trimtab_operator.model.resolved import Resolved


def service(resolved: Resolved) -> Manifest:
    """`<hostname>.<job>.<namespace>.svc` resolves to each pod from before it is ready."""
    return child(resolved, api_version="v1", kind="Service", name=resolved.resolved_job.job.name) | {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL_JOB_UID: resolved.job_uid},
            "ports": [{"name": "control", "port": CONTROL_PORT, "protocol": "TCP"}],
        }
    }


def service_domain(resolved: Resolved) -> str:
    """What the names of the job's pods end in."""
    metadata = resolved.resolved_job.job.metadata
    return f"{metadata.name}.{metadata.namespace}.svc.{resolved.settings.cluster_domain}"
