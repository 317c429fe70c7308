"""Names that the operator writes into Kubernetes objects, one place for all of them."""

from typing import Final

GROUP: Final = "trimtab.dev"
VERSION: Final = "v1alpha1"
PLURAL: Final = "rltrainingjobs"
KIND: Final = "RLTrainingJob"
API_VERSION: Final = f"{GROUP}/{VERSION}"
MANAGER: Final = "trimtab.dev/operator"
"""Value of `spec.managedBy` (or none) that this operator acts on; also its field manager."""

# Labels of everything that belongs to a job.
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "trimtab"
LABEL_JOB: Final = "trimtab.dev/job"
"""Name of the job."""
LABEL_JOB_UID: Final = "trimtab.dev/job-uid"
LABEL_ROLE: Final = "trimtab.dev/role"
LABEL_GROUP: Final = "trimtab.dev/pod-group"
"""Name of the pod group (the roles that share a pod); today the role."""
LABEL_REPLICA: Final = "trimtab.dev/replica"
LABEL_NODE: Final = "trimtab.dev/node"
"""Pod within its replica."""
LABEL_INCARNATION: Final = "trimtab.dev/incarnation"
LABEL_ATTEMPT: Final = "trimtab.dev/attempt"

COORDINATOR: Final = "coordinator"
ACTOR: Final = "actor"
ROLLOUT: Final = "rollout"
REWARD: Final = "reward"
ROLES: Final = (COORDINATOR, ACTOR, ROLLOUT, REWARD)
"""In the order in which pods are made: the coordinator first, which all others dial."""

MAIN_CONTAINER: Final = "trimtab"
"""The container whose end is the pod's end; every other one is a sidecar."""

CONTROL_PORT: Final = 7070
"""The coordinator's gRPC port. The processes choose all other ports, and tell them at registration."""

METRICS_PORT: Final = 7071
"""Where the first rank of a pod serves its gauges, its other ranks on the ports after it.

Not on the host's network, where pods would meet: there the processes choose.
"""
LAST_METRICS_PORT: Final = METRICS_PORT + 63
"""Of the last rank that a pod can have (`gpusPerNode` is at most 64)."""

JOB_MOUNT: Final = "/etc/trimtab/job"
JOB_FILE: Final = "job.json"
"""Key in the resolved ConfigMap and file under JOB_MOUNT: `trimtab.api.ResolvedJob` as JSON."""
RENDERING_FILE: Final = "rendering.json"
"""Key in the resolved ConfigMap: what the operator renders further pods of this attempt from."""
TLS_MOUNT: Final = "/etc/trimtab/tls"
CODE_MOUNT: Final = "/etc/trimtab/code"
RUN_MOUNT: Final = "/trimtab/run"
"""Where spec.storage appears in every pod."""
