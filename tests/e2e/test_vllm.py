"""Whole jobs with the real vLLM: what a run leaves behind, and that a resume sees the same data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="needs vLLM: `make setup` installs it (extra rollout or rollout-cpu)")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def vllm_job(jobs: Any) -> dict[str, Any]:
    job = jobs.spec()
    roles = job["spec"]["roles"]
    roles["rollout"] = {"engine": {"vllm": {"dtype": "float32", "kvCacheBytes": "64Mi"}}}
    job["spec"]["tracking"] = {"tensorboard": True, "samplesPerStep": 16}
    job["spec"]["validation"] = {
        "everySteps": 3,
        "data": {"path": job["spec"]["data"]["train"]["path"]},
        "maxSamples": 8,
    }
    return job


def prompts_by_step(run: Any) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for line in (run.run_dir / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        if sample["kind"] == "train":
            found.setdefault(sample["step"], []).append(sample["prompt"])
    return found


def test_vllm_run_leaves_everything_behind_and_a_resume_sees_the_same_data(jobs):
    job = vllm_job(jobs)
    whole = jobs.start(job, name="whole")
    assert whole.wait(400) == 0, whole.output
    lines = whole.metrics()
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in lines if "val/score/mean" in line] == [0, 3, 6]
    # After every publication the engine's log-probs are the trainer's (float32).
    assert max(line["rollout/logprob_diff_mean"] for line in lines[1:]) < 1e-4
    for name in ("report.html", "curves.png", "summary.json", "status.json", "logs/actor-0-0.log"):
        assert (whole.run_dir / name).stat().st_size > 0, name
    assert list((whole.run_dir / "tensorboard").iterdir())
    trained_model_loads_and_has_moved(whole, jobs.model)

    run = jobs.start(job, name="parts")
    with run.held_up("reward", after_step=2) as held:
        assert held.checkpoint_step >= 2
        run.end()
    run = jobs.start(job, "--resume", name="parts")
    assert run.wait(400) == 0, run.output
    assert prompts_by_step(run) == prompts_by_step(whole)
    counters = ("training/global_step", "training/epoch", "training/num_responses", "training/num_groups")
    for got, want in zip(run.metrics()[1:], lines[1:], strict=True):
        assert {n: got[n] for n in counters} == {n: want[n] for n in counters}


def trained_model_loads_and_has_moved(run: Any, initial: Path) -> None:
    from safetensors.numpy import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(run.run_dir / "model")
    tokenizer = AutoTokenizer.from_pretrained(run.run_dir / "model")
    inputs = tokenizer("1+1=", return_tensors="pt", add_special_tokens=False, return_token_type_ids=False)
    assert model.generate(**inputs, max_new_tokens=4, do_sample=False).shape[1] > inputs["input_ids"].shape[1]
    before, after = (
        load_file(initial / "model.safetensors"),
        load_file(run.run_dir / "model" / "model.safetensors"),
    )
    assert before.keys() == after.keys()
    unmoved = [name for name in before if np.array_equal(before[name], after[name])]
    assert unmoved == []


def test_vllm_engine_killed_mid_step_is_replaced_and_brought_up_to_date(jobs):
    job = vllm_job(jobs)
    job["spec"]["roles"]["rollout"]["replicas"] = 2
    job["spec"]["training"]["steps"] = 100_000
    job["spec"].pop("validation")
    run = jobs.start(job)
    with run.held_up("rollout", replica=1, after_step=2) as held:
        run.kill("rollout", replica=1)
    run.until(
        lambda s: any(r.role == "rollout" and (r.ready, r.restarts) == (2, 1) for r in s.roles),
        what="the killed engine is back",
        timeout_s=300,
    )
    back = run.until(lambda s: s.phase == "Running", what="running").step
    run.until(lambda s: s.step >= back + 3, what="three more steps")
    run.interrupt()
    assert run.wait(300) == 0, run.output
    lines = run.metrics()
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[held.step]["rollout/retried"] > 0
    assert all(line["training/num_responses"] == 16 for line in lines)
    assert max(line["rollout/logprob_diff_mean"] for line in lines) < 1e-4
    log = (run.run_dir / "logs" / "rollout-1-0.log").read_text()
    assert "serving weights version" in log.split("incarnation 2")[1]


def test_actor_killed_while_the_engine_starts_is_waited_for(jobs):
    job = vllm_job(jobs)
    job["spec"].pop("validation")
    job["spec"]["training"]["steps"] = 2
    run = jobs.start(job)
    run.until_started("rollout")
    with run.paused("rollout"):
        run.until(lambda s: s.activity.startswith("waiting for rollout"), what="the wait for the engine")
        run.kill("actor")
        run.until(
            lambda s: any(r.role == "actor" and (r.ready, r.restarts) == (1, 1) for r in s.roles),
            what="the actor is back",
        )
    assert run.wait(300) == 0, run.output
    assert [line["step"] for line in run.metrics()] == [1, 2]
    assert "incarnation 2" in (run.run_dir / "logs" / "actor-0-0.log").read_text()
