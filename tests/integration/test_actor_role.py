"""The actor role as the agent starts it: a process that dials a coordinator, which the test plays."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab import checkpoint
from trimtab.api import ResolvedJob, parse_job
from trimtab.checkpoint import Checkpoint
from trimtab.comm.control import CommandError
from trimtab.comm.experience import Message
from trimtab.engines.training.convert import export_checkpoint, find_checkpoint
from trimtab.episodes import TrainBatch
from trimtab.errors import ExitCode
from trimtab.roles.environment import ACTOR
from trimtab.testing.coordinator import PlayedCoordinator, start_worker
from trimtab.v1 import control_pb2 as pb

pytestmark = pytest.mark.slow

WORKER = "actor-0/rank-0"
TIMEOUT_S = 200.0


def resolved_job(folder: Path, model: str, **training: Any) -> ResolvedJob:
    job = parse_job(
        {
            "apiVersion": "trimtab.dev/v1alpha1",
            "kind": "RLTrainingJob",
            "metadata": {"name": "actor"},
            "spec": {
                "model": {"path": model},
                "data": {"train": {"path": "unused.jsonl"}, "maxPromptTokens": 16},
                "algorithm": {"grpo": {"groupSize": 4, "kl": {"coefficient": 0.01}}},
                "training": {
                    "promptsPerStep": 2,
                    "maxResponseTokens": 16,
                    "maxTokensPerMicroBatch": 64,
                    "precision": {"compute": "float32"},
                    "optimizer": {"learningRate": 1e-2},
                    **(training or {"steps": 4}),
                },
                "rewards": [{"function": "length"}],
            },
        }
    )
    resolved = ResolvedJob.resolve(job, attempt=1, base_dir=folder, run_dir=folder / "run")
    resolved.save(folder / "resolved.json")
    return resolved


def batch() -> TrainBatch:
    """Two groups of four, the first two of each better than the others."""
    rng = np.random.default_rng(0)
    tokens, masks, advantages = [], [], []
    for _ in range(2):
        prompt = rng.integers(7, 100, 6)
        for member in range(4):
            response = rng.integers(7, 100, 8)
            tokens.append(np.concatenate([prompt, response]))
            masks.append(np.r_[np.zeros(6, bool), np.ones(8, bool)])
            advantages.append(np.where(masks[-1], 1.0 if member < 2 else -1.0, 0.0))
    return TrainBatch(
        token_ids=np.concatenate(tokens).astype(np.int32),
        offsets=np.arange(0, 14 * 9, 14).astype(np.int64),
        loss_mask=np.concatenate(masks),
        advantages=np.concatenate(advantages).astype(np.float32),
    )


class Coordinator(PlayedCoordinator):
    """The test's part: commands, with their batches, and their results."""

    async def meet(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            self.key, self.register = await self.joined.get()

    async def command(self, key: str, **body: Any) -> pb.CommandResult:
        command = pb.Command(key=key, timeout_s=TIMEOUT_S, **body)
        return await self.server.call(self.key, command, timeout_s=TIMEOUT_S)

    async def init(self, checkpoint_path: str = "", *, total_steps: int = 4) -> pb.ActorReady:
        init = pb.InitActor(
            world_size=1,
            store_host=self.register.host,
            store_port=self.register.store_port,
            group_name="actor-1",
            checkpoint_path=checkpoint_path,
            timeout_s=TIMEOUT_S,
            total_steps=total_steps,
        )
        return (await self.command("init/1", init_actor=init)).actor_ready

    async def log_probs(self, model: str, key: str) -> np.ndarray:
        meta = {"key": key, "temperature": 1.0}
        await self.hub.send(WORKER, Message("batch", meta, batch().arrays()), timeout_s=TIMEOUT_S)
        await self.command(key, log_probs=pb.LogProbs(model=model))
        async with asyncio.timeout(TIMEOUT_S):
            worker, message = await self.hub.recv()
        assert (worker, message.kind, message.meta["key"]) == (WORKER, "log_probs", key)
        return message.arrays["log_probs"]

    async def update(
        self, step: int, reference: np.ndarray, *, epochs: int = 1, advantage: float | None = None
    ) -> dict[str, float]:
        data = batch()
        advantages = data.advantages
        if advantage is not None:
            advantages = np.where(data.loss_mask, advantage, 0.0).astype(np.float32)
        meta = {
            "key": f"update/{step}",
            "denominators": [{"tokens": float(data.loss_mask.sum()), "sequences": 8.0}],
            "epochs": epochs,
            "temperature": 1.0,
            "kl_coefficient": 0.01,
            "scale_factor": 16.0,
        }
        arrays = {**data.arrays(), "reference_log_probs": reference, "advantages": advantages}
        await self.hub.send(WORKER, Message("batch", meta, arrays), timeout_s=TIMEOUT_S)
        return dict((await self.command(f"update/{step}", update=pb.Update(step=step))).metrics)


Script = Callable[[Coordinator], Awaitable[None]]


def play(folder: Path, model: str, script: Script, *, expected: int = ExitCode.OK, **training: Any) -> None:
    """Start the role, play the script, and end it."""
    job = resolved_job(folder, model, **training)

    async def main() -> None:
        coordinator = Coordinator(job)
        port = await coordinator.start()
        worker = start_worker(ACTOR, folder / "resolved.json", port, environ={"OMP_NUM_THREADS": "1"})
        try:
            await script(coordinator)
            if expected == ExitCode.OK:
                await coordinator.server.shutdown_worker(coordinator.key, "the test is over", ExitCode.OK)
            code = await asyncio.to_thread(worker.wait, TIMEOUT_S)
            assert code == expected
        finally:
            worker.kill()
            await coordinator.close()

    asyncio.run(main())


def test_actor_trains_saves_and_comes_back_at_the_same_weights(tiny_model_dir: Path, tmp_path: Path) -> None:
    saved: dict[str, Any] = {}
    uri = str(tmp_path / "checkpoints")

    async def train(coordinator: Coordinator) -> None:
        await coordinator.meet()
        assert coordinator.register.store_port > 0
        ready = await coordinator.init()
        assert ready.applied_step == 0
        assert [t.dtype for t in ready.manifest.tensors] == ["bfloat16"] * len(ready.manifest.tensors)
        reference = await coordinator.log_probs("reference", "ref/1")
        first = await coordinator.log_probs("policy", "old/1")
        np.testing.assert_allclose(first, reference, atol=1e-6)
        assert not first[~batch().loss_mask].any()
        metrics = [await coordinator.update(step, reference) for step in (1, 2, 3)]
        assert metrics[0]["actor/ppo_kl"] == 0.0
        assert metrics[0]["actor/kl_loss"] == pytest.approx(0.0, abs=1e-9)
        assert metrics[-1]["actor/kl_loss"] > 0.0
        assert all(m["actor/grad_norm"] > 0 and m["actor/skipped_updates"] == 0 for m in metrics)
        # A repeated key is answered from the cache: nothing is applied twice.
        again = await coordinator.command("update/3", update=pb.Update(step=3))
        assert dict(again.metrics) == metrics[-1]
        saved["log_probs"] = await coordinator.log_probs("policy", "old/2")
        better = batch().advantages
        assert better is not None
        assert (saved["log_probs"] * better).sum() > (first * better).sum()
        saved["identity"] = identity = coordinator.register.training_identity
        path = checkpoint.begin(uri, 3, identity=identity, attempt=1)
        await coordinator.command("save/3", save_checkpoint=pb.SaveCheckpoint(path=f"{path}/actor"))
        checkpoint.commit(path, step=3, identity=identity, attempt=1, coordinator_state={})
        await coordinator.command("export/3", export=pb.Export(path=str(tmp_path / "exported")))

    play(tmp_path, str(tiny_model_dir), train)
    found = checkpoint.latest_valid(uri, saved["identity"])[0]
    assert isinstance(found, Checkpoint)
    assert found.manifest.world_size == 1

    async def resume(coordinator: Coordinator) -> None:
        await coordinator.meet()
        ready = await coordinator.init(str(found.actor_path))
        assert ready.applied_step == 3
        np.testing.assert_array_equal(await coordinator.log_probs("policy", "old/3"), saved["log_probs"])

    play(tmp_path, str(tiny_model_dir), resume)
    # `trimtab export` writes from the checkpoint what the actor wrote.
    export_checkpoint(find_checkpoint(tmp_path / "checkpoints"), tmp_path / "converted")
    assert (tmp_path / "converted" / "model.safetensors").read_bytes() == (
        tmp_path / "exported" / "model.safetensors"
    ).read_bytes()
    assert (tmp_path / "converted" / "tokenizer.json").exists()


def test_actor_schedule_ends_at_the_total_that_the_coordinator_sends(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    """A job of epochs has no number of steps of its own; two updates in each of three steps make six."""

    async def script(coordinator: Coordinator) -> None:
        await coordinator.meet()
        await coordinator.init(total_steps=3)
        reference = await coordinator.log_probs("reference", "ref/1")
        rates = [(await coordinator.update(step, reference, epochs=2))["actor/lr"] for step in (1, 2, 3)]
        # Cosine from 1e-2 to a tenth of it, at optimiser steps 1, 3 and 5 of 6.
        assert rates == pytest.approx([1e-3 + 4.5e-3 * (1 + np.cos(np.pi * n / 6)) for n in (1, 3, 5)])
        assert (await coordinator.update(4, reference))["actor/lr"] == pytest.approx(1e-3)

    cosine = {"learningRate": 1e-2, "schedule": {"cosine": {"warmupSteps": 0, "minRatio": 0.1}}}
    play(tmp_path, str(tiny_model_dir), script, epochs=1, updateEpochs=2, optimizer=cosine)


def test_actor_update_with_infinite_gradients_is_skipped_and_counted(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    async def script(coordinator: Coordinator) -> None:
        await coordinator.meet()
        await coordinator.init()
        reference = await coordinator.log_probs("reference", "ref/1")
        await coordinator.update(1, reference)
        before = await coordinator.log_probs("policy", "old/1")
        skipped = await coordinator.update(2, reference, advantage=np.inf)
        assert skipped["actor/skipped_updates"] == 1.0
        np.testing.assert_array_equal(await coordinator.log_probs("policy", "old/2"), before)
        # The moments are as before too: training goes on.
        after = await coordinator.update(3, reference)
        assert after["actor/skipped_updates"] == 0.0
        changed = await coordinator.log_probs("policy", "old/3")
        assert np.isfinite(changed).all()
        assert (changed != before).any()

    play(tmp_path, str(tiny_model_dir), script)


def test_actor_model_that_does_not_exist_says_so_at_once(tmp_path: Path) -> None:
    async def script(coordinator: Coordinator) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            message, kind = await coordinator.failed.get()
        assert kind == "user"
        assert "model.path: 'no-such-model'" in message

    play(tmp_path, "no-such-model", script, expected=ExitCode.USER_ERROR)


def test_actor_sequence_above_the_micro_batch_names_the_setting(tiny_model_dir: Path, tmp_path: Path) -> None:
    async def script(coordinator: Coordinator) -> None:
        await coordinator.meet()
        await coordinator.init()
        size = 65
        data = TrainBatch(
            token_ids=np.full(size, 9, np.int32),
            offsets=np.array([0, size], np.int64),
            loss_mask=np.r_[False, np.ones(size - 1, bool)],
        )
        message = Message("batch", {"key": "k", "temperature": 1.0}, data.arrays())
        await coordinator.hub.send(WORKER, message, timeout_s=TIMEOUT_S)
        with pytest.raises(CommandError, match=r"training\.maxTokensPerMicroBatch: 64") as caught:
            await coordinator.command("k", log_probs=pb.LogProbs(model="policy"))
        assert caught.value.kind == "user"
        # One rank alone waits for nobody: it can go on.
        assert (await coordinator.log_probs("policy", "old/1")).shape == (112,)

    play(tmp_path, str(tiny_model_dir), script)
