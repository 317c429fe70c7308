"""What the operator has observed of one job. Made by the adapter from (possibly stale) caches."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from trimtab.api.status import JobStatus
from trimtab_operator.model.resolved import Resolved, Settings

NOT_PREPARED: Final = "PodNotPrepared"
"""`Pod.waiting_reason` while its node has not set up its volumes or its network: a missing Secret or
ConfigMap, a volume that cannot be mounted. Our word, as the kubelet has none for it in the status."""
BY_TAINT: Final = "DeletionByTaintManager"
"""`Pod.disruption` where its node was lost, or nothing is to run there any more."""
PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The custom object."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    created: datetime
    deleted: datetime | None = None
    """deletionTimestamp: nothing is done any more, the garbage collector removes what it owns."""
    spec: Mapping[str, Any]
    """As stored; not validated yet."""
    status: JobStatus = field(default_factory=JobStatus)


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod of the job, trimmed to what decisions need. Places come from its labels."""

    name: str
    uid: str
    role: str
    replica: int
    node: int
    incarnation: int
    attempt: int
    phase: PodPhase
    created: datetime
    deleted: datetime | None = None
    """deletionTimestamp (grace included: the time at which it should be gone)."""
    node_name: str = ""
    """Empty: not scheduled yet."""
    started: datetime | None = None
    """status.startTime: when the kubelet took it on, before it pulled an image."""
    ready: bool = False
    exit_code: int | None = None
    """Of the main container, once it has terminated (sidecars do not matter), or of an init container that
    failed, so that the main one never ran."""
    exit_reason: str = ""
    """The kubelet's word for it (OOMKilled, Error, Completed, ContainerStatusUnknown)."""
    exit_message: str = ""
    """Termination message: the last lines, or the coordinator's final word (see `FinalWord`)."""
    finished: datetime | None = None
    disruption: str = ""
    """Why the cluster took it away (reason of the DisruptionTarget condition, or of the pod: Evicted,
    PreemptionByScheduler, DeletionByTaintManager, NodeLost, Preempting, Terminated by a node shutdown);
    empty: it was not."""
    waiting_reason: str = ""
    """Of the first container (init containers included) that cannot start: ErrImagePull, ..."""
    waiting_message: str = ""
    unschedulable: str = ""
    """The scheduler's words, while it finds no node."""


@dataclass(frozen=True, kw_only=True)
class RestartWish:
    """The coordinator's wish that a unit starts again; holds for every incarnation up to this one."""

    role: str
    replica: int
    incarnation: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What the coordinator last said over gRPC, or in its termination message (then `final`)."""

    attempt: int
    phase: str
    """The coordinator's phase: Starting, Running, Recovering, Stopping, Stopped, Complete, Failed."""
    incarnation: int | None = None
    """Of the coordinator's pod that said it (its label); None: not known."""
    activity: str = ""
    step: int = 0
    total_steps: int = 0
    epoch: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """By the runtime's names; finite or not."""
    not_finite: tuple[str, ...] = ()
    """Names of metrics that are not finite."""
    ready: Mapping[str, int] = field(default_factory=dict)
    """Registered workers by role."""
    desired: Mapping[str, int] = field(default_factory=dict)
    """Workers by role that the coordinator waits for."""
    minimum: Mapping[str, int] = field(default_factory=dict)
    """Workers by role without which it takes no step; a role that is not named is not known."""
    missing: str = ""
    """Who is missing, in words."""
    checkpoint_step: int = -1
    checkpoint_path: str = ""
    restart_wishes: tuple[RestartWish, ...] = ()
    reason: str = ""
    """At the end: one of `trimtab.api.conditions.Reason`."""
    message: str = ""
    """At the end: why it failed."""
    received: datetime
    surely_there: datetime | None = None
    """When the coordinator was known to be there, where that was later than it said anything."""
    final: bool = False
    """Whether it comes from the termination message: the coordinator has ended."""

    @property
    def heard(self) -> datetime:
        """When the coordinator last gave a sign of life."""
        return self.received if self.surely_there is None else max(self.received, self.surely_there)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Everything that one call of `reconcile` looks at."""

    job: Job
    pods: tuple[Pod, ...] = ()
    """Pods that carry the job's uid, those being deleted included."""
    pods_listed: bool = False
    """Whether the API server has listed them since `job` was observed; else they come from a cache, which may
    be behind: see `Decision.list_pods`."""
    progress: Progress | None = None
    """None: nothing heard yet, in this process's life or this attempt."""
    resolved: Resolved | None = None
    """The resolved spec that `job.status.resolved` names; None: not read, or not made yet."""
    claims: Mapping[str, tuple[str, ...]] | None = None
    """Access modes of the PersistentVolumeClaims that the job's volumes name; a missing claim has no
    entry. None: not looked up yet."""
    rehearsal: tuple[str, ...] = ()
    """What the API server finds wrong in the pods and the NetworkPolicy of the next start, by a dry run."""
    settings: Settings
    """The platform's defaults."""
    refused: str = ""
    """The API server's words where it lately refused to create a pod of this job (quota, webhook)."""
