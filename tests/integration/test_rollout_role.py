"""The rollout role as the agent starts it: a process that dials a coordinator, which the test plays."""

import asyncio
import contextlib
import signal
from datetime import timedelta

import numpy as np
import psutil
import pytest
import torch
from torch.distributed import TCPStore

from trimtab.api import ResolvedJob, parse_job
from trimtab.comm.experience import Message
from trimtab.comm.weights import WeightGroup, WeightSender, build_manifest
from trimtab.errors import ExitCode
from trimtab.local.run_dir import reserved_port
from trimtab.testing.coordinator import PlayedCoordinator, start_worker
from trimtab.v1 import control_pb2 as pb

pytestmark = pytest.mark.slow

_WORKER = "rollout-0/rank-0"
_TIMEOUT_S = 240.0  # a busy machine takes minutes to import vLLM twice
_SAMPLING = {"temperature": 0.8, "topP": 1.0, "topK": 0, "minP": 0.0, "stopTokenIds": []}
_PROMPT = np.array([5, 60, 61, 62, 63, 6], np.int32)


def _job(folder, model, engine):
    return ResolvedJob.resolve(
        parse_job(
            {
                "apiVersion": "trimtab.dev/v1alpha1",
                "kind": "RLTrainingJob",
                "metadata": {"name": "test"},
                "spec": {
                    "model": {"path": str(model)},
                    "data": {"train": {"path": "a.jsonl"}, "maxPromptTokens": 64},
                    "algorithm": {"grpo": {}},
                    "training": {"steps": 1, "maxResponseTokens": 200},
                    "rewards": [{"function": "exact_match"}],
                    "roles": {"rollout": {"engine": engine}},
                },
            }
        ),
        attempt=1,
        base_dir=folder,
        run_dir=folder / "run",
    )


@contextlib.asynccontextmanager
async def _role(folder, model, engine):
    job = _job(folder, model, engine)
    job.save(folder / "resolved.json")
    coordinator = PlayedCoordinator(job)
    with reserved_port() as port:
        await coordinator.start(port)
        process = start_worker("rollout", folder / "resolved.json", port)
        try:
            yield coordinator, process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            await coordinator.close()


async def _joined(coordinator):
    async with asyncio.timeout(_TIMEOUT_S):
        return await coordinator.joined.get()


async def _ask(coordinator, episode_id, *, prompt=_PROMPT, seed=1, max_tokens=16, deadline_s=60.0):
    meta = {
        "episode_id": episode_id,
        "group_id": "g",
        "seed": seed,
        "sampling": _SAMPLING,
        "max_tokens": max_tokens,
        "deadline_s": deadline_s,
    }
    await coordinator.hub.send(_WORKER, Message("generate", meta, {"prompt_ids": prompt}), timeout_s=30.0)


async def _answers(coordinator, count):
    found = {}
    async with asyncio.timeout(_TIMEOUT_S):
        while len(found) < count:
            worker, message = await coordinator.hub.recv()
            assert worker == _WORKER
            assert message.meta["episode_id"] not in found, "answered twice"
            found[message.meta["episode_id"]] = message
    return found


async def _command(coordinator, worker, key, **body):
    command = pb.Command(key=key, timeout_s=_TIMEOUT_S, **body)
    return await coordinator.server.call(worker, command, timeout_s=_TIMEOUT_S)


async def _connect(coordinator):
    """Until this one is answered, nothing sent has a connection to go over."""
    await _ask(coordinator, "first", max_tokens=1)
    await _answers(coordinator, 1)


async def _leave(coordinator, process):
    assert not await coordinator.server.shutdown_all("the test is over", ExitCode.OK, timeout_s=_TIMEOUT_S)
    return await asyncio.to_thread(process.wait, _TIMEOUT_S)


