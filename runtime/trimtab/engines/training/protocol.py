"""What the actor role asks of a training engine; FSDP2 is the first, Megatron could be another."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from trimtab.algorithms.losses import Denominators, LossFn
from trimtab.engines.training.export import TensorInfo
from trimtab.episodes import TrainBatch

if TYPE_CHECKING:
    from trimtab.engines.training.engine import LogProbs, ModelName


class TrainingEngine(Protocol):
    """One rank's part of a model that is trained by all ranks together.

    Every method is collective unless it says otherwise: all ranks call it in the same order, and a
    rank that does not blocks the others until the process group's timeout. A method that raises
    leaves the engine unusable, except for `UserError`s of `save` and `export_hugging_face`.
    """

    applied_step: int

    @property
    def num_parameters(self) -> int:
        """Of the whole policy; not collective."""

    def log_probs(self, batch: TrainBatch, *, model: "ModelName", temperature: float) -> "LogProbs":
        """Of this rank's sequences, without gradients."""

    def update(
        self,
        batch: TrainBatch,
        *,
        loss: LossFn,
        denominators: Sequence[Denominators],
        epochs: int = 1,
        temperature: float = 1.0,
    ) -> dict[str, float]:
        """One optimiser step per mini-batch and epoch; the same metrics on every rank."""

    def manifest(self, dtype: torch.dtype) -> list[TensorInfo]:
        """What `export_shards` will yield; not collective."""

    def export_shards(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors in the manifest's order; every rank must exhaust it."""

    def save(self, path: Path) -> None:
        """Write the training state."""

    def load(self, path: Path) -> None:
        """Read what any number of ranks saved."""

    def export_hugging_face(self, path: Path) -> None:
        """Write a Hugging Face directory; rank 0 writes."""
