"""What a real vLLM engine answers: ends of responses, limits, seeds, aborts."""

import asyncio
import itertools

import numpy as np
import pytest
import torch

from trimtab.api.model import ModelSpec
from trimtab.api.roles import VllmSpec
from trimtab.engines.rollout.model_files import ModelFacts, read_model_facts
from trimtab.engines.rollout.protocol import GenerationRequest, InvalidRequestError, Sampling
from trimtab.engines.rollout.vllm import VllmEngine

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

_PROMPT = np.array([5, 60, 61, 62, 63, 6], np.int32)
_EOS = (2, 90, 91)
"""Several; 90 and 91 are ordinary tokens of the tiny model, so a random model draws them soon enough."""
_MAX_MODEL_TOKENS = 256


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def engine(runner, tiny_model_dir):
    facts = read_model_facts(str(tiny_model_dir), ModelSpec(path=str(tiny_model_dir)))
    facts = ModelFacts(facts.path, _EOS, facts.vocab_size, facts.max_position_embeddings)
    spec = VllmSpec(
        dtype="float32",
        maxConcurrentRequests=16,
        kvCacheBytes=64 << 20,
        engineArguments={"max_num_batched_tokens": 2048},
    )
    made = VllmEngine(spec, facts, max_model_tokens=_MAX_MODEL_TOKENS, on_gpu=False)
    runner.run(made.start())
    yield made
    runner.run(made.close())


def _request(request_id, *, seed=1, max_tokens=40, prompt=_PROMPT, **sampling):
    return GenerationRequest(
        request_id=request_id,
        prompt_ids=prompt,
        seed=seed,
        max_tokens=max_tokens,
        sampling=Sampling(**sampling),
    )


def _run(runner, engine, requests):
    async def all_of_them():
        return await asyncio.gather(*(engine.generate(r) for r in requests))

    return runner.run(all_of_them())


async def _under_way(engine, running):
    """Wait until some of these have tokens; a fast engine may have done them all by then."""
    states = engine._engine.output_processor.request_states
    while not all(task.done() for task in running):
        if any(state.detokenizer.num_output_tokens() > 5 for state in states.values()):
            return
        await asyncio.sleep(0.001)


def test_every_eos_id_ends_a_response_and_is_its_last_token(runner, engine):
    generations = _run(runner, engine, [_request(f"eos{i}", seed=i, max_tokens=150) for i in range(48)])
    ends = set()
    for generation in generations:
        ids = generation.response_ids
        assert not np.isin(ids[:-1], _EOS).any()
        assert (generation.finish_reason == "stop") == (ids[-1] in _EOS)
        assert generation.finish_reason == "stop" or len(ids) == 150
        assert len(ids) == len(generation.log_probs) == len(generation.weight_versions)
        assert (generation.log_probs < 0).all()
        assert (generation.weight_versions == 0).all()
        assert 0 < generation.time_to_first_token_s <= generation.latency_s
        ends.add(int(ids[-1]))
    assert {90, 91} <= ends


def test_more_prompt_tokens_at_once_than_one_engine_step_takes_are_generated(runner, engine):
    prompts = [np.full(200, 10 + i, np.int32) for i in range(16)]  # 3200 tokens; a step takes 2048
    requests = [_request(f"long{i}", seed=i, max_tokens=4, prompt=prompt) for i, prompt in enumerate(prompts)]
    assert all(len(generation.response_ids) >= 1 for generation in _run(runner, engine, requests))


def test_same_seed_draws_the_same_and_greedy_ignores_it(runner, engine):
    first = _run(runner, engine, [_request(f"a{i}", seed=i) for i in range(6)])
    second = _run(runner, engine, [_request(f"b{i}", seed=i) for i in range(6)])
    assert all((a.response_ids == b.response_ids).all() for a, b in zip(first, second, strict=True))
    assert len({tuple(g.response_ids[:6]) for g in first}) == 6
    greedy = _run(runner, engine, [_request(f"g{i}", seed=i, temperature=0.0) for i in range(3)])
    assert all((g.response_ids == greedy[0].response_ids).all() for g in greedy)


def test_greedy_is_the_models_likeliest_token_with_its_own_log_prob(runner, engine, tiny_model_dir):
    from transformers import AutoModelForCausalLM

    (generation,) = _run(runner, engine, [_request("greedy", temperature=0.0, max_tokens=20)])
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()
    ids = torch.tensor(np.concatenate([_PROMPT, generation.response_ids]))[None].long()
    with torch.no_grad():
        rows = model(ids).logits[0].log_softmax(-1)[len(_PROMPT) - 1 : -1]
    assert (rows.argmax(-1).numpy() == generation.response_ids).all()
    assert np.abs(rows.max(-1).values.numpy() - generation.log_probs).max() < 1e-3


def test_stop_token_of_the_request_ends_it_and_eos_as_last_token_is_a_stop(runner, engine):
    (free,) = _run(runner, engine, [_request("free")])
    token = int(free.response_ids[3])
    first = int(np.argmax(free.response_ids == token))
    stopped, last = _run(
        runner,
        engine,
        [
            _request("stopped", stop_token_ids=(token,)),
            _request("last", stop_token_ids=(token,), max_tokens=first + 1),
        ],
    )
    for generation in (stopped, last):
        assert generation.finish_reason == "stop"
        assert (generation.response_ids == free.response_ids[: first + 1]).all()


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param(np.full(_MAX_MODEL_TOKENS, 9, np.int32), id="longer than the model allows"),
        pytest.param(np.array([], np.int32), id="empty"),
        pytest.param(np.array([5, 4000], np.int32), id="unknown token"),
    ],
)
def test_request_that_cannot_be_served_is_invalid_and_the_engine_goes_on(runner, engine, prompt):
    with pytest.raises(InvalidRequestError):
        _run(runner, engine, [_request("bad", prompt=prompt)])
    assert engine.alive
    assert _run(runner, engine, [_request("good", max_tokens=3)])


def test_response_ends_where_the_model_does(runner, engine):
    prompt = np.full(_MAX_MODEL_TOKENS - 5, 9, np.int32)
    (generation,) = _run(runner, engine, [_request("end", prompt=prompt, max_tokens=100)])
    assert len(generation.response_ids) <= 5
    assert generation.finish_reason in ("length", "stop")


def test_abort_returns_what_there_is(runner, engine):
    async def aborted(attempt):
        requests = [_request(f"abort{attempt}-{i}", seed=i, max_tokens=240) for i in range(4)]
        running = [asyncio.create_task(engine.generate(request)) for request in requests]
        await _under_way(engine, running)
        await engine.abort([])
        return [g for g in await asyncio.gather(*running) if g.finish_reason == "abort"]

    async def scenario():
        found, attempts = [], itertools.count()
        async with asyncio.timeout(120):
            while not found:  # a slow machine may find all of them done already
                found = await aborted(next(attempts))
        return found

    for generation in runner.run(scenario()):
        assert 0 < len(generation.response_ids) < 240
        assert len(generation.log_probs) == len(generation.response_ids)