async def test_requests_are_answered_one_by_one_and_only_once(tmp_path, tiny_model_dir):
    async with _role(tmp_path, tiny_model_dir, {"hf": {"maxConcurrentRequests": 8}}) as (
        coordinator,
        process,
    ):
        _, register = await _joined(coordinator)
        assert (register.capacity, register.weight_version, register.world_size) == (8, 0, 1)
        await _connect(coordinator)
        process.send_signal(signal.SIGSTOP)  # so that it finds all of them at once
        for number in range(3):
            await _ask(coordinator, f"e{number}", seed=number)
        await _ask(coordinator, "e2", seed=2)  # repeated while it runs
        await _ask(coordinator, "long", prompt=np.full(500, 9, np.int32))
        await _ask(coordinator, "late", max_tokens=190, deadline_s=0.01)
        process.send_signal(signal.SIGCONT)
        answers = await _answers(coordinator, 5)
        for number in range(3):
            episode = answers[f"e{number}"]
            assert episode.kind == "episode"
            ids = episode.arrays["response_ids"]
            assert episode.arrays["log_probs"].dtype == np.float32
            assert (episode.arrays["weight_versions"] == 0).all()
            stopped = episode.meta["finish_reason"] == "stop"
            assert len(ids) == 16 or (stopped and ids[-1] == 2)
            assert 0 < episode.meta["time_to_first_token_s"] <= episode.meta["latency_s"]
        assert answers["long"].kind == "generate_failed"
        assert answers["long"].meta["kind"] == "invalid"
        assert "500 tokens" in answers["long"].meta["error"]
        assert answers["late"].meta["kind"] == "timeout"
        assert await _leave(coordinator, process) == 0


async def test_weights_are_joined_received_and_served_by_command(tmp_path, tiny_model_dir):
    from transformers import AutoModelForCausalLM

    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30), wait_for_workers=False)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    weights = [(name, p.detach() * 1.1) for name, p in model.named_parameters()]
    manifest = build_manifest([(n, tuple(t.shape)) for n, t in weights], dtype=torch.float32)
    place = {"store_host": "127.0.0.1", "store_port": store.port, "world_size": 2, "timeout_s": 120.0}
    async with _role(tmp_path, tiny_model_dir, {"hf": {}}) as (coordinator, process):
        worker, _ = await _joined(coordinator)
        join = pb.JoinWeightGroup(group="g1", backend="gloo", first_rank=1, **place)
        group, joined = await asyncio.gather(
            asyncio.to_thread(WeightGroup.join, "g1", backend="gloo", rank=0, **place),
            _command(coordinator, worker, "join", join_weight_group=join),
        )
        assert joined.ok
        transfer = pb.TransferWeights(group="g1", version=5, manifest=manifest, timeout_s=120)
        sent, transferred = await asyncio.gather(
            asyncio.to_thread(WeightSender(group).send, 5, weights, manifest, manifest.bucket_bytes, 120.0),
            _command(coordinator, worker, "transfer", transfer_weights=transfer),
        )
        assert transferred.ok
        assert transferred.metrics["bytes"] == sent
        await _ask(coordinator, "e", max_tokens=4)
        episode = (await _answers(coordinator, 1))["e"]
        assert (episode.arrays["weight_versions"] == 5).all()
        left = await _command(
            coordinator, worker, "leave", leave_weight_group=pb.LeaveWeightGroup(group="g1")
        )
        assert left.ok
        assert await _leave(coordinator, process) == 0


async def test_aborted_request_is_never_answered(tmp_path, tiny_model_dir):
    async with _role(tmp_path, tiny_model_dir, {"hf": {}}) as (coordinator, process):
        worker, _ = await _joined(coordinator)
        for name in ("before0", "before1", "before2", "aborted"):  # drawn one after another
            await _ask(coordinator, name, max_tokens=190)
        await _ask(coordinator, "invalid", prompt=np.array([], np.int32))  # answered at once
        answers = {}
        while "invalid" not in answers:
            answers |= await _answers(coordinator, 1)
        abort = pb.AbortGeneration(episode_ids=["aborted"])
        await _command(coordinator, worker, "abort", abort_generation=abort)
        await _ask(coordinator, "after", max_tokens=1)
        while "after" not in answers:
            answers |= await _answers(coordinator, 1)
        assert sorted(answers) == ["after", "before0", "before1", "before2", "invalid"]
        assert await _leave(coordinator, process) == 0


