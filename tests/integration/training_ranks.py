"""One rank of `test_training_engine.py`: runs named scenarios in a world of its own and writes what came out.

    python training_ranks.py RANK WORLD MEETING MODEL OUT SCENARIO...

The ranks find each other through the file MEETING, which does not exist before. Every rank takes its share
of one recorded batch. Rank 0 writes OUT/<scenario>.pt.
"""

import dataclasses
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from trimtab.algorithms.losses import Denominators, GrpoLoss, GrpoLossConfig
from trimtab.engines.training import (
    FsdpTrainingEngine,
    ModelSource,
    OptimizerSettings,
    Precision,
    Schedule,
    TrainingSettings,
)
from trimtab.episodes import TrainBatch

CPU = torch.device("cpu")
FLOAT32 = Precision(torch.float32, torch.float32, torch.float32)


def recorded_batch(*, seed: int = 0, num_groups: int = 4, group_size: int = 4) -> TrainBatch:
    """Groups that share prompts, with ragged responses; two mini-batches."""
    rng = np.random.default_rng(seed)
    tokens, masks = [], []
    for _ in range(num_groups):
        prompt = rng.integers(7, 120, rng.integers(3, 12))
        for _ in range(group_size):
            response = rng.integers(7, 120, rng.integers(1, 20))
            tokens.append(np.concatenate([prompt, response]))
            masks.append(np.r_[np.zeros(len(prompt), bool), np.ones(len(response), bool)])
    lengths = [len(t) for t in tokens]
    mask = np.concatenate(masks)
    size = sum(lengths)
    return TrainBatch(
        token_ids=np.concatenate(tokens).astype(np.int32),
        offsets=np.r_[0, np.cumsum(lengths)].astype(np.int64),
        loss_mask=mask,
        advantages=np.where(mask, rng.normal(size=size), 0).astype(np.float32),
        old_log_probs=np.where(mask, -4.8 + 0.1 * rng.normal(size=size), 0).astype(np.float32),
        reference_log_probs=np.where(mask, -4.8 + 0.1 * rng.normal(size=size), 0).astype(np.float32),
        mini_batch=np.repeat(np.arange(2), len(lengths) // 2).astype(np.int32),
    )


def denominators(batch: TrainBatch) -> list[Denominators]:
    assert batch.mini_batch is not None
    parts = [batch.select(list(np.flatnonzero(batch.mini_batch == m))) for m in range(2)]
    return [Denominators(float(p.loss_mask.sum()), float(p.num_sequences)) for p in parts]


LOSS = GrpoLoss(GrpoLossConfig(kl_coefficient=0.1, entropy_coefficient=0.01))


def settings(model: str, **changes: Any) -> TrainingSettings:
    source = ModelSource(path=model)
    optimizer = OptimizerSettings(learning_rate=1e-3, schedule=Schedule("cosine", 2))
    base = TrainingSettings(source, source, FLOAT32, optimizer, total_optimizer_steps=40)
    return dataclasses.replace(base, **changes)


def make_engine(model: str, checkpoint: Path | None = None, **changes: Any) -> FsdpTrainingEngine:
    return FsdpTrainingEngine(settings(model, **changes), device=CPU, checkpoint=checkpoint)


def share(batch: TrainBatch, rank: int, world: int) -> TrainBatch:
    """Uneven on purpose: the last rank has the last quarter of the sequences only."""
    if world == 1:
        return batch
    cut = 3 * batch.num_sequences // 4
    return batch.select(list(range(cut)) if rank == 0 else list(range(cut, batch.num_sequences)))


def gradients(engine: FsdpTrainingEngine, batch: TrainBatch) -> dict[str, torch.Tensor]:
    """Of the whole batch as one mini-batch, gathered; none are applied."""
    mine = share(batch, dist.get_rank(), dist.get_world_size())
    one = dataclasses.replace(mine, mini_batch=np.zeros(mine.num_sequences, np.int32))
    captured: dict[str, torch.Tensor] = {}
    optimizer = engine._optimizer
    step = optimizer.step

    def capture() -> Any:
        for name, parameter in engine._policy.model.named_parameters():
            grad = parameter.grad
            assert grad is not None
            captured[name] = (grad.full_tensor() if isinstance(grad, DTensor) else grad).clone()
        return step()

    optimizer.step = capture  # type: ignore[method-assign]
    counts = Denominators(float(batch.loss_mask.sum()), float(batch.num_sequences))
    engine.update(one, loss=LOSS, denominators=[counts], temperature=0.8)
    return captured


def train(engine: FsdpTrainingEngine, steps: range) -> list[dict[str, float]]:
    results = []
    for step in steps:
        batch = recorded_batch(seed=step)
        mine = share(batch, dist.get_rank(), dist.get_world_size())
        metrics = engine.update(mine, loss=LOSS, denominators=denominators(batch), epochs=2, temperature=0.8)
        engine.applied_step = step + 1
        results.append({k: v for k, v in metrics.items() if not k.startswith("perf/")})
    return results


def weights(engine: FsdpTrainingEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.export_shards(torch.float32)}


def run(scenario: str, model: str, out: Path) -> Any:
    match scenario.split(":"):
        case ["gradients", limit]:
            return gradients(make_engine(model, max_tokens_per_micro_batch=int(limit)), recorded_batch())
        case ["hybrid"]:
            return gradients(make_engine(model, shard_size=1), recorded_batch())
        case ["train", first, last]:
            engine = make_engine(model)
            metrics = train(engine, range(int(first), int(last)))
            return {"metrics": metrics, "weights": weights(engine)}
        case ["save", last]:
            engine = make_engine(model)
            metrics = train(engine, range(int(last)))
            engine.save(out / f"checkpoint-{dist.get_world_size()}")
            return {"metrics": metrics, "weights": weights(engine)}
        case ["resume", saved_by, last]:
            engine = make_engine(model, out / f"checkpoint-{saved_by}")
            metrics = train(engine, range(engine.applied_step, int(last)))
            return {"metrics": metrics, "weights": weights(engine)}
        case ["export"]:
            engine = make_engine(model)
            train(engine, range(1))
            engine.export_hugging_face(out / "exported")
            return weights(engine)
    raise ValueError(scenario)


def main() -> None:
    rank, world, meeting, model, out, *scenarios = sys.argv[1:]
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=int(rank),
        world_size=int(world),
        timeout=timedelta(seconds=120),
    )
    torch.set_num_threads(1)
    for scenario in scenarios:
        result = run(scenario, model, Path(out))
        if int(rank) == 0:
            torch.save(result, Path(out) / f"{scenario}@{world}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
