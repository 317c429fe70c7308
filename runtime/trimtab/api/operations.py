"""The parts of a job around its training: weight sync, validation, checkpoints, tracking, limits."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.base import Bytes, Model, PathText, Seconds
from trimtab.api.data import DataSource
from trimtab.api.rewards import RewardList
from trimtab.api.roles import SamplingSpec
from trimtab.api.uris import folder_of

EverySteps = Annotated[int, Field(ge=1, le=10_000_000)]
WholeSeconds = Annotated[int, Field(ge=1, le=315_360_000)]


class WeightSyncSpec(Model):
    """How new weights get from the actor to the rollout engines."""

    bucket_bytes: Annotated[Bytes, Field(ge=1_048_576, le=2**36)] = 64 * 2**20
    """Bytes sent at once, or a quantity such as 64Mi; two such buffers are held. 64Mi by default."""
    timeout_seconds: Seconds = 300.0
    """Seconds that one transfer may take before both sides give up and name who is missing."""


class ValidationSamplingSpec(SamplingSpec):
    """How tokens are drawn when measuring."""

    temperature: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Divides the logits. 0 by default: greedy, so that two measurements of one policy agree."""


class ValidationSpec(Model):
    """Measuring the policy on data of its own."""

    data: DataSource
    """Rows to measure on; fields and templates are those of `spec.data`."""
    every_steps: EverySteps = 20
    """Steps between two measurements; the last step is measured in any case."""
    at_start: bool = True
    """Whether the untrained policy is measured too. On by default: a curve needs its start."""
    max_samples: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Rows of the data that are used, from its start; None: all."""
    sampling: ValidationSamplingSpec = Field(default_factory=ValidationSamplingSpec)
    """How tokens are drawn. Greedy by default."""
    max_response_tokens: Annotated[int, Field(ge=1, le=4_194_304)] | None = None
    """Longest response, in tokens; None: that of training."""
    rewards: RewardList | None = None
    """Functions that score; None: `spec.rewards`."""


class CheckpointSpec(Model):
    """When the training's state is written, where, and what is taken up again."""

    every_steps: EverySteps | None = 50
    """Steps between two checkpoints; None: only at the end and when the job is stopped."""
    keep: Annotated[int, Field(ge=1, le=10_000)] = 3
    """Newest checkpoints that are kept. 3 by default: a damaged one has others before it."""
    uri: PathText | None = None
    """Folder for the checkpoints, the same in every pod: a path, from the run's folder where it is relative,
    or file:///path. None: `checkpoints` in the run's folder."""
    resume: Literal["auto", "never", "required"] = "auto"
    """`auto`: from the newest whole checkpoint where there is one; `never`: from none that an earlier job has
    left there; `required`: fail without one."""
    export_at_end: bool = True
    """Whether the finished model is written in Hugging Face layout. On by default."""

    def directory(self, run_dir: Path) -> Path:
        """The folder for the checkpoints of a run."""
        return run_dir / ("checkpoints" if self.uri is None else folder_of(self.uri))


class HealthSpec(Model):
    """Limits beyond which a warning appears once, with what to try. None switches a rule off."""

    min_entropy: Annotated[float, Field(ge=0, le=100)] | None = 0.05
    """Entropy per token, in nats, below which the policy has collapsed; None: not watched."""
    max_kl: Annotated[float, Field(gt=0, le=1000)] | None = 0.5
    """KL to the reference per token, in nats; None: not watched."""
    max_latency_seconds: Seconds | None = None
    """Mean seconds of a response; None: not watched, as it depends on the model and its lengths."""
    max_log_prob_difference: Annotated[float, Field(gt=0, le=100)] | None = 0.15
    """Mean difference between the rollout's and the trainer's log-probs; None: not watched. bfloat16 gives
    0.06."""
    flat_reward_steps: Annotated[int, Field(ge=2, le=1_000_000)] | None = 50
    """Steps in which the mean reward must move; None: not watched."""
    min_reward_change: Annotated[float, Field(ge=0, le=1_000_000)] = 0.01
    """How far it must move in these steps."""
    max_truncated_share: Annotated[float, Field(gt=0, le=1)] | None = 0.5
    """Share of a step's responses that are cut off at maxResponseTokens; None: not watched."""


class TrackingSpec(Model):
    """What is recorded beside metrics.jsonl."""

    tensorboard: bool = True
    """Whether TensorBoard event files are written. On by default."""
    samples_per_step: Annotated[int, Field(ge=0, le=10_000)] = 4
    """Responses of each step that are kept to read. 4 by default; 0: none."""
    health: HealthSpec = Field(default_factory=HealthSpec)
    """Limits beyond which a warning appears."""


class FailurePolicySpec(Model):
    """How much may go wrong."""

    max_restarts: Annotated[int, Field(ge=0, le=10_000)] = 3
    """Restarts of workers without progress in between, before the job fails. Lost nodes do not count."""
    max_failed_reward_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of a step's responses whose scoring may fail before the job does. 0.1 by default."""


class DeadlinesSpec(Model):
    """How long the job waits for its own parts, in seconds, before it gives up and says for whom."""

    registration_seconds: Seconds = 900.0
    """From a worker's start to its registration and loaded model. 900: large models load slowly."""
    heartbeat_seconds: Seconds = 60.0
    """Without a sign of life before a worker counts as lost."""
    generation_seconds: Seconds = 1800.0
    """For one response."""
    update_seconds: Seconds = 3600.0
    """For the actor's part of one step."""
    checkpoint_seconds: Seconds = 1800.0
    """For writing or loading one checkpoint."""
    stop_grace_seconds: Seconds = 60.0
    """From the wish to stop to the end: the running step finishes, or falls back to the last optimiser
    boundary."""
