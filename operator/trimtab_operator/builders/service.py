"""The headless Service: gives the coordinator a name, ready or not.

The others are reached by the addresses that they register with: a name for each would be written anew, twice,
for all of them whenever one of them changes.
"""

from trimtab_operator.builders.meta import Manifest, child
from trimtab_operator.constants import CONTROL_PORT, COORDINATOR, LABEL_JOB_UID, LABEL_ROLE
from trimtab_operator.model.resolved import Resolved


def service(resolved: Resolved) -> Manifest:
    """`coordinator-0-0.<job>.<namespace>.svc` resolves to its pod from before that is ready."""
    return child(resolved, api_version="v1", kind="Service", name=resolved.resolved_job.job.name) | {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL_JOB_UID: resolved.job_uid, LABEL_ROLE: COORDINATOR},
            "ports": [{"name": "control", "port": CONTROL_PORT, "protocol": "TCP"}],
        }
    }


def service_domain(resolved: Resolved) -> str:
    """What the names of the job's pods end in."""
    metadata = resolved.resolved_job.job.metadata
    return f"{metadata.name}.{metadata.namespace}.svc.{resolved.settings.cluster_domain}"
