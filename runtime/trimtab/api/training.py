"""`spec.training`: batch sizes, optimiser, precision."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from trimtab.api.base import Count, Model, OneOf

WarmupSteps = Annotated[int, Field(ge=0, le=1_000_000)]


class ConstantSchedule(Model):
    """The learning rate stays after the warm-up."""

    warmup_steps: WarmupSteps = 0
    """Optimiser steps over which the rate rises from 0. 0 by default: none."""


class LinearSchedule(Model):
    """The learning rate falls in a straight line to 0 at the last step."""

    warmup_steps: WarmupSteps = 0
    """Optimiser steps over which the rate rises from 0. 0 by default: none."""


class CosineSchedule(Model):
    """The learning rate falls along half a cosine."""

    warmup_steps: WarmupSteps = 0
    """Optimiser steps over which the rate rises from 0. 0 by default: none."""
    min_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the learning rate that is left at the last step. 0 by default."""


class ScheduleSpec(OneOf):
    """The learning rate over time."""

    constant: ConstantSchedule | None = None
    """The rate stays."""
    linear: LinearSchedule | None = None
    """The rate falls in a straight line."""
    cosine: CosineSchedule | None = None
    """The rate falls along half a cosine."""


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSpec(Model):
    """AdamW."""

    learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-6
    """Learning rate after the warm-up. 1e-6 is usual for RL of whole models; tiny models take more."""
    betas: Annotated[tuple[Beta, ...], Field(min_length=2, max_length=2)] = (0.9, 0.999)
    """Decay of the two moments."""
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Added to the denominator."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.01
    """Decoupled weight decay. 0.01 as PyTorch has it."""
    gradient_clip: Annotated[float, Field(gt=0, le=1_000_000)] | None = 1.0
    """Largest norm of all gradients together; None: not clipped. 1 by default."""
    schedule: ScheduleSpec = Field(default_factory=lambda: ScheduleSpec(constant=ConstantSchedule()))
    """The learning rate over time. Constant by default."""


class PrecisionSpec(Model):
    """Number formats of training; the rollout's own is in its engine."""

    parameters: Literal["float32", "bfloat16"] = "float32"
    """Format of the parameters that the optimiser changes. float32: a step of 1e-6 vanishes in bfloat16."""
    compute: Literal["float32", "bfloat16"] = "bfloat16"
    """Format of forward and backward. bfloat16: two to three times faster."""
    reduction: Literal["float32", "bfloat16"] = "float32"
    """Format in which gradients are summed over ranks. float32: sums lose nothing."""


def _prompts_per_step(fields: dict[str, Any]) -> Any:
    return fields["prompts_per_step"]


class TrainingSpec(Model):
    """How long, in which portions and with which optimiser the policy is trained."""

    steps: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Steps to take; a step is one batch of prompts. None: `epochs` decides. Exactly one of the two is
    given."""
    epochs: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Times to go through the data; None: `steps` decides. Exactly one of the two is given."""
    prompts_per_step: Count = 64
    """Prompts of one step; each gets a group of responses."""
    mini_batch_prompts: Count = Field(default_factory=_prompts_per_step)
    """Prompts per optimiser step; divides `promptsPerStep`. By default all of them: one optimiser step per
    step."""
    update_epochs: Annotated[int, Field(ge=1, le=100)] = 1
    """Times that a step's batch is gone through. 1 by default: on-policy."""
    max_response_tokens: Annotated[int, Field(ge=1, le=4_194_304)] = 1024
    """Longest response, in tokens; longer ones are cut off there and counted as truncated."""
    max_tokens_per_micro_batch: Annotated[int, Field(ge=1, le=16_777_216)] = 16_384
    """Tokens (prompts included) of one forward and backward on one rank. Bounds memory, never changes the
    result; at least `data.maxPromptTokens` plus `maxResponseTokens`."""
    gradient_checkpointing: bool = True
    """Whether activations are computed again in the backward. On by default: slower by a third, far less
    memory."""
    shard_size: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Ranks over which parameters are sharded (hybrid sharding); divides the actor's ranks. None: all of
    them."""
    precision: PrecisionSpec = Field(default_factory=PrecisionSpec)
    """Number formats."""
    optimizer: OptimizerSpec = Field(default_factory=OptimizerSpec)
    """The optimiser."""

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> "TrainingSpec":
        if (self.steps is None) == (self.epochs is None):
            found = (
                "neither is given"
                if self.steps is None
                else f"steps is {self.steps}, epochs is {self.epochs}"
            )
            raise PydanticCustomError(
                "steps_or_epochs", "exactly one of steps and epochs is allowed; {found}", {"found": found}
            )
        return self

    @property
    def mini_batches_per_step(self) -> int:
        """Optimiser steps per pass over a step's batch."""
        return self.prompts_per_step // self.mini_batch_prompts

    @property
    def updates_per_step(self) -> int:
        """Optimiser steps per step."""
        return self.mini_batches_per_step * self.update_epochs
