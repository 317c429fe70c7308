"""Does the quickstart learn, and only from its reward? Three seeds of the example, and of a control.

The control is the same job with a reward that is shuffled among the samples (`quickstart_control/`); its
validation still counts right answers. Runs one after the other through `trimtab run`; about 15 minutes on two
cores. Prints one line a run and writes `results/quickstart_learning.json`; exits with 1 where a bound is
missed.

    python benchmarks/quickstart_learning.py [--seeds 1 2 3]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent / "examples" / "quickstart"
RESULTS = HERE / "results" / "quickstart_learning.json"
BELOW, ABOVE = 0.5, 0.85
"""Held-out greedy accuracy before and after."""
TOLERANCE = 0.05
"""By how much the control may end above its start: 1.5 standard errors of 200 prompts."""
RUN_TIMEOUT_S = 900
ACCURACY = "val/score/mean"


def write_job(folder: Path, *, seed: int, shuffled: bool) -> Path:
    """The example's job with another seed and, for the control, another reward."""
    yaml = YAML()
    job = yaml.load((EXAMPLE / "job.yaml").read_text(encoding="utf-8"))
    spec = job["spec"]
    spec["seed"] = seed
    if shuffled:
        spec["validation"]["rewards"] = spec["rewards"]
        spec["rewards"] = [{"function": "shuffled:score"}]
        spec["code"] = {"path": str(HERE / "quickstart_control")}
    path = folder / "job.yaml"
    yaml.dump(job, path)
    return path


def accuracies(run_dir: Path) -> list[float]:
    """Validation accuracy over the run, in order of steps."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return [float(record[ACCURACY]) for record in records if ACCURACY in record]


def run_one(folder: Path, *, seed: int, shuffled: bool) -> dict[str, Any]:
    """Prepare, train, read the curve."""
    start = time.monotonic()
    subprocess.run(
        [sys.executable, str(EXAMPLE / "prepare.py"), "--seed", str(seed), "--out", str(folder)], check=True
    )
    prepared_s = time.monotonic() - start
    job = write_job(folder, seed=seed, shuffled=shuffled)
    run_dir = folder / "run"
    command = [sys.executable, "-m", "trimtab.cli.main", "run", str(job), "--run-dir", str(run_dir)]
    subprocess.run(command, check=True, timeout=RUN_TIMEOUT_S)
    curve = accuracies(run_dir)
    passed = curve[-1] <= curve[0] + TOLERANCE if shuffled else curve[0] < BELOW and curve[-1] > ABOVE
    return {
        "seed": seed,
        "shuffled": shuffled,
        "accuracy": [round(value, 3) for value in curve],
        "prepare_s": round(prepared_s, 1),
        "total_s": round(time.monotonic() - start, 1),
        "passed": passed,
    }


def main() -> int:
    """Run all, print a table, write the figures."""
    parser = argparse.ArgumentParser(description="Does the quickstart learn, and only from its reward?")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    seeds = parser.parse_args().seeds
    results = []
    for shuffled in (False, True):
        for seed in seeds:
            with tempfile.TemporaryDirectory(prefix="trimtab-quickstart-") as folder:
                results.append(run_one(Path(folder), seed=seed, shuffled=shuffled))
            print(json.dumps(results[-1]), flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print("\n| reward | seed | accuracy before | after | seconds | |\n|---|---|---|---|---|---|")
    for result in results:
        reward = "shuffled" if result["shuffled"] else "exact match"
        first, last = result["accuracy"][0], result["accuracy"][-1]
        verdict = "as it should" if result["passed"] else "NOT as it should"
        print(f"| {reward} | {result['seed']} | {first} | {last} | {result['total_s']} | {verdict} |")
    return 0 if all(result["passed"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
