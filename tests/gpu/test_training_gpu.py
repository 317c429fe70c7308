"""What one GPU shows of the training engine: `pytest tests/gpu -m gpu`, under four minutes.

Needs torch 2.11 or later, transformers, accelerate, pydantic and this checkout; no vLLM.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from trimtab.algorithms.losses import Denominators, GrpoLoss, GrpoLossConfig
from trimtab.engines.training import (
    FsdpTrainingEngine,
    ModelSource,
    OptimizerSettings,
    Precision,
    TrainingSettings,
)
from trimtab.episodes import TrainBatch
from trimtab.testing.tiny_model import make_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine"),
]
FLOAT32 = Precision(torch.float32, torch.float32, torch.float32)
LOSS = GrpoLoss(GrpoLossConfig())


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def batch_of(num_sequences: int, length: int) -> TrainBatch:
    rng = np.random.default_rng(0)
    mask = np.tile(np.arange(length) >= 8, num_sequences)
    return TrainBatch(
        token_ids=rng.integers(7, 120, num_sequences * length).astype(np.int32),
        offsets=np.arange(0, num_sequences * length + 1, length).astype(np.int64),
        loss_mask=mask,
        advantages=np.where(mask, rng.normal(size=mask.size), 0).astype(np.float32),
    )


def engine_for(model: Path, device: str, precision: Precision, **changes: Any) -> FsdpTrainingEngine:
    source = ModelSource(str(model))
    settings = TrainingSettings(source, source, precision, OptimizerSettings(learning_rate=1e-3))
    return FsdpTrainingEngine(dataclasses.replace(settings, **changes), device=torch.device(device))


def update(engine: FsdpTrainingEngine, batch: TrainBatch) -> dict[str, float]:
    counts = Denominators(float(batch.loss_mask.sum()), float(batch.num_sequences))
    return engine.update(batch, loss=LOSS, denominators=[counts])


@pytest.mark.parametrize("attention", ["packed", "sdpa"])
def test_update_bfloat16_on_gpu_is_close_to_float32_on_cpu(tmp_path: Path, attention: str) -> None:
    model = make_tiny_model(tmp_path / "model")
    batch = batch_of(16, 40)
    want_engine = engine_for(model, "cpu", FLOAT32)
    got_engine = engine_for(model, "cuda", Precision(), model=ModelSource(str(model), attention=attention))
    want = want_engine.log_probs(batch, model="policy", temperature=1.0).log_probs
    got = got_engine.log_probs(batch, model="policy", temperature=1.0).log_probs
    assert float(np.abs(got - want).mean()) < 0.01
    for _ in range(3):
        want_metrics, got_metrics = update(want_engine, batch), update(got_engine, batch)
        assert got_metrics["actor/grad_norm"] == pytest.approx(want_metrics["actor/grad_norm"], rel=0.05)
        assert got_metrics["actor/pg_loss"] == pytest.approx(want_metrics["actor/pg_loss"], abs=0.01)


def test_update_memory_stays_flat_in_vocabulary_times_sequence(tmp_path: Path) -> None:
    """Eight times the vocabulary: the peak above the resting memory grows by the head's own size at most."""

    def peak_above_rest(characters: int, length: int) -> float:
        alphabet = [chr(0x4E00 + i) for i in range(characters)]
        model = make_tiny_model(
            tmp_path / f"{characters}-{length}", hidden=256, characters=alphabet, max_length=8192
        )
        engine = engine_for(model, "cuda", Precision())
        batch = batch_of(32768 // length, length)
        update(engine, batch)
        torch.cuda.synchronize()
        rest = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        update(engine, batch)
        return float(torch.cuda.max_memory_allocated() - rest)

    short, long = peak_above_rest(2000, 512), peak_above_rest(2000, 4096)
    assert long < 1.1 * short
    # 14,000 more rows of 256: weight and gradient in bf16 and the float32 gradient, twice over.
    assert peak_above_rest(16000, 512) < short + 14_000 * 256 * 16 + 2 * (1 << 26) * 4


def test_checkpoint_on_gpu_resumes_with_the_same_weights_and_then_the_same_update(tmp_path: Path) -> None:
    """The state is the same bit for bit; the update after it within what GPU reductions leave open."""

    def pairs() -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        for (name, got), (_, want) in zip(
            again.export_shards(torch.float32), engine.export_shards(torch.float32), strict=True
        ):
            yield name, got, want

    model = make_tiny_model(tmp_path / "model", tied=True)
    batch = batch_of(8, 32)
    engine = engine_for(model, "cuda", FLOAT32)
    update(engine, batch)
    engine.applied_step = 1
    engine.save(tmp_path / "actor")
    again = engine_for(model, "cuda", FLOAT32)
    again.load(tmp_path / "actor")
    assert again.applied_step == 1
    assert all(torch.equal(got, want) for _, got, want in pairs())
    moments = zip(
        again._optimizer.state_tensors().items(), engine._optimizer.state_tensors().items(), strict=True
    )
    assert all(torch.equal(_local(got), _local(want)) for (_, got), (_, want) in moments)
    update(engine, batch)
    update(again, batch)
    for name, got, want in pairs():
        torch.testing.assert_close(got, want, atol=1e-7, rtol=1e-6, msg=name)
