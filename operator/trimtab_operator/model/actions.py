"""What `reconcile` wants done. The adapter carries these out; each is safe to repeat.

The order of a decision: the status is written first, with the resourceVersion that was observed; only
when that succeeded, or nothing in it changed, are the actions carried out, in parallel. So two operators
that decide on the same observation act once: one of their writes fails, and it looks again. Everything
that a later decision must remember (attempt, incarnations, pauses) is in the status before the first act
that depends on it.
"""

from dataclasses import dataclass
from typing import Final, Literal

from trimtab.api.status import JobStatus
from trimtab_operator.model.plan import PodPlan
from trimtab_operator.model.resolved import Resolved

ACT_WITHIN_S: Final = 15.0
"""A pod is created within this time after the status was written, or not at all (look again instead).

Every create goes with a change of the status, so no two operators carry out the same one; and a pod that
this long after is not there was not created, whoever was to create it. Only then is it asked for again."""


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
    min_rollout_replicas: int
    reward_replicas: int
    min_reward_replicas: int


@dataclass(frozen=True, kw_only=True)
class CreatePod:
    """POST a pod, never server-side apply. A conflict with a pod of the same job uid is success.

    Within `ACT_WITHIN_S` of the status write that it follows, or not at all.
    """

    plan: PodPlan
    resolved: Resolved
    exclusive: bool = False
    """Whether no other pod of its unit may run beside it (coordinator and actor, where there were earlier
    ones): list the unit's pods from the API server first, by LABEL_JOB_UID, LABEL_ROLE and LABEL_REPLICA and
    not from a cache; where one of another incarnation or attempt has not ended, do not create it, and look
    at the job again."""


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
class Resize:
    """JobControl.Resize: how many rollout and reward replicas the job now has."""

    rollout_replicas: int
    min_rollout_replicas: int
    reward_replicas: int
    min_reward_replicas: int


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


Action = CreateResolved | EnsureChildren | CreatePod | DeletePod | StopTraining | Resize | DeleteJob


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The outcome of one look at a job."""

    status: JobStatus
    """As it should be; the adapter writes it where it differs from what was observed."""
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    """Published once the status is written."""
    list_pods: bool = False
    """Nothing is decided yet: list the job's pods from the API server, and decide again (`pods_listed`).

    Asked for where a decision that cannot be taken back would rest on a pod that is not there, or is not
    placed yet: a cache does not know of what was created, or happened, just now. As the job was observed
    before the list, whatever another operator does between the two makes the status write fail."""
    requeue_after_s: float | None = None
    """Look again after this; None: only when something changes (or at the resync)."""
