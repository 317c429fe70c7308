"""What the training engine is told, read once from a job. Plain data; no torch tensors, no I/O."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from trimtab.api import ResolvedJob
from trimtab.api.model import ModelSpec
from trimtab.api.training import OptimizerSpec, PrecisionSpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class ModelSource:
    """Where a model and its tokenizer come from."""

    path: str
    """An existing directory or a hub id."""
    revision: str | None = None
    tokenizer_path: str | None = None
    tokenizer_revision: str | None = None
    chat_template: str | None = None
    trust_remote_code: bool = False
    attention: str = "auto"
    field: str = "model.path"
    """The job's field that named it, for messages."""


@dataclass(frozen=True)
class Precision:
    """Number formats of training."""

    parameters: torch.dtype = torch.float32
    compute: torch.dtype = torch.bfloat16
    reduction: torch.dtype = torch.float32

    @classmethod
    def from_spec(cls, spec: PrecisionSpec) -> "Precision":
        """Read `training.precision`."""
        return cls(DTYPES[spec.parameters], DTYPES[spec.compute], DTYPES[spec.reduction])


@dataclass(frozen=True)
class Schedule:
    """Learning rate as a function of the optimiser step."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    min_ratio: float = 0.0

    def factor(self, step: int, total_steps: int | None) -> float:
        """What multiplies the learning rate at optimiser step `step` (from 0)."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.kind == "constant" or total_steps is None:
            return 1.0
        span = max(total_steps - self.warmup_steps, 1)
        progress = min((step - self.warmup_steps) / span, 1.0)
        if self.kind == "linear":
            return 1.0 - progress
        return self.min_ratio + (1.0 - self.min_ratio) * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW, its schedule and clipping."""

    learning_rate: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    gradient_clip: float | None = 1.0
    schedule: Schedule = Schedule()

    @classmethod
    def from_spec(cls, spec: OptimizerSpec) -> "OptimizerSettings":
        """Read `training.optimizer`."""
        chosen = spec.schedule
        if chosen.linear is not None:
            schedule = Schedule("linear", chosen.linear.warmup_steps)
        elif chosen.cosine is not None:
            schedule = Schedule("cosine", chosen.cosine.warmup_steps, chosen.cosine.min_ratio)
        else:
            schedule = Schedule("constant", chosen.constant.warmup_steps if chosen.constant else 0)
        return cls(
            learning_rate=spec.learning_rate,
            betas=(spec.betas[0], spec.betas[1]),
            epsilon=spec.epsilon,
            weight_decay=spec.weight_decay,
            gradient_clip=spec.gradient_clip,
            schedule=schedule,
        )


@dataclass(frozen=True)
class TrainingSettings:
    """Everything that the engine needs beside the batches."""

    model: ModelSource
    reference: ModelSource
    precision: Precision = Precision()
    optimizer: OptimizerSettings = OptimizerSettings()
    max_tokens_per_micro_batch: int = 16_384
    gradient_checkpointing: bool = False
    shard_size: int | None = None
    total_optimizer_steps: int | None = None
    """Where falling schedules end, which the coordinator knows; None: the rate stays after the warm-up."""
    seed: int = 0

    @classmethod
    def from_job(cls, resolved: ResolvedJob) -> "TrainingSettings":
        """Read a resolved job, for the actor."""
        spec = resolved.job.spec
        training = spec.training
        actor = spec.roles.actor
        base = Path(resolved.base_dir)
        model = _source(actor.model or spec.model, base, "roles.actor.model" if actor.model else "model")
        reference = model
        if spec.roles.reference is not None and spec.roles.reference.model is not None:
            reference = _source(spec.roles.reference.model, base, "roles.reference.model")
        return cls(
            model=model,
            reference=reference,
            precision=Precision.from_spec(training.precision),
            optimizer=OptimizerSettings.from_spec(training.optimizer),
            max_tokens_per_micro_batch=training.max_tokens_per_micro_batch,
            gradient_checkpointing=training.gradient_checkpointing,
            shard_size=training.shard_size,
            seed=spec.seed,
        )


def _source(spec: ModelSpec, base: Path, field: str) -> ModelSource:
    tokenizer = spec.tokenizer
    return ModelSource(
        path=_local(spec.path, base),
        revision=spec.revision,
        tokenizer_path=None if tokenizer.path is None else _local(tokenizer.path, base),
        tokenizer_revision=tokenizer.revision,
        chat_template=tokenizer.chat_template,
        trust_remote_code=spec.trust_remote_code,
        attention=spec.attention,
        field=f"{field}.path",
    )


def _local(path: str, base: Path) -> str:
    """The folder of that name beside the job's file, or else the name as it is (a hub id)."""
    folder = base / path
    return str(folder) if folder.is_dir() else path
