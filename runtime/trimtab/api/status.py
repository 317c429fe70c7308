"""`status` of an RLTrainingJob: what the operator writes and everybody reads.

One model for the CRD's status schema and for the operator's own reading. Fields that a newer version
wrote are ignored. `units` is the operator's ledger: what it must remember to act once and only once.

In the CRD `roles` and `units` are atomic lists: one operator writes all of them at once, and an owner that is
noted for every leaf was a sixth of what the API server did for a new job.
"""

import sys
from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from trimtab.api.base import ItemKeys, Model

Text = Annotated[str, StringConstraints(max_length=32768)]
Short = Annotated[str, StringConstraints(max_length=316)]
Whole = Annotated[int, Field(ge=0, le=2**53)]
Finite = Annotated[float, Field(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Every finite number: what is not would make the API server refuse the whole status."""


class StatusModel(Model):
    """Base of the status: unknown fields are ignored, as a newer operator may have written them."""

    model_config = ConfigDict(extra="ignore")


class Condition(StatusModel):
    """One condition, as in every Kubernetes object."""

    type: Short
    """Type, one of `ConditionType`."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Short
    """Why, one of `Reason`."""
    message: Text = ""
    """Why, in words."""
    last_transition_time: datetime
    """When `status` last changed."""
    observed_generation: Whole = 0
    """Generation of the spec that this was said of."""


class MetricsStatus(StatusModel):
    """The last step's numbers, finite ones alone."""

    reward: Finite | None = None
    """Mean reward of a response."""
    kl: Finite | None = None
    """KL to the reference, nats per token."""
    entropy: Finite | None = None
    """Entropy, nats per token."""
    response_length: Finite | None = None
    """Mean length of a response, in tokens."""
    tokens_per_second: Finite | None = None
    """Tokens of prompts and responses per second of a step."""
    staleness: Finite | None = None
    """Mean age of the tokens' weights, in versions."""


class RoleState(StatusModel):
    """One role's pods."""

    name: Short
    """The role."""
    replicas: Whole = 0
    """Pods that are wanted."""
    ready: Whole = 0
    """Workers that are registered, in pods."""
    restarts: Whole = 0
    """Restarts so far, of every kind."""


class CheckpointState(StatusModel):
    """The newest checkpoint."""

    step: Whole
    """Step after which it was written."""
    path: Text = ""
    """Where it is."""


class UnitState(StatusModel):
    """What restarts together: the coordinator, the actor (all ranks), a rollout or reward replica."""

    name: Short
    """`coordinator-0`, `actor-0`, `rollout-3`, `reward-0`."""
    incarnation: Annotated[int, Field(ge=1, le=2**31)] = 1
    """Of the pods that should exist; raised, and written, before a replacement is created."""
    failures: Whole = 0
    """Failures that counted against the budget since the last progress; sets the pause before the next."""
    restarts: Whole = 0
    """Restarts so far, of every kind."""
    not_before: datetime | None = None
    """No pod of this incarnation is created before this time."""
    created: datetime | None = None
    """When pods of this incarnation were last asked for; None: not yet."""
    seen: bool = False
    """Whether all its pods have been there: one that is missing then was removed."""
    stuck_since: datetime | None = None
    """Since when a container cannot be started (its image, its configuration); None: it can, as far as
    seen."""
    retired: bool = False
    """Beyond the replicas that are wanted; kept, so that a later one has an incarnation of its own."""
    reason: Text = ""
    """Why it was last restarted."""


class ResolvedState(StatusModel):
    """Which resolved spec the pods of this attempt run with."""

    name: Short
    """The immutable ConfigMap."""
    generation: Whole
    """Generation of the spec that it was resolved from."""
    identity: Short = ""
    """Training identity."""


class BudgetState(StatusModel):
    """Restarts that count, since the last progress."""

    used: Whole = 0
    """Restarts used up."""
    at_step: Whole = 0
    """Step at which the count began; a later step gives the budget back."""


class StopState(StatusModel):
    """A start of the job that is stopped on request, until it is resumed."""

    since: datetime
    """When the stop was asked for."""
    saved: bool | None = None
    """Whether the coordinator ended with a checkpoint; None: not known yet. Known, the pods go."""
    done: bool = False
    """Whether all pods are gone."""


class JobStatus(StatusModel):
    """`status`."""

    observed_generation: Whole = 0
    """Generation of the spec that this status is about."""
    phase: Short = ""
    """For printing: one of `Phase`, derived from the conditions."""
    message: Text = ""
    """What the job is doing or why it ended, in one line."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=32), ItemKeys("type")] = ()
    """The contract: one of each type."""
    attempt: Whole = 0
    """Fencing number of this start of the job; later is higher, also across jobs of the same name."""
    starts: Whole = 0
    """Starts of the job: 1 and one more for each resume or release of all pods."""
    start_time: datetime | None = None
    """When this start of the job began (reset by a resume)."""
    completion_time: datetime | None = None
    """When it ended."""
    pending_since: datetime | None = None
    """Since when pods that the job cannot do without wait for a node; None: all have one."""
    release_until: datetime | None = None
    """After all pods were released: when they are created again."""
    step: Whole = 0
    """Steps done."""
    total_steps: Whole = 0
    """Steps in all."""
    epoch: Finite = 0.0
    """Passes over the data."""
    metrics: MetricsStatus | None = None
    """The last step's numbers."""
    metrics_time: datetime | None = None
    """When `metrics` was last written; at most once a minute."""
    roles: Annotated[tuple[RoleState, ...], Field(max_length=32)] = ()
    """Pods by role."""
    checkpoint: CheckpointState | None = None
    """The newest checkpoint."""
    rollout_replicas: Whole = 0
    """Rollout replicas that exist (scale subresource)."""
    rollout_selector: Short = ""
    """Label selector of the rollout pods (scale subresource)."""
    restarts: Whole = 0
    """Restarts so far, of every kind."""
    budget: BudgetState = Field(default_factory=BudgetState)
    """Restarts that count."""
    units: Annotated[tuple[UnitState, ...], Field(max_length=65_536)] = ()
    """The operator's ledger."""
    resolved: ResolvedState | None = None
    """The resolved spec of this attempt."""
    stop: StopState | None = None
    """The stop that spec.suspend asked for; None: none since the last start."""
