"""A worker that does not belong to the running job is refused, with both values, and the job goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trimtab.api import ResolvedJob
from trimtab.comm.control import PROTOCOL_VERSION
from trimtab.errors import ExitCode
from trimtab.roles.environment import WorkerEnvironment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

OTHER_VERSION = """
import sys
import trimtab.roles.registration
trimtab.roles.registration.PROTOCOL_VERSION = 99
from trimtab.roles.worker import main
sys.exit(main())
"""


class Stranger:
    """A reward server that was started by somebody else than the job's launcher."""

    def __init__(self, run: Any, folder: Path) -> None:
        self.job = ResolvedJob.load(run.run_dir / "resolved.json")
        self.env = WorkerEnvironment(
            job_path=folder / "stranger.json",
            role="reward",
            replica=0,
            node=0,
            incarnation=7,
            coordinator=(run.run_dir / "coordinator.address").read_text().strip(),
            rank=0,
            local_rank=0,
            world_size=1,
        )

    def start(self, *, script: str | None = None, **changes: Any) -> "subprocess.CompletedProcess[str]":
        self.job.model_copy(update=changes).save(self.env.job_path)
        how = ["-m", "trimtab.roles.worker"] if script is None else ["-c", script]
        return subprocess.run(
            [sys.executable, *how],
            env={**os.environ, **self.env.to_environ()},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def test_worker_of_an_older_attempt_another_training_or_another_version_is_refused(jobs, tmp_path):
    job = jobs.spec()
    job["spec"]["training"]["steps"] = 100_000
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "attempt.json").write_text(json.dumps({"attempt": 4}))
    run = jobs.start(job)
    run.until(lambda s: s.step >= 1, what="the first step")
    stranger = Stranger(run, tmp_path)
    identity = stranger.job.training_identity
    cases = [
        (stranger.start(attempt=4), "reward-0/rank-0 is of attempt 4, the job is at attempt 5"),
        (
            stranger.start(training_identity="0" * 64),
            f"reward-0/rank-0 belongs to training {'0' * 64}, the coordinator to {identity}",
        ),
        (
            stranger.start(script=OTHER_VERSION),
            f"reward-0/rank-0 speaks protocol version 99, the coordinator {PROTOCOL_VERSION}",
        ),
    ]
    for ended, text in cases:
        assert ended.returncode == ExitCode.REFUSED, ended.stderr
        assert f"error: {text}" in ended.stderr
        assert "Traceback" not in ended.stderr
    before = run.until(lambda s: s.phase == "Running", what="running")
    after = run.until(lambda s: s.step >= before.step + 2, what="two more steps")
    assert all((role.ready, role.restarts) == (1, 0) for role in after.roles)
    run.interrupt()
    assert run.wait() == 0
