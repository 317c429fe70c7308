"""The hf rollout engine on one GPU, against the trainer and the CPU: `pytest tests/gpu -m gpu`.

Needs torch 2.11 or later, transformers, accelerate, pydantic, grpcio, protobuf and this checkout; no vLLM.
"""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from trimtab.algorithms.losses import Denominators, GrpoLoss, GrpoLossConfig
from trimtab.api.model import ModelSpec
from trimtab.api.roles import HfSpec
from trimtab.comm.weights import WeightGroup, WeightSender, build_manifest
from trimtab.engines.rollout.hf import HfEngine
from trimtab.engines.rollout.model_files import read_model_facts
from trimtab.engines.rollout.protocol import Generation, GenerationRequest, Sampling
from trimtab.engines.training import (
    FsdpTrainingEngine,
    ModelSource,
    OptimizerSettings,
    Precision,
    TrainingSettings,
)
from trimtab.episodes import TrainBatch
from trimtab.testing.tiny_model import make_tiny_model
from trimtab.v1 import control_pb2 as pb

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine"),
]
GPU = torch.device("cuda")
FLOAT32 = Precision(torch.float32, torch.float32, torch.float32)
PROMPT = np.array([5, 60, 61, 62, 63, 6], np.int32)
TIMEOUT_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model")


def make_trainer(model: Path) -> FsdpTrainingEngine:
    source = ModelSource(str(model))
    settings = TrainingSettings(source, source, FLOAT32, OptimizerSettings(learning_rate=1e-2))
    return FsdpTrainingEngine(settings, device=GPU)


def make_engine(model: Path, device: torch.device) -> HfEngine:
    facts = read_model_facts(str(model), ModelSpec(path=str(model)))
    return HfEngine(HfSpec(), facts, max_model_tokens=128, on_gpu=device.type == "cuda")


def request(temperature: float, seed: int = 1) -> GenerationRequest:
    sampling = Sampling(temperature=temperature)
    return GenerationRequest(
        request_id=f"{temperature}/{seed}", prompt_ids=PROMPT, seed=seed, max_tokens=40, sampling=sampling
    )


async def generate(engine: HfEngine, *requests: GenerationRequest) -> list[Generation]:
    await engine.start()
    try:
        return [await engine.generate(one) for one in requests]
    finally:
        await engine.close()


def as_batch(generation: Generation) -> TrainBatch:
    size = len(PROMPT) + len(generation.response_ids)
    mask = np.arange(size) >= len(PROMPT)
    return TrainBatch(
        token_ids=np.concatenate([PROMPT, generation.response_ids]).astype(np.int32),
        offsets=np.array([0, size], np.int64),
        loss_mask=mask,
        advantages=mask.astype(np.float32),
    )


def assert_log_probs_are_the_trainers(
    generation: Generation, trainer: FsdpTrainingEngine, temperature: float
) -> None:
    want = trainer.log_probs(as_batch(generation), model="policy", temperature=temperature).log_probs
    np.testing.assert_allclose(generation.log_probs, want[len(PROMPT) :], atol=1e-4)


def test_drawn_tokens_have_the_trainers_log_probs(model: Path) -> None:
    requests = [request(0.7, seed) for seed in range(4)]
    generations = asyncio.run(generate(make_engine(model, GPU), *requests))
    trainer = make_trainer(model)
    for generation in generations:
        assert_log_probs_are_the_trainers(generation, trainer, 0.7)
    assert len({tuple(generation.response_ids) for generation in generations}) == 4


def test_greedy_tokens_are_those_of_the_cpu(model: Path) -> None:
    (got,) = asyncio.run(generate(make_engine(model, GPU), request(0.0)))
    (want,) = asyncio.run(generate(make_engine(model, torch.device("cpu")), request(0.0)))
    np.testing.assert_array_equal(got.response_ids, want.response_ids)
    assert_log_probs_are_the_trainers(got, make_trainer(model), 1.0)


def test_weights_of_a_trainer_on_the_gpu_reach_the_engine_over_gloo(model: Path) -> None:
    """As between an actor on GPUs and a rollout without: the bytes go through the CPU at both ends."""
    trainer = make_trainer(model)
    engine = make_engine(model, GPU)
    store = TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=TIMEOUT_S), wait_for_workers=False
    )
    place = {"store_host": "127.0.0.1", "store_port": store.port, "world_size": 2, "timeout_s": TIMEOUT_S}
    manifest = build_manifest(
        [(info.name, info.shape) for info in trainer.manifest(torch.float32)], dtype=torch.float32
    )

    async def scenario() -> tuple[Generation, Generation]:
        await engine.start()
        before = await engine.generate(request(0.7))
        batch = as_batch(before)
        trainer.update(
            batch,
            loss=GrpoLoss(GrpoLossConfig()),
            denominators=[Denominators(float(batch.loss_mask.sum()), 1.0)],
        )
        group, _ = await asyncio.gather(
            asyncio.to_thread(WeightGroup.join, "g", backend="gloo", rank=0, device=GPU, **place),
            engine.join(pb.JoinWeightGroup(group="g", backend="gloo", first_rank=1, **place)),
        )
        await asyncio.gather(
            asyncio.to_thread(
                WeightSender(group).send,
                1,
                trainer.export_shards(torch.float32),
                manifest,
                manifest.bucket_bytes,
                TIMEOUT_S,
            ),
            engine.transfer(pb.TransferWeights(group="g", version=1, manifest=manifest, timeout_s=TIMEOUT_S)),
        )
        after = await engine.generate(request(0.7))
        group.abort()
        await engine.close()
        return before, after

    before, after = asyncio.run(scenario())
    assert (after.weight_versions == 1).all()
    assert_log_probs_are_the_trainers(after, trainer, 0.7)
    stale = trainer.log_probs(as_batch(before), model="policy", temperature=0.7).log_probs[len(PROMPT) :]
    assert np.abs(stale - before.log_probs).max() > 0.01, "the update changed the weights"
