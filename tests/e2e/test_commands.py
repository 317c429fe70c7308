"""What a user does to a running job from another terminal, and to the folders that runs share."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from trimtab.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_set_changes_later_steps_status_follows_them_and_every_process_serves_metrics(jobs, capsys):
    job = jobs.spec()
    job["spec"]["training"]["steps"] = 100_000
    run = jobs.start(job)
    run.until(lambda s: s.step >= 1, what="the first step")

    groups = json.loads((run.run_dir / "metrics-endpoints.json").read_text())
    assert sorted(group["labels"]["worker"] for group in groups) == [
        "actor-0/rank-0",
        "coordinator-0/rank-0",
        "reward-0/rank-0",
        "rollout-0/rank-0",
    ]
    for group in groups:
        with urllib.request.urlopen(f"http://{group['targets'][0]}/metrics", timeout=60) as answer:
            assert b"process_resident_memory_bytes" in answer.read()

    watch = subprocess.Popen(
        [sys.executable, "-m", "trimtab.cli.main", "status", str(run.run_dir), "--watch"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watch.stdout is not None
    try:
        assert watch.stdout.readline()  # it follows the job
        assert main(["set", str(run.run_dir), "--max-response-tokens", "3"]) == 0
        step = int(capsys.readouterr().out.removeprefix("from step ").removesuffix(" on\n"))
        run.until(lambda s: s.step >= step + 3, what="three steps with other settings")
        assert main(["stop", str(run.run_dir)]) == 0
        watched, _ = watch.communicate(timeout=300)
    finally:
        watch.kill()
        watch.communicate()
    assert watch.returncode == 0
    assert run.wait() == 0
    ended = run.summary()["step"]
    assert "/100000" in watched
    assert f"e2e: Stopped, step {ended} of 100000" in watched
    assert main(["status", str(run.run_dir)]) == 0
    for shown in (watched, capsys.readouterr().out):
        for role in ("actor", "rollout", "reward"):
            assert f"  {role}: 1 of 1 ready at the end, 0 restarts\n" in shown
    longest = {line["step"]: line["response_length/max"] for line in run.metrics()}
    assert longest[1] > 3
    assert [longest[later] for later in range(step, step + 4)] == [3.0] * 4
    assert max(longest[later] for later in range(step, ended + 1)) == 3.0
    assert not (run.run_dir / "metrics-endpoints.json").exists()


def test_resume_never_starts_anew_in_a_checkpoint_folder_that_another_run_has_used(jobs):
    job = jobs.spec()
    job["spec"]["training"]["steps"] = 2
    job["spec"]["checkpoint"] |= {"uri": str(jobs.folder / "shared"), "resume": "never"}
    first = jobs.start(job, name="first")
    assert first.wait() == 0
    second = jobs.start(job, name="second")
    assert second.wait() == 0, second.output
    assert [line["step"] for line in second.metrics()] == [1, 2]
    assert json.loads((second.run_dir / "attempt.json").read_text()) == {"attempt": 2}
    manifest = Path(second.summary()["checkpoint"]) / "manifest.json"
    assert json.loads(manifest.read_text())["attempt"] == 2
