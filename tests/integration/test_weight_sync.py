"""Publications into a real vLLM: what it serves afterwards are the trainer's log-probs, token by token."""

import asyncio
import os
import signal
import time
from datetime import timedelta

import numpy as np
import psutil
import pytest
import torch
from torch.distributed import TCPStore

from trimtab.api.model import ModelSpec
from trimtab.api.roles import VllmSpec
from trimtab.comm.weights import WeightGroup, WeightSender, build_manifest
from trimtab.engines.rollout.model_files import read_model_facts
from trimtab.engines.rollout.protocol import EngineDeadError, GenerationRequest, Sampling
from trimtab.engines.rollout.vllm import VllmEngine
from trimtab.errors import DeadlineError
from trimtab.testing.tiny_model import make_tiny_model
from trimtab.v1 import control_pb2 as pb

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

_BUCKET_BYTES = 100_000
_TIMEOUT_S = 120.0
_TEMPERATURE = 0.7


class Trainer:
    """The actor's end: a transformers model, a store, and the group's rank 0."""

    def __init__(self, path, dtype):
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.dtype = dtype
        self.store = TCPStore(
            "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30), wait_for_workers=False
        )
        self.group = None
        named = [(name, tuple(p.shape)) for name, p in self.model.named_parameters()]
        self.manifest = build_manifest(named, dtype=dtype, bucket_bytes=_BUCKET_BYTES)
        self.groups = 0

    @torch.no_grad()
    def step(self, seed):
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))

    async def join(self, engine):
        self.groups += 1
        command = pb.JoinWeightGroup(
            group=f"g{self.groups}",
            backend="gloo",
            store_host="127.0.0.1",
            store_port=self.store.port,
            world_size=2,
            first_rank=1,
            timeout_s=_TIMEOUT_S,
        )
        self.group, _ = await asyncio.gather(
            asyncio.to_thread(
                WeightGroup.join,
                command.group,
                backend="gloo",
                store_host="127.0.0.1",
                store_port=self.store.port,
                rank=0,
                world_size=2,
                timeout_s=_TIMEOUT_S,
            ),
            engine.join(command),
        )

    async def publish(self, engine, version, source=None, timeout_s=_TIMEOUT_S):
        command = pb.TransferWeights(
            group=self.group.name, version=version, manifest=self.manifest, timeout_s=timeout_s
        )
        sending = asyncio.to_thread(
            WeightSender(self.group).send,
            version,
            source or self.model.named_parameters(),
            self.manifest,
            _BUCKET_BYTES,
            timeout_s,
        )
        return await asyncio.gather(sending, engine.transfer(command), return_exceptions=True)

    @torch.no_grad()
    def log_probs(self, prompt_ids, response_ids):
        """Of the response's tokens at the sampling temperature, in float32 from weights as published."""
        ids = torch.tensor(np.concatenate([prompt_ids, response_ids]))[None].long()
        logits = self.model(ids).logits[0] / _TEMPERATURE
        return logits.log_softmax(-1)[len(prompt_ids) - 1 : -1].gather(1, ids[0, len(prompt_ids) :, None])[
            :, 0
        ]


