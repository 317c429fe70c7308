import asyncio
from datetime import timedelta

import numpy as np
import pytest
import torch
from torch.distributed import TCPStore

from trimtab.api.model import ModelSpec
from trimtab.api.roles import HfSpec
from trimtab.comm.weights import WeightGroup, WeightSender, build_manifest
from trimtab.engines.rollout.hf import HfEngine
from trimtab.engines.rollout.model_files import ModelFacts, read_model_facts
from trimtab.engines.rollout.protocol import GenerationRequest, InvalidRequestError, Sampling
from trimtab.errors import OutOfMemoryError
from trimtab.v1 import control_pb2 as pb

_PROMPT = np.array([5, 60, 61, 62, 63, 6], np.int32)


def _request(request_id="r", *, seed=1, max_tokens=12, prompt=_PROMPT, **sampling):
    return GenerationRequest(
        request_id=request_id,
        prompt_ids=prompt,
        seed=seed,
        max_tokens=max_tokens,
        sampling=Sampling(**sampling),
    )


@pytest.fixture(scope="module")
def model(tiny_model_dir):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()


def _engine(tiny_model_dir, *, eos=None, max_model_tokens=128):
    facts = read_model_facts(str(tiny_model_dir), ModelSpec(path=str(tiny_model_dir)))
    if eos is not None:
        facts = ModelFacts(facts.path, tuple(eos), facts.vocab_size, facts.max_position_embeddings)
    return HfEngine(HfSpec(), facts, max_model_tokens=max_model_tokens, on_gpu=False)


@pytest.fixture
async def engine(tiny_model_dir):
    made = _engine(tiny_model_dir)
    await made.start()
    yield made
    await made.close()


def _log_probs(model, prompt, response, temperature=1.0):
    ids = torch.tensor(np.concatenate([prompt, response]))[None].long()
    with torch.no_grad():
        rows = (model(ids).logits[0] / temperature).log_softmax(-1)[len(prompt) - 1 : -1]
    return rows.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()


async def test_log_probs_equal_the_models_at_the_temperature(engine, model):
    generation = await engine.generate(_request(max_tokens=30, temperature=0.7))
    expected = _log_probs(model, _PROMPT, generation.response_ids, 0.7)
    assert np.abs(expected - generation.log_probs).max() < 1e-5
    assert (generation.weight_versions == 0).all()


async def test_results_do_not_depend_on_order_or_company(engine):
    requests = [_request(f"r{i}", seed=i, max_tokens=8 + i) for i in range(5)]
    together = await asyncio.gather(*(engine.generate(r) for r in requests))
    alone = [await engine.generate(r) for r in reversed(requests)][::-1]
    for a, b in zip(together, alone, strict=True):
        assert (a.response_ids == b.response_ids).all()
        assert (a.log_probs == b.log_probs).all(), "bitwise"
    assert len({tuple(g.response_ids[:8]) for g in together}) == 5, "each seed draws its own"


async def test_memory_that_is_not_there_is_said_with_what_to_lower(engine, monkeypatch):
    def forward(**arguments):
        return torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr(engine, "_model", forward)
    with pytest.raises(OutOfMemoryError, match=r"can't allocate memory.*lower spec\.training\.maxResponseT"):
        await engine.generate(_request())


async def test_truncation_is_length_and_greedy_ignores_the_seed(engine):
    first = await engine.generate(_request("a", seed=1, max_tokens=6, temperature=0.0))
    second = await engine.generate(_request("b", seed=2, max_tokens=6, temperature=0.0))
    assert first.finish_reason == "length"
    assert len(first.response_ids) == 6
    assert (first.response_ids == second.response_ids).all()


async def test_each_of_several_eos_ids_ends_the_response_and_is_part_of_it(tiny_model_dir):
    plain = _engine(tiny_model_dir, eos=[])
    await plain.start()
    free = (await plain.generate(_request(max_tokens=20))).response_ids
    await plain.close()
    for position in (4, 9):
        token = int(free[position])
        first = int(np.argmax(free == token))
        engine = _engine(tiny_model_dir, eos=[token, 127])
        await engine.start()
        generation = await engine.generate(_request(max_tokens=20))
        assert generation.finish_reason == "stop"
        assert (generation.response_ids == free[: first + 1]).all()
        stopped = await engine.generate(_request(max_tokens=first + 1))
        assert stopped.finish_reason == "stop", "EOS as the last token allowed is a stop, not a truncation"
        await engine.close()


async def test_stop_token_of_the_request_ends_it(engine):
    free = (await engine.generate(_request(max_tokens=10))).response_ids
    generation = await engine.generate(_request(max_tokens=10, stop_token_ids=(int(free[3]),)))
    assert generation.finish_reason == "stop"
    assert generation.response_ids[-1] == free[3]


@pytest.mark.parametrize(
    ("prompt", "complaint"),
    [
        pytest.param(np.full(128, 9, np.int32), "128 tokens", id="longer than the model allows"),
        pytest.param(np.array([], np.int32), "empty", id="empty"),
        pytest.param(np.array([5, 4000], np.int32), "outside 0..127", id="unknown token"),
    ],
)
async def test_request_that_cannot_be_served_is_invalid(engine, prompt, complaint):
    with pytest.raises(InvalidRequestError, match=complaint):
        await engine.generate(_request(prompt=prompt))


async def test_response_ends_where_the_model_does(engine):
    generation = await engine.generate(_request(prompt=np.full(120, 9, np.int32), max_tokens=50, seed=5))
    assert len(generation.response_ids) <= 8


async def test_abort_ends_a_request_with_what_there_is(engine):
    running = asyncio.create_task(engine.generate(_request("long", max_tokens=120, stop_token_ids=())))
    queued = asyncio.create_task(engine.generate(_request("queued", max_tokens=120)))
    await asyncio.sleep(0)
    await engine.abort([])
    assert (await running).finish_reason == "abort"
    assert (await queued).finish_reason == "abort"


async def test_published_weights_are_served_and_stamped(engine, model):
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=20), wait_for_workers=False)
    place = {"store_host": "127.0.0.1", "store_port": store.port, "world_size": 2, "timeout_s": 20.0}
    group, _ = await asyncio.gather(
        asyncio.to_thread(WeightGroup.join, "g", backend="gloo", rank=0, **place),
        engine.join(pb.JoinWeightGroup(group="g", backend="gloo", first_rank=1, **place)),
    )
    generator = torch.Generator().manual_seed(0)
    weights = [
        (name, (p + 0.05 * torch.randn(p.shape, generator=generator)).detach())
        for name, p in model.named_parameters()
    ]
    manifest = build_manifest([(n, tuple(t.shape)) for n, t in weights], dtype=torch.float32)
    request = _request("across", max_tokens=100, temperature=0.9)
    running = asyncio.create_task(engine.generate(request))
    sent, metrics = await asyncio.gather(
        asyncio.to_thread(WeightSender(group).send, 4, weights, manifest, manifest.bucket_bytes, 20.0),
        engine.transfer(pb.TransferWeights(group="g", version=4, manifest=manifest, timeout_s=20)),
    )
    assert metrics["bytes"] == sent
    assert engine.weight_version == 4
    across = await running
    after = await engine.generate(request)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    try:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(dict(weights)[name])
        for generation in (across, after):
            expected = _log_probs(model, _PROMPT, generation.response_ids, 0.9)
            drawn = generation.weight_versions == 4
            assert np.abs(expected - generation.log_probs)[drawn].max(initial=0) < 1e-5
        assert (after.weight_versions == 4).all()
        assert set(across.weight_versions) <= {0, 4}
    finally:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(before[name])