async def test_requests_of_an_older_coordinator_are_dropped(tmp_path, tiny_model_dir):
    async with _role(tmp_path, tiny_model_dir, {"hf": {}}) as (first, process):
        await _joined(first)
        await _connect(first)
        for number in range(20):
            await _ask(first, f"old{number}", max_tokens=190)
        await first.close()
        second = PlayedCoordinator(_job(tmp_path, tiny_model_dir, {"hf": {}}), instance="second")
        await second.start(first.port)
        _, register = await _joined(second)
        assert register.weight_version == 0
        await _ask(second, "new", max_tokens=4)
        answers = {}
        while "new" not in answers:  # at most what the first coordinator's queue still held
            answers |= await _answers(second, 1)
        assert len(answers) < 20
        assert await _leave(second, process) == 0
        await second.close()


@pytest.mark.parametrize(
    ("model", "complaint"),
    [pytest.param("./nowhere", "nowhere", id="missing"), pytest.param("empty", "empty", id="no model in it")],
)
async def test_model_path_that_is_wrong_is_reported_at_once(tmp_path, model, complaint):
    (tmp_path / "empty").mkdir()
    async with _role(tmp_path, model, {"hf": {}}) as (coordinator, process):
        assert await asyncio.to_thread(process.wait, _TIMEOUT_S) == ExitCode.USER_ERROR
        message, kind = await asyncio.wait_for(coordinator.failed.get(), 10)
        assert kind == "user"
        assert complaint in message


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["engine", "worker"])
async def test_vllm_engine_and_worker_end_together(tmp_path, tiny_model_dir, victim):
    engine = {"vllm": {"dtype": "float32", "kvCacheBytes": 64 << 20, "maxConcurrentRequests": 8}}
    async with _role(tmp_path, tiny_model_dir, engine) as (coordinator, process):
        await _joined(coordinator)
        await _ask(coordinator, "e", max_tokens=8)
        assert (await _answers(coordinator, 1))["e"].kind == "episode"
        children = psutil.Process(process.pid).children(recursive=True)
        (core,) = [child for child in children if "EngineCore" in child.name()]
        for number in range(4):
            await _ask(coordinator, f"running{number}", max_tokens=190)
        if victim == "engine":
            core.send_signal(signal.SIGKILL)
            assert await asyncio.to_thread(process.wait, _TIMEOUT_S) == ExitCode.INTERNAL
            async for message in _received(coordinator):
                assert message.kind == "episode" or message.meta["kind"] == "internal"
            message, kind = await asyncio.wait_for(coordinator.failed.get(), 10)
            assert kind == "internal"
            assert "engine" in message
        else:
            process.kill()
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, timeout=60)
        assert not alive, "a killed worker left processes behind"


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_configuration_that_only_vllms_process_can_judge_is_a_user_error(tmp_path, tiny_model_dir):
    async with _role(tmp_path, tiny_model_dir, {"vllm": {"kvCacheBytes": 2**40}}) as (coordinator, process):
        assert await asyncio.to_thread(process.wait, _TIMEOUT_S) == ExitCode.USER_ERROR
        message, kind = await asyncio.wait_for(coordinator.failed.get(), 10)
        assert kind == "user"
        assert "roles.rollout.engine.vllm: vLLM did not start: ValueError" in message


async def _received(coordinator):
    with contextlib.suppress(TimeoutError):
        while True:
            async with asyncio.timeout(1.0):
                yield (await coordinator.hub.recv())[1]
