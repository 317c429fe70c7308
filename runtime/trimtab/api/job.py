"""`RLTrainingJob`: the one source of the file that a user writes, of the CRD and of what each role reads."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from trimtab.api.algorithm import AlgorithmSpec
from trimtab.api.base import Format, ItemKeys, Model
from trimtab.api.checks import raise_problems
from trimtab.api.data import DataSpec
from trimtab.api.kubernetes import Metadata, NetworkPolicySpec, Scheduling, Volume, VolumeMount
from trimtab.api.model import CodeSpec, ModelSpec
from trimtab.api.operations import (
    CheckpointSpec,
    DeadlinesSpec,
    FailurePolicySpec,
    TrackingSpec,
    ValidationSpec,
    WeightSyncSpec,
    WholeSeconds,
)
from trimtab.api.rewards import RewardList
from trimtab.api.roles import RolesSpec
from trimtab.api.storage import StorageSpec
from trimtab.api.training import TrainingSpec

API_VERSION = "trimtab.dev/v1alpha1"
KIND = "RLTrainingJob"


class JobSpec(Model):
    """What to train, on what, how, and with which processes."""

    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed from which every random choice follows: order of the data, sampling, initialisation. 0 by
    default."""
    model: ModelSpec
    """The policy to start from, and its tokenizer."""
    code: CodeSpec | None = None
    """The user's own Python for rewards and datasets; None: only what is built in or installed."""
    data: DataSpec
    """The prompts."""
    algorithm: AlgorithmSpec
    """The algorithm."""
    training: TrainingSpec
    """Length, batches, optimiser, precision."""
    rewards: RewardList
    """The functions that score a response."""
    roles: RolesSpec = Field(default_factory=RolesSpec)
    """The processes. By default one of each on the CPU."""
    weight_sync: WeightSyncSpec = Field(default_factory=WeightSyncSpec)
    """How weights get to the rollout."""
    validation: ValidationSpec | None = None
    """Measuring on data of its own; None: not done."""
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec)
    """Checkpoints."""
    tracking: TrackingSpec = Field(default_factory=TrackingSpec)
    """What is recorded."""
    failure_policy: FailurePolicySpec = Field(default_factory=FailurePolicySpec)
    """How much may go wrong."""
    deadlines: DeadlinesSpec = Field(default_factory=DeadlinesSpec)
    """How long the job waits for its own parts."""
    storage: StorageSpec | None = None
    """Where the run folder is, with the journal and the checkpoints; None: `run` in `checkpoint.uri`, which
    then is below one of `volumeMounts`. Has no meaning locally."""
    volumes: Annotated[tuple[Volume, ...], Field(max_length=64), ItemKeys("name")] = ()
    """Volumes of all roles' pods. Empty by default. Has no meaning locally."""
    volume_mounts: Annotated[tuple[VolumeMount, ...], Field(max_length=64), ItemKeys("mount_path")] = ()
    """Where they appear in all roles' containers. Empty by default. Has no meaning locally."""
    suspend: bool = False
    """Whether the job holds: a checkpoint is written and the pods go; false resumes from it."""
    active_deadline_seconds: WholeSeconds | None = None
    """Seconds that the job may run in all before it fails; None: no limit."""
    pending_deadline_seconds: WholeSeconds = 1800
    """Seconds that pods may wait for a node before all are released and tried again, so that two jobs with
    half of their nodes do not wait for each other. Half an hour by default, in which a cloud adds GPU nodes.
    Has no meaning locally."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=315_360_000)] | None = None
    """Seconds after its end at which the job is deleted; None: kept."""
    cleanup_policy: Literal["Running", "All", "None"] = "Running"
    """Pods that are deleted when the job ends. `Running` by default: those still running, while finished ones
    stay for their logs. Has no meaning locally."""
    managed_by: (
        Annotated[
            str,
            StringConstraints(
                min_length=3,
                max_length=63,
                pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$",
            ),
            Format("a domain and a name such as trimtab.dev/operator"),
        ]
        | None
    ) = None
    """Controller that acts on the job; None or `trimtab.dev/operator`: Trimtab's. Never changes. Has no
    meaning locally."""
    scheduling: Scheduling = Field(default_factory=Scheduling)
    """Where Kubernetes places the pods."""
    network_policy: NetworkPolicySpec | None = None
    """Where the pods may connect to; None: what the platform's default says. Has no meaning locally."""

    @model_validator(mode="after")
    def _consistent(self) -> "JobSpec":
        raise_problems(self)
        return self


class RLTrainingJob(Model):
    """One RL training of a language model."""

    api_version: Literal["trimtab.dev/v1alpha1"] = "trimtab.dev/v1alpha1"
    """Version of the API."""
    kind: Literal["RLTrainingJob"] = "RLTrainingJob"
    """Kind of the object."""
    metadata: Metadata
    """Name and labels."""
    spec: JobSpec
    """What to train and how."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.metadata.name
