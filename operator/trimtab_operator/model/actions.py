"""What `reconcile` wants done. The adapter carries these out; each is safe to repeat.

The order of a decision: the status is written first, with the resourceVersion that was observed; only
when that succeeded, or nothing in it changed, are the actions carried out, in parallel. So two operators
that decide on the same observation act once: one of their writes fails, and it looks again. Everything
that a later decision must remember (attempt, incarnations, pauses) is in the status before the first act
that depends on it.
"""

from dataclasses import dataclass
from typing import Literal

from trimtab.api.status import JobStatus
from trimtab_operator.model.plan import PodPlan
from trimtab_operator.model.resolved import Resolved


@dataclass(frozen=True, kw_only=True)
class CreateResolved:
    """POST the immutable ConfigMap; where it exists with the job as owner, the stored one counts."""

    resolved: Resolved


@dataclass(frozen=True, kw_only=True)
class EnsureChildren:
    """Server-side apply what the attempt needs beside pods.

    Service, TLS Secret, NetworkPolicy, PodDisruptionBudgets, claim templates, PVC. The adapter skips what
    it applied lately unchanged.
    """

    resolved: Resolved
    rollout_replicas: int
    reward_replicas: int


@dataclass(frozen=True, kw_only=True)
class CreatePod:
    """POST a pod, never server-side apply. A conflict with a pod of the same job uid is success."""

    plan: PodPlan
    resolved: Resolved


@dataclass(frozen=True, kw_only=True)
class DeletePod:
    """Delete with a uid precondition; gone already is success. `grace_s` None: the pod's own; 0: by force."""

    name: str
    uid: str
    why: str
    grace_s: int | None = None


@dataclass(frozen=True, kw_only=True)
class StopTraining:
    """JobControl.Stop at the coordinator: finish or fall back, write a checkpoint, exit 0."""

    reason: str
    grace_s: float


@dataclass(frozen=True, kw_only=True)
class ResizeRollouts:
    """Tell the coordinator how many rollout replicas the job now has."""

    replicas: int
    min_replicas: int


@dataclass(frozen=True, kw_only=True)
class DeleteJob:
    """Delete the job itself (its TTL has passed), with a uid precondition."""

    uid: str


@dataclass(frozen=True, kw_only=True)
class Event:
    """A Kubernetes event about the job."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


Action = CreateResolved | EnsureChildren | CreatePod | DeletePod | StopTraining | ResizeRollouts | DeleteJob


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The outcome of one look at a job."""

    status: JobStatus
    """As it should be; the adapter writes it where it differs from what was observed."""
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    """Published once the status is written."""
    requeue_after_s: float | None = None
    """Look again after this; None: only when something changes (or at the resync)."""
