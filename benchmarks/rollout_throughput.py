"""Tokens per second through the rollout role against bare vLLM with the same requests, in one run.

    python benchmarks/rollout_throughput.py [--model DIR] [--rounds 5]

The role is the real process (`trimtab.roles.worker`), asked over the experience plane by a played
coordinator; bare vLLM is `vllm.LLM.generate` in a process of its own, with the same engine settings,
threads, seeds and log-probs. Rounds alternate, so that both see the same machine; it must be quiet, since
bound threads that share their cores with other work lose far more than their share. The goal is a ratio of
at least 0.95. Without `--model` a random model of SmolLM2-135M's shape is made.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.api import ResolvedJob, parse_job
from trimtab.comm.experience import Message
from trimtab.engines.rollout.vllm_process import engine_environment
from trimtab.testing.coordinator import PlayedCoordinator, start_worker

GOAL = 0.95
WORKER = "rollout-0/rank-0"
NUM_PROMPTS, GROUP_SIZE, PROMPT_TOKENS, RESPONSE_TOKENS = 8, 8, 38, 64
KV_BYTES = 1 << 30


def requests() -> list[tuple[list[int], int]]:
    """(prompt ids, seed) of each: groups share their prompt."""
    random = np.random.default_rng(0)
    prompts = random.integers(10, 400, (NUM_PROMPTS, PROMPT_TOKENS)).tolist()
    return [(prompts[i // GROUP_SIZE], i) for i in range(NUM_PROMPTS * GROUP_SIZE)]


def make_model(folder: Path) -> Path:
    """A random model of SmolLM2-135M's shape with some tokenizer; speed does not depend on the values."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from trimtab.testing.tiny_model import make_tokenizer

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def resolved_job(folder: Path, model: Path) -> ResolvedJob:
    """A job whose rollout role serves the model."""
    engine = {"vllm": {"dtype": "bfloat16", "kvCacheBytes": KV_BYTES, "maxConcurrentRequests": 64}}
    job = parse_job(
        {
            "apiVersion": "trimtab.dev/v1alpha1",
            "kind": "RLTrainingJob",
            "metadata": {"name": "rollout-throughput"},
            "spec": {
                "model": {"path": str(model)},
                "data": {"train": {"path": "none.jsonl"}, "maxPromptTokens": 64},
                "algorithm": {"grpo": {}},
                "training": {"steps": 1, "maxResponseTokens": RESPONSE_TOKENS},
                "rewards": [{"function": "exact_match"}],
                "roles": {"rollout": {"engine": engine}},
            },
        }
    )
    return ResolvedJob.resolve(job, attempt=1, base_dir=folder, run_dir=folder)


async def role_round(coordinator: PlayedCoordinator, number: int) -> float:
    """Tokens per second from the first request sent to the last response received."""
    sampling = {"temperature": 1.0, "topP": 1.0, "topK": 0, "minP": 0.0, "stopTokenIds": []}
    start = time.monotonic()
    asked = requests()
    for index, (prompt, seed) in enumerate(asked):
        meta = {
            "episode_id": f"{number}/{index}",
            "group_id": str(index // GROUP_SIZE),
            "seed": seed,
            "sampling": sampling,
            "max_tokens": RESPONSE_TOKENS,
            "deadline_s": 600.0,
        }
        arrays = {"prompt_ids": np.asarray(prompt, np.int32)}
        await coordinator.hub.send(WORKER, Message("generate", meta, arrays), timeout_s=60.0)
    num_tokens = 0
    for _ in asked:
        async with asyncio.timeout(600):
            _, message = await coordinator.hub.recv()
        assert message.kind == "episode", message.meta
        num_tokens += len(message.arrays["response_ids"])
    return num_tokens / (time.monotonic() - start)


def serve_bare(model: str) -> None:
    """The bare side, as a process: a line on stdin asks for a round, the answer is its tokens per second."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    llm = LLM(
        model=model,
        dtype="bfloat16",
        max_model_len=64 + RESPONSE_TOKENS,
        max_num_seqs=64,
        skip_tokenizer_init=True,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        enforce_eager=True,
        block_size=32,
        kv_cache_memory_bytes=KV_BYTES,
    )
    asked = requests()
    prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt, _ in asked]
    params = [
        SamplingParams(
            temperature=1.0,
            seed=seed,
            max_tokens=RESPONSE_TOKENS,
            logprobs=0,
            detokenize=False,
            stop_token_ids=[2],
        )
        for _, seed in asked
    ]
    print("RATE ready", flush=True)
    for _ in sys.stdin:
        start = time.monotonic()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.monotonic() - start
        print(f"RATE {sum(len(o.outputs[0].token_ids) for o in outputs) / seconds}", flush=True)


class Bare:
    """The bare side's process."""

    def __init__(self, model: Path, folder: Path) -> None:
        with engine_environment(on_gpu=False, tensor_parallel_size=1, fault_file=folder / "fault.json"):
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--bare", str(model)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )

    def answer(self) -> str:
        """The next answer; lines that vLLM prints are passed over."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("RATE "):
                return line.removeprefix("RATE ").strip()
        raise RuntimeError(f"bare vLLM ended with {self.process.wait()}")

    def round(self) -> float:
        """Tokens per second of one round."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.answer())


async def measure(model: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """Alternate rounds of both; the first of each only warms up."""
    job = resolved_job(folder, model)
    job.save(folder / "resolved.json")
    coordinator = PlayedCoordinator(job)
    port = await coordinator.start()
    worker = start_worker("rollout", folder / "resolved.json", port)
    bare: Bare | None = None
    try:
        async with asyncio.timeout(300):
            await coordinator.joined.get()
        bare = Bare(model, folder)
        assert await asyncio.to_thread(bare.answer) == "ready"
        role_rates, bare_rates = [], []
        for number in range(rounds + 1):
            role_rates.append(await role_round(coordinator, number))
            bare_rates.append(await asyncio.to_thread(bare.round))
            print(
                f"round {number}: role {role_rates[-1]:.0f} tokens/s, bare {bare_rates[-1]:.0f}",
                file=sys.stderr,
            )
        ratios = [r / b for r, b in zip(role_rates[1:], bare_rates[1:], strict=True)]
        return {
            "role_tokens_per_s": round(statistics.median(role_rates[1:]), 1),
            "bare_tokens_per_s": round(statistics.median(bare_rates[1:]), 1),
            "ratio": round(statistics.median(ratios), 3),
            "goal": GOAL,
            "rounds": rounds,
        }
    finally:
        if bare is not None:
            bare.process.kill()
            bare.process.wait()
        worker.kill()
        worker.wait()
        await coordinator.close()


def main() -> int:
    """Print the figures as JSON; exit code 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        serve_bare(arguments.bare)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = arguments.model or make_model(folder / "model")
        figures = asyncio.run(measure(model.absolute(), folder, arguments.rounds))
    print(json.dumps(figures, indent=2))
    return 0 if figures["ratio"] >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
