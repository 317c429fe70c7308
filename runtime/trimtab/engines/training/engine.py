"""The training engine: a Hugging Face causal LM under FSDP2 on any number of ranks, one included.

Driven by the actor role from its main thread. Every method is collective: all ranks of the default
process group call it in the same order, each with its own sequences. Within a call all ranks make
the same number of forward and backward passes; one that runs out repeats a dummy with no weight.

Losses divide by global denominators, so gradients (and metrics) are sums over micro-batches and
ranks, and neither the number of ranks nor `maxTokensPerMicroBatch` changes them.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import psutil
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trimtab.algorithms.losses import Denominators, LossFn, PolicyLossInputs
from trimtab.engines.training import export, state
from trimtab.engines.training.collectives import gather_json
from trimtab.engines.training.export import TensorInfo
from trimtab.engines.training.optimizer import PolicyOptimizer
from trimtab.engines.training.packing import MicroBatch, make_units, pack, plan_micro_batches
from trimtab.engines.training.policy import Policy, build_policy
from trimtab.engines.training.settings import ModelSource, Precision, TrainingSettings
from trimtab.episodes import TrainBatch
from trimtab.errors import UserError

ModelName = Literal["policy", "reference"]


@dataclass(frozen=True)
class LogProbs:
    """Of this rank's sequences."""

    log_probs: NDArray[np.float32]  # [N], 0 where the loss mask is
    entropy_sum: float
    """Over the response tokens, in nats."""
    num_tokens: int
    """Response tokens."""


@dataclass
class _Totals:
    """What an update adds up on this rank."""

    metrics: dict[str, Tensor] = field(default_factory=dict)
    num_tokens: int = 0
    num_micro_batches: int = 0

    def add(self, metrics: dict[str, Tensor]) -> None:
        for name, value in metrics.items():
            value = value.detach().double()
            self.metrics[name] = self.metrics[name] + value if name in self.metrics else value