def _requests(tag, count=12, max_tokens=48, length=40):
    """Prompts longer than a block of the KV cache, in pairs that share a prefix."""
    return [
        GenerationRequest(
            request_id=f"{tag}-{index}",
            prompt_ids=((np.arange(length) * (3 + index // 2)) % 120 + 5).astype(np.int32),
            seed=index,
            max_tokens=max_tokens,
            sampling=Sampling(temperature=_TEMPERATURE),
        )
        for index in range(count)
    ]


async def _under_way(engine, running):
    """Wait until some of these have tokens; a fast engine may have done them all by then."""
    states = engine._engine.output_processor.request_states
    while not all(task.done() for task in running):
        if any(state.detokenizer.num_output_tokens() > 5 for state in states.values()):
            return
        await asyncio.sleep(0.001)


async def _generate(engine, requests):
    return await asyncio.gather(*(engine.generate(request) for request in requests))


def _differences(trainer, requests, generations):
    return np.concatenate(
        [
            np.abs(trainer.log_probs(r.prompt_ids, g.response_ids).numpy() - g.log_probs)
            for r, g in zip(requests, generations, strict=True)
        ]
    )


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((False, "float32"), id="untied head float32"),
        pytest.param((True, "float32"), id="tied head float32"),
        pytest.param((True, "bfloat16"), id="tied head bfloat16"),
    ],
)
def pair(request, runner, tmp_path_factory):
    """An engine and its trainer, in a group."""
    tied, dtype = request.param
    path = str(make_tiny_model(tmp_path_factory.mktemp("model"), tied=tied))
    spec = VllmSpec(dtype=dtype, maxConcurrentRequests=16, kvCacheBytes=64 << 20)
    engine = VllmEngine(
        spec, read_model_facts(path, ModelSpec(path=path)), max_model_tokens=320, on_gpu=False
    )
    runner.run(engine.start())
    trainer = Trainer(path, getattr(torch, dtype))
    runner.run(trainer.join(engine))
    yield engine, trainer
    runner.run(engine.close())


def test_log_probs_after_each_publication_equal_the_trainers(runner, pair):
    engine, trainer = pair

    async def scenario():
        for version in (1, 2):
            requests = _requests(f"before-{version}")
            before = await _generate(engine, requests)
            if trainer.dtype is torch.float32:
                assert _differences(trainer, requests, before).max() < 1e-3
            trainer.step(version)
            sent, metrics = await trainer.publish(engine, version)
            assert metrics["bytes"] == sent
            requests = _requests(
                f"after-{version}"
            )  # the same prompts: cached keys of old weights would show
            after = await _generate(engine, requests)
            assert all((g.weight_versions == version).all() for g in after)
            difference = _differences(trainer, requests, after)
            if trainer.dtype is torch.float32:
                assert difference.max() < 1e-3
            else:
                assert difference.mean() < 0.08
            assert any((a.response_ids != b.response_ids).any() for a, b in zip(after, before, strict=False))

    runner.run(scenario())


def test_requests_in_flight_go_on_under_the_new_weights_and_say_so(runner, pair):
    engine, trainer = pair
    if trainer.dtype is not torch.float32:
        pytest.skip("compared in float32")

    async def publish_in_flight(new):
        requests = _requests(f"in-flight-{new}", count=6, max_tokens=250)
        running = [asyncio.create_task(engine.generate(request)) for request in requests]
        await _under_way(engine, running)
        before = [p.clone() for p in trainer.model.parameters()]
        trainer.step(new)
        await trainer.publish(engine, new)
        return before, requests, await asyncio.gather(*running)

    async def scenario():
        async with asyncio.timeout(120):
            while True:
                old = engine.weight_version
                before, requests, generations = await publish_in_flight(old + 1)
                # A machine may be so slow to publish that all responses are done by then.
                if any(set(g.weight_versions) == {old, old + 1} for g in generations):
                    return old, before, requests, generations

    old, before, requests, generations = runner.run(scenario())
    after = [p.clone() for p in trainer.model.parameters()]
    for version, weights in ((old, before), (old + 1, after)):
        for parameter, value in zip(trainer.model.parameters(), weights, strict=True):
            parameter.data.copy_(value)
        for request, generation in zip(requests, generations, strict=True):
            assert (np.diff(generation.weight_versions) >= 0).all()
            expected = trainer.log_probs(request.prompt_ids, generation.response_ids).numpy()
            drawn = generation.weight_versions == version
            assert np.abs(expected - generation.log_probs)[drawn].max(initial=0.0) < 1e-3


def test_sender_that_gives_up_leaves_the_engine_waiting_for_a_new_group(runner, pair):
    engine, trainer = pair
    if trainer.dtype is not torch.float32:
        pytest.skip("compared in float32")
    version = engine.weight_version + 1
    trainer.step(version)

    def broken():
        for index, (name, tensor) in enumerate(trainer.model.named_parameters()):
            yield (name if index < 9 else "nonsense"), tensor

    async def scenario():
        sent, received = await trainer.publish(engine, version, source=broken())
        assert isinstance(sent, ValueError)
        assert isinstance(received, DeadlineError)
        requests = _requests("torn")
        waiting = asyncio.gather(*(engine.generate(request) for request in requests))
        await trainer.join(engine)
        assert not waiting.done(), "nothing may be generated from a mixture of weights"
        await trainer.publish(engine, version)
        generations = await waiting
        assert all((g.weight_versions == version).all() for g in generations)
        assert _differences(trainer, requests, generations).max() < 1e-3

    runner.run(scenario())


def test_engine_killed_in_a_broadcast_ends_both_sides(runner, pair):
    engine, trainer = pair
    if trainer.dtype is torch.float32:
        pytest.skip("ends the engine: once is enough")
    (core,) = [p for p in psutil.Process().children(recursive=True) if "EngineCore" in p.name()]

    def source():
        for index, named in enumerate(trainer.model.named_parameters()):
            if index == 5:
                os.kill(core.pid, signal.SIGKILL)
            yield named

    async def scenario():
        await engine._engine.pause_generation(mode="keep")  # so that no request is done before
        waiting = asyncio.gather(*(engine.generate(r) for r in _requests("dying")), return_exceptions=True)
        start = time.monotonic()
        sent, received = await trainer.publish(engine, 9, source=source())
        assert isinstance(sent, DeadlineError)
        assert "no word from rank 1" in str(sent)
        assert isinstance(received, EngineDeadError)
        assert time.monotonic() - start < _TIMEOUT_S / 2
        assert all(isinstance(error, EngineDeadError) for error in await waiting)

    runner.run(scenario())
