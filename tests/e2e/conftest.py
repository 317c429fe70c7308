"""Whole jobs as a user starts them: `trimtab run` in a process of its own, watched from outside."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ruamel.yaml import YAML

from trimtab.comm.control import JobControlClient
from trimtab.errors import TrimtabError
from trimtab.v1 import job_control_pb2 as job_pb

PROMPTS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(6)]
ONE_THREAD = [{"name": "OMP_NUM_THREADS", "value": "1"}]
POLL_S = 0.02
AT_REST_S = 1.0
"""A job that has waited for a stopped worker for this long has had every answer that was on its way."""


def base_job(model: Path, data: Path) -> dict[str, Any]:
    """A job of seconds: tiny model, `hf` engine, float32, six steps; a test changes what it is about."""
    return {
        "apiVersion": "trimtab.dev/v1alpha1",
        "kind": "RLTrainingJob",
        "metadata": {"name": "e2e"},
        "spec": {
            "seed": 3,
            "model": {"path": str(model)},
            "data": {"train": {"path": str(data)}, "maxPromptTokens": 16, "applyChatTemplate": "never"},
            "algorithm": {"grpo": {"groupSize": 4, "kl": {"coefficient": 0.001}}},
            "training": {
                "steps": 6,
                "promptsPerStep": 4,
                "maxResponseTokens": 16,
                "maxTokensPerMicroBatch": 256,
                "precision": {"compute": "float32"},
                "optimizer": {"learningRate": 1e-3},
            },
            "rewards": [
                {"function": "length", "arguments": {"unit": "characters", "maximum": 4, "slack": 12}}
            ],
            "roles": {
                "actor": {"env": ONE_THREAD},
                "rollout": {"env": ONE_THREAD, "engine": {"hf": {}}},
                "reward": {"env": ONE_THREAD, "workersPerReplica": 1},
            },
            "checkpoint": {"everySteps": 2},
            "tracking": {"tensorboard": False},
            "deadlines": {"heartbeatSeconds": 30, "registrationSeconds": 240},
        },
    }


def _take_interrupts() -> None:
    """Runs in the child: tests started in the background of a shell inherit an ignored SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Run:
    """One `trimtab run` in the background."""

    def __init__(self, job: Path, run_dir: Path, *arguments: str) -> None:
        self.run_dir = run_dir
        command = [
            sys.executable,
            "-m",
            "trimtab.cli.main",
            "run",
            str(job),
            "--run-dir",
            str(run_dir),
            *arguments,
        ]
        self._output = job.with_suffix(".out").open("a+b")
        self.process = subprocess.Popen(
            command,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_take_interrupts,
        )

    @property
    def output(self) -> str:
        """What the launcher has printed."""
        self._output.flush()
        return Path(self._output.name).read_text(errors="replace")

    def status(self) -> job_pb.JobStatus | None:
        """The coordinator's word, or None while it does not answer."""
        address = self.run_dir / "coordinator.address"
        if not address.exists():
            return None
        try:
            with JobControlClient(address.read_text().strip()) as client:
                return client.get_status(timeout_s=5.0)
        except TrimtabError:
            return None

    def until(
        self, condition: Callable[[job_pb.JobStatus], bool], *, what: str, timeout_s: float = 300.0
    ) -> job_pb.JobStatus:
        """Wait until the job's status fulfils a condition; fails with the output where it never does."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            status = self.status()
            if status is not None and condition(status):
                return status
            assert self.process.poll() is None, f"the run ended before {what}:\n{self.output}\n{self.logs()}"
            time.sleep(POLL_S)
        pytest.fail(f"not within {timeout_s} s: {what}\n{self.output}\n{self.logs()}")

    def until_started(self, role: str) -> None:
        """Wait until a role has a process."""
        deadline = time.monotonic() + 60.0
        while not self._processes(role, 0, 0):
            assert time.monotonic() < deadline, f"no process of {role}\n{self.output}"
            time.sleep(POLL_S)

    @contextlib.contextmanager
    def paused(self, role: str, replica: int = 0, rank: int = 0) -> Iterator[None]:
        """One rank does nothing in the block, in which it may be killed."""
        process = self.worker(role, replica, rank)
        process.suspend()
        try:
            while process.status() != psutil.STATUS_STOPPED:
                time.sleep(POLL_S)
            yield
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    @contextlib.contextmanager
    def held_up(
        self, role: str, replica: int = 0, rank: int = 0, *, after_step: int = 1
    ) -> Iterator[job_pb.JobStatus]:
        """The job stands still in a step after this one, because one rank has unfinished work and is paused.

        It is paused while a step is generated. A rollout that then holds no request goes on, and is tried
        again in a later step; a reward or an actor is waited for sooner or later.
        """

        def waits(status: job_pb.JobStatus) -> bool:
            if role == "actor":
                return status.activity.startswith(("log-probs", "updating the actor"))
            # A reward that has scored the whole step is waited for in the validation after it.
            stands = role == "reward" or _generates(status)
            return stands and f"{role}-{replica} has " in status.activity

        while True:
            self.until(
                lambda s: s.step >= after_step and _generates(s), what=f"generating after step {after_step}"
            )
            with self.paused(role, replica, rank):
                status = self.until_at_rest(waits, on_step_only=role == "rollout")
                if status is not None:
                    yield status
                    return

    def until_at_rest(
        self, waits: Callable[[job_pb.JobStatus], bool], *, on_step_only: bool = False
    ) -> job_pb.JobStatus | None:
        """The status once the job has waited for a moment; with `on_step_only` None where it has moved on."""
        since: float | None = None

        def at_rest_or_on(status: job_pb.JobStatus) -> bool:
            nonlocal since
            if on_step_only and not _generates(status):
                return True
            since = (since or time.monotonic()) if waits(status) else None
            return since is not None and time.monotonic() - since > AT_REST_S

        status = self.until(at_rest_or_on, what="the job waits for the paused worker")
        return status if waits(status) else None

    def worker(self, role: str, replica: int = 0, rank: int = 0) -> psutil.Process:
        """The process of one rank (not of its agent)."""
        found = self._processes(role, replica, rank)
        assert found, f"no process of {role}-{replica} rank {rank}"
        return found[0]

    def _processes(self, role: str, replica: int, rank: int) -> list[psutil.Process]:
        wanted = {"TRIMTAB_ROLE": role, "TRIMTAB_REPLICA": str(replica), "TRIMTAB_RANK": str(rank)}
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if "trimtab.roles.worker" in child.cmdline() and wanted.items() <= child.environ().items():
                    found.append(child)
        return found

    def kill(self, role: str, replica: int = 0, rank: int = 0) -> None:
        """Kill -9 one rank, as the kernel would for want of memory."""
        self.worker(role, replica, rank).kill()

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def wait(self, timeout_s: float = 300.0) -> int:
        """The exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {timeout_s} s:\n{self.output}\n{self.logs()}")

    def logs(self, lines: int = 25) -> str:
        """The ends of the roles' logs, for a failure's message."""
        parts = []
        for path in sorted((self.run_dir / "logs").glob("*.log")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"--- {path.name}\n" + "\n".join(tail))
        return "\n".join(parts)

    def metrics(self) -> list[dict[str, Any]]:
        """metrics.jsonl."""
        return [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]

    def summary(self) -> dict[str, Any]:
        """summary.json."""
        return json.loads((self.run_dir / "summary.json").read_text())

    def end(self) -> None:
        """End whatever is left of it."""
        if self.process.poll() is None:
            children = psutil.Process(self.process.pid).children(recursive=True)
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)
            psutil.wait_procs(children, timeout=30)
        self._output.close()


def _generates(status: job_pb.JobStatus) -> bool:
    return status.activity.startswith("generating")


class Jobs:
    """Writes job files and starts them; ends what is left after the test."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.model = model
        self.runs: list[Run] = []

    def spec(self) -> dict[str, Any]:
        """A fresh base job to change."""
        data = self.folder / "train.jsonl"
        data.write_text("\n".join(json.dumps(row) for row in PROMPTS) + "\n")
        return base_job(self.model, data)

    def write(self, job: dict[str, Any], name: str = "job.yaml") -> Path:
        """The job as a file."""
        path = self.folder / name
        YAML().dump(job, path)
        return path

    def start(
        self, job: dict[str, Any], *arguments: str, name: str = "run", folder: Path | None = None
    ) -> Run:
        """`trimtab run`; the run directory lies in `folder`, where that is given."""
        run = Run(self.write(job, f"{name}.yaml"), (folder or self.folder) / name, *arguments)
        self.runs.append(run)
        return run


@pytest.fixture
def jobs(tmp_path: Path, tiny_model_dir: Path) -> Iterator[Jobs]:
    """Jobs on the tiny model."""
    made = Jobs(tmp_path, tiny_model_dir)
    try:
        yield made
    finally:
        for run in made.runs:
            run.end()