class FsdpTrainingEngine:
    """Owns the policy, its optimiser and, once it is asked for, the reference.

    Needs the default process group (gloo on CPUs, NCCL on GPUs) for as long as it lives.
    """

    def __init__(
        self, settings: TrainingSettings, *, device: torch.device, checkpoint: Path | None = None
    ) -> None:
        """Load the model, or the whole training state from a checkpoint's actor folder."""
        self.settings = settings
        self.device = device
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._mesh = _make_mesh(device, self.world_size, settings.shard_size)
        torch.manual_seed(settings.seed + self.rank)
        self._policy = self._build(
            settings.model, settings.precision, trains=True, with_weights=checkpoint is None
        )
        self._optimizer = PolicyOptimizer(
            self._policy.model, settings.optimizer, total_steps=settings.total_optimizer_steps
        )
        self._reference: Policy | None = None
        self.applied_step = 0
        """Training steps applied; the actor role raises it after each update."""
        if checkpoint is not None:
            self.load(checkpoint)

    @property
    def num_parameters(self) -> int:
        """Of the policy, a tied head counted once."""
        return sum(p.numel() for p in self._policy.model.parameters())

    def log_probs(self, batch: TrainBatch, *, model: ModelName, temperature: float) -> LogProbs:
        """Log-probs of the response tokens at this temperature, without gradients."""
        policy = self._policy if model == "policy" else self._load_reference()
        values = np.zeros(batch.num_tokens, np.float32)
        entropy_sum, num_tokens = 0.0, 0
        for micro_batch, real in self._micro_batches(batch, policy):
            with torch.no_grad():
                log_probs, entropy = policy.log_probs(micro_batch, temperature=temperature)
            if real:
                values[micro_batch.batch_index] = log_probs.cpu().numpy()
                entropy_sum += float(entropy.double().sum())
                num_tokens += len(micro_batch.batch_index)
        return LogProbs(values, entropy_sum, num_tokens)

    def update(
        self,
        batch: TrainBatch,
        *,
        loss: LossFn,
        denominators: Sequence[Denominators],
        epochs: int = 1,
        temperature: float = 1.0,
    ) -> dict[str, float]:
        """One optimiser step per mini-batch and epoch; returns metrics that are the same on every rank.

        `denominators` has one entry per mini-batch, counted over all ranks. Metrics of the loss are means
        over the optimiser steps; a step whose gradient norm is not finite is skipped and counted.
        """
        started = time.perf_counter()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        totals = _Totals()
        results = []
        for _ in range(epochs):
            for index, counts in enumerate(denominators):
                self._accumulate(_mini_batch(batch, index), loss, counts, temperature, totals)
                results.append(self._optimizer.step())
        metrics = self._reduce(totals, len(results))
        norms = [result.gradient_norm for result in results if result.applied]
        seconds = time.perf_counter() - started
        num_tokens = metrics.pop("perf/update_tokens")
        return metrics | {
            "actor/grad_norm": float(np.mean(norms)) if norms else float("nan"),
            "actor/lr": results[-1].learning_rate,
            "actor/skipped_updates": float(sum(not result.applied for result in results)),
            "perf/update_tokens": num_tokens,
            "perf/update_tokens_per_s": num_tokens / seconds,
            "perf/update_micro_batches": float(totals.num_micro_batches),
            "perf/max_memory_gb": self._peak_memory_gb(),
        }

    def manifest(self, dtype: torch.dtype) -> list[TensorInfo]:
        """What `export_shards` yields, in its order."""
        return export.manifest(self._policy.model, dtype)

    def export_shards(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Hugging Face name and whole tensor of each parameter, one at a time; every rank exhausts it."""
        return export.whole_tensors(self._policy.model, dtype)

    def save(self, path: Path) -> None:
        """Write the training state below `path`; returns once every rank has."""
        if self.rank == 0:
            export.write_model_files(
                self._policy.model, self._policy.source, path / state.MODEL_FILES, dtype=self._export_dtype
            )
        state.save(
            path,
            parameters=dict(self._policy.model.named_parameters()),
            optimizer=self._optimizer.state_tensors(),
            record=state.ActorRecord(self.applied_step, self._optimizer.num_steps, self.world_size),
            rank=self.rank,
        )

    def load(self, path: Path) -> None:
        """Take over the training state that any number of ranks saved."""
        record = state.load(
            path,
            parameters=dict(self._policy.model.named_parameters()),
            optimizer=self._optimizer.state_tensors(),
            rank=self.rank,
        )
        self.applied_step, self._optimizer.num_steps = record.applied_step, record.optimizer_steps

    def export_hugging_face(self, path: Path) -> None:
        """Write a directory that `from_pretrained` loads, in the number format the model came in."""
        dtype = self._export_dtype
        if self.rank == 0:
            export.write_model_files(self._policy.model, self._policy.source, path, dtype=dtype)
        export.write_model(self._policy.model, path, dtype=dtype, writes=self.rank == 0)
        dist.barrier()

    @property
    def _export_dtype(self) -> torch.dtype:
        stored = self._policy.config.dtype
        return stored if isinstance(stored, torch.dtype) else self.settings.precision.parameters

    def _build(
        self, source: ModelSource, precision: Precision, *, trains: bool, with_weights: bool = True
    ) -> Policy:
        return build_policy(
            source,
            mesh=self._mesh,
            precision=precision,
            device=self.device,
            gradient_checkpointing=trains and self.settings.gradient_checkpointing,
            with_weights=with_weights,
        )

    def _load_reference(self) -> Policy:
        """The frozen initial model, in the compute format; loaded on first use."""
        if self._reference is None:
            compute = self.settings.precision.compute
            self._reference = self._build(
                self.settings.reference, Precision(compute, compute, compute), trains=False
            )
            self._reference.model.requires_grad_(requires_grad=False)
        return self._reference

    def _micro_batches(self, batch: TrainBatch, policy: Policy) -> list[tuple[MicroBatch, bool]]:
        """Micro-batches of this rank, then dummies (False) until the busiest rank is through."""
        limit, share = self.settings.max_tokens_per_micro_batch, policy.packs_prompts
        plan = plan_micro_batches(make_units(batch, max_tokens=limit, share_prompts=share), max_tokens=limit)
        micro_batches = [(pack(batch, sequences, share_prompts=share), True) for sequences in plan]
        return micro_batches + [(_dummy(), False)] * (self._maximum(len(plan)) - len(plan))

    def _accumulate(
        self, batch: TrainBatch, loss: LossFn, counts: Denominators, temperature: float, totals: _Totals
    ) -> None:
        micro_batches = self._micro_batches(batch, self._policy)
        for index, (micro_batch, real) in enumerate(micro_batches):
            if self.world_size == 1:
                self._policy.share_backward_passes(last=index == len(micro_batches) - 1)
            log_probs, entropy = self._policy.log_probs(micro_batch, temperature=temperature)
            if not real:
                (log_probs.sum() * 0.0).backward()
                continue
            inputs = _loss_inputs(batch, micro_batch, log_probs, entropy)
            value, metrics = loss(inputs, counts)
            value.backward()
            totals.add(metrics)
            totals.num_tokens += len(micro_batch.token_ids)
            totals.num_micro_batches += 1

    def _reduce(self, totals: _Totals, num_updates: int) -> dict[str, float]:
        """Sum over the ranks; every rank takes the names of all, since one may have had no sequence."""
        local = {name: float(value) / num_updates for name, value in totals.metrics.items()}
        local["perf/update_tokens"] = float(totals.num_tokens)
        summed: dict[str, float] = {}
        for part in gather_json(local, device=self.device):
            for name, value in part.items():
                summed[name] = summed.get(name, 0.0) + value
        return summed

    def _maximum(self, value: int) -> int:
        tensor = torch.tensor(value, device=self.device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor)

    def _peak_memory_gb(self) -> float:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 1e9
        return float(psutil.Process().memory_info().rss) / 1e9


def _make_mesh(device: torch.device, world_size: int, shard_size: int | None) -> DeviceMesh:
    """All ranks shard, or groups of `shard_size` do and replicate each other."""
    if shard_size is None or shard_size == world_size:
        return init_device_mesh(device.type, (world_size,), mesh_dim_names=("shard",))
    if world_size % shard_size:
        raise UserError(
            f"training.shardSize: {shard_size} does not divide the actor's {world_size} ranks; "
            "give a divisor, or leave it out to shard over all of them"
        )
    shape = (world_size // shard_size, shard_size)
    return init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))


def _mini_batch(batch: TrainBatch, index: int) -> TrainBatch:
    if batch.mini_batch is None:
        return batch
    return batch.select([int(s) for s in np.flatnonzero(batch.mini_batch == index)])


def _dummy() -> MicroBatch:
    batch = TrainBatch(
        token_ids=np.zeros(2, np.int32),
        offsets=np.array([0, 2], np.int64),
        loss_mask=np.array([False, True]),
    )
    return pack(batch, [0], share_prompts=False)


def _loss_inputs(
    batch: TrainBatch, micro_batch: MicroBatch, log_probs: Tensor, entropy: Tensor
) -> PolicyLossInputs:
    device = log_probs.device

    def pick(values: NDArray[np.float32] | None) -> Tensor | None:
        return None if values is None else torch.from_numpy(values[micro_batch.batch_index]).to(device)

    advantages = pick(batch.advantages)
    assert advantages is not None, "an update needs advantages"
    return PolicyLossInputs(
        log_probs=log_probs,
        old_log_probs=pick(batch.old_log_probs),
        advantages=advantages,
        mask=torch.ones_like(log_probs),
        sequence_ids=torch.from_numpy(micro_batch.sequence_ids).to(device),
        num_sequences=micro_batch.num_sequences,
        reference_log_probs=pick(batch.reference_log_probs),
        entropy=entropy,
        rollout_log_probs=pick(batch.behaviour_log_probs),
    )
