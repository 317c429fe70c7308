"""`RLTrainingJob`: the one source of the file that a user writes, of the CRD and of what each role reads."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trimtab.api.algorithm import AlgorithmSpec
from trimtab.api.base import Model
from trimtab.api.checks import raise_problems
from trimtab.api.data import DataSpec
from trimtab.api.kubernetes import Metadata, Scheduling, Volume, VolumeMount
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
    volumes: Annotated[tuple[Volume, ...], Field(max_length=64)] = ()
    """Volumes of all roles' pods. Empty by default. Has no meaning locally."""
    volume_mounts: Annotated[tuple[VolumeMount, ...], Field(max_length=64)] = ()
    """Where they appear in all roles' containers. Empty by default. Has no meaning locally."""
    suspend: bool = False
    """Whether the job holds: a checkpoint is written and the pods go; false resumes from it."""
    active_deadline_seconds: WholeSeconds | None = None
    """Seconds that the job may run in all before it fails; None: no limit."""
    pending_deadline_seconds: WholeSeconds | None = None
    """Seconds that pods may wait for a node before all are released and tried again; None: no limit."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=315_360_000)] | None = None
    """Seconds after its end at which the job is deleted; None: kept."""
    scheduling: Scheduling = Field(default_factory=Scheduling)
    """Where Kubernetes places the pods."""

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
