"""Names, labels and owner of everything that the operator makes."""

from typing import Any, Final

from trimtab_operator.constants import (
    API_VERSION,
    KIND,
    LABEL_ATTEMPT,
    LABEL_GROUP,
    LABEL_INCARNATION,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_MANAGED_BY,
    LABEL_NODE,
    LABEL_REPLICA,
    LABEL_ROLE,
    MANAGED_BY,
)
from trimtab_operator.model.plan import PodPlan
from trimtab_operator.model.resolved import Resolved

Manifest = dict[str, Any]

POD_LABELS: Final = frozenset(
    {
        LABEL_MANAGED_BY,
        LABEL_JOB,
        LABEL_JOB_UID,
        LABEL_ROLE,
        LABEL_GROUP,
        LABEL_REPLICA,
        LABEL_NODE,
        LABEL_INCARNATION,
        LABEL_ATTEMPT,
    }
)
"""Labels of a pod by which the operator knows it."""


def tls_name(job: str) -> str:
    """Name of the Secret with a job's certificates and keys."""
    return f"{job}-tls"


def claim_name(job: str) -> str:
    """Name of the claim that is made for `spec.storage.claim`."""
    return f"{job}-run"


def labels(resolved: Resolved) -> dict[str, str]:
    """Labels of everything that belongs to the job."""
    return {
        LABEL_MANAGED_BY: MANAGED_BY,
        LABEL_JOB: resolved.resolved_job.job.name,
        LABEL_JOB_UID: resolved.job_uid,
    }


def selector(resolved: Resolved, **further: str) -> dict[str, Any]:
    """Label selector of the job's pods: by its uid, which no other job ever has."""
    return {"matchLabels": {LABEL_JOB_UID: resolved.job_uid} | further}


def pod_labels(plan: PodPlan) -> dict[str, str]:
    """What the operator finds a pod, and its place, by."""
    return {
        LABEL_MANAGED_BY: MANAGED_BY,
        LABEL_JOB: plan.job,
        LABEL_JOB_UID: plan.job_uid,
        LABEL_ROLE: plan.role,
        LABEL_GROUP: plan.group,
        LABEL_REPLICA: str(plan.replica),
        LABEL_NODE: str(plan.node),
        LABEL_INCARNATION: str(plan.incarnation),
        LABEL_ATTEMPT: str(plan.attempt),
    }


def owner_references(*, job: str, uid: str) -> list[Manifest]:
    """The job as owner: what the operator makes goes with it, and keeps nobody from deleting it."""
    return [
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": job,
            "uid": uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]


def child(resolved: Resolved, *, api_version: str, kind: str, name: str) -> Manifest:
    """Head of an object beside the pods."""
    metadata = resolved.resolved_job.job.metadata
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": metadata.namespace,
            "labels": labels(resolved),
            "ownerReferences": owner_references(job=metadata.name, uid=resolved.job_uid),
        },
    }
