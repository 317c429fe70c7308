"""Stopping and going on: a resumed run is the run that was never interrupted."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TIMED = (
    "timing_s/",
    "perf/",
    "rollout/latency",
    "rollout/throughput",
    "weights/sync_s",
    "weights/bytes_per_s",
)
"""Metrics that are times, and so never the same twice."""


def numbers(line: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in line.items() if k != "time" and not k.startswith(TIMED)}
    # Counts publications: a resumed run publishes what it loaded.
    kept.pop("weights/version")
    return kept


def weights(run: Any) -> bytes:
    return Path(run.run_dir / "model" / "model.safetensors").read_bytes()


def test_run_killed_and_resumed_equals_the_uninterrupted_one_bit_for_bit(jobs):
    job = jobs.spec()
    whole = jobs.start(job, name="whole")
    assert whole.wait() == 0
    run = jobs.start(job, name="parts")
    with run.held_up("reward", after_step=2) as held:
        assert held.checkpoint_step >= 2
        run.end()
    run = jobs.start(job, "--resume", name="parts")
    assert run.wait() == 0
    assert weights(run) == weights(whole)
    for got, want in zip(run.metrics(), whole.metrics(), strict=True):
        assert numbers(got) == numbers(want), got["step"]


def test_interrupt_finishes_the_step_saves_and_exits_0_and_resume_goes_on(jobs):
    run = jobs.start(jobs.spec())
    with run.held_up("reward", after_step=2) as held:
        run.interrupt()
        run.until(lambda s: s.phase == "Stopping", what="the stop is noted")
    assert run.wait() == 0
    summary = run.summary()
    assert summary["phase"] == "Stopped"
    assert (Path(summary["checkpoint"]) / "manifest.json").exists()
    stopped_at = summary["step"]
    assert stopped_at == held.step + 1
    run = jobs.start(jobs.spec(), "--resume")
    assert run.wait() == 0
    assert [line["step"] for line in run.metrics()] == [1, 2, 3, 4, 5, 6]
    assert f"(step {stopped_at})" in (run.run_dir / "logs" / "coordinator-0-0.log").read_text()


def test_interrupt_without_grace_falls_back_to_the_last_boundary(jobs):
    job = jobs.spec()
    job["spec"]["deadlines"]["stopGraceSeconds"] = 0.1
    run = jobs.start(job)
    with run.held_up("reward", after_step=1) as held:
        run.interrupt()
        run.until(lambda s: not s.activity.startswith("generating"), what="the step is given up")
    assert run.wait() == 0
    assert run.summary()["step"] == held.step
    assert run.summary()["checkpoint"].endswith(f"step-{held.step:08d}")


def test_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_taken(jobs):
    job = jobs.spec()
    job["spec"]["training"]["steps"] = 4
    run = jobs.start(job)
    assert run.wait() == 0
    newest = run.run_dir / "checkpoints" / "step-00000004"
    victim = max((p for p in (newest / "actor").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-10])
    run = jobs.start(job, "--resume")
    assert run.wait() == 0
    log = (run.run_dir / "logs" / "coordinator-0-0.log").read_text()
    assert "checkpoint refused" in log
    assert victim.name in log
    assert "(step 2)" in log
