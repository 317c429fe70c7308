"""A job's pods without a cluster: agents with a pod's environment, each on a loopback address of its own.

The test plays the operator: it makes pods, replaces them, deletes them (SIGTERM), answers for the headless
Service (a DNS server) and commands the coordinator with the operator's certificate. Nothing of the runtime is
replaced. A reward function of the user's holds the job up while the test has closed the gate.
"""

import contextlib
import datetime as dt
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from trimtab.api import ResolvedJob, parse_job
from trimtab.comm.control import JobControlClient
from trimtab.comm.tls import COORDINATOR, OPERATOR, WORKER, JobTls
from trimtab.errors import TrimtabError
from trimtab.roles.environment import PodEnvironment
from trimtab.v1 import job_control_pb2 as job_pb

PORT = 7070
UID = "this-job"
POLL_S = 0.02
GATE = """
import os, time
from pathlib import Path

def score(prompt, response, fields):
    while Path(os.environ["GATE"]).exists():
        time.sleep(0.01)
    return 1.0 / (1 + len(response))
"""


@dataclass
class Pod:
    """One agent."""

    env: PodEnvironment
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def final_word(self) -> dict[str, Any]:
        """What the coordinator left."""
        assert self.env.termination_log is not None
        return json.loads(self.env.termination_log.read_bytes())

    def terminate(self) -> None:
        """What the deletion of a pod does first."""
        self.process.send_signal(signal.SIGTERM)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Its rank does nothing in the block."""
        [rank] = psutil.Process(self.process.pid).children()
        rank.suspend()
        try:
            yield
        finally:
            rank.resume()

    def wait(self, timeout_s: float = 120.0) -> int:
        """The exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(
                f"{self.env.pod_name} is still there:\n{self.log.read_text(errors='replace')[-6000:]}"
            )

    def end(self) -> None:
        """Whatever is left of it."""
        if self.process.poll() is None:
            children = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            self.process.wait(30)
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(children, timeout=30)


@dataclass
class Cluster:
    """The pods of one job, and what the operator does with them."""

    folder: Path
    spec: dict[str, Any]
    mount: Callable[..., Any]
    names: Any
    """The DNS."""
    attempt: int = 1
    pods: list[Pod] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _incarnations: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gate = self.folder / "gate"
        self.run_dir = self.folder / "storage" / "e2e-12345678"
        self.code = self.folder / "code"
        self.code.mkdir()
        (self.code / "gated.py").write_text(GATE)
        self.operator = JobTls(self._operator_folder(), OPERATOR)
        self.begin()

    def begin(self) -> None:
        """One start of the job: everything is resolved once, for this attempt."""
        job = parse_job(self.spec)
        resolved = ResolvedJob.resolve(job, attempt=self.attempt, base_dir=Path("/"), run_dir=self.run_dir)
        self.job_path = self.folder / f"job-{self.attempt}.json"
        resolved.save(self.job_path)
        self._incarnations.clear()

    def start(self, role: str, replica: int = 0, *, node: int = 0, uid: str = UID) -> Pod:
        """A pod for this place, of its next incarnation; a coordinator's address is published."""
        number = next(self._numbers)
        place = f"{role}-{replica}-{node}"
        incarnation = self._incarnations.get(place, 0) + 1
        self._incarnations[place] = incarnation
        address = f"127.0.1.{number}"
        termination = self.folder / f"termination-{number}"
        termination.touch()
        env = PodEnvironment(
            job_path=self.job_path,
            role=role,
            replica=replica,
            node=node,
            incarnation=incarnation,
            coordinator=self.names.target(PORT),
            host=address,
            termination_log=termination,
            tls_dir=self.mount(COORDINATOR if role == COORDINATOR else WORKER, uid=uid).path,
        )
        log = self.folder / f"{number:02d}-{place}-{incarnation}.log"
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(self.code),
            "GATE": str(self.gate),
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "trimtab.cli.main", "agent"],
                env=variables | env.to_environ(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        pod = Pod(env, process, log)
        self.pods.append(pod)
        if role == COORDINATOR:
            self.names.address = address
        return pod

    def close_gate(self) -> None:
        """No response is scored from here on."""
        self.gate.touch()

    def open_gate(self) -> None:
        """Scoring goes on."""
        self.gate.unlink(missing_ok=True)

    @contextlib.contextmanager
    def client(self) -> Iterator[JobControlClient]:
        """The coordinator's control, for the operator, who dials its pod's address."""
        with JobControlClient(f"{self.names.address}:{PORT}", self.operator) as client:
            yield client

    def status(self) -> job_pb.JobStatus | None:
        """The coordinator's word, or None while it does not answer."""
        try:
            with self.client() as client:
                return client.get_status(timeout_s=5.0)
        except TrimtabError:
            return None

    def until(
        self, condition: Callable[[job_pb.JobStatus], bool], *, what: str, timeout_s: float = 180.0
    ) -> job_pb.JobStatus:
        """Wait until the status fulfils a condition; fails with the pods' logs where it never does."""
        deadline = time.monotonic() + timeout_s
        status: job_pb.JobStatus | None = None
        while time.monotonic() < deadline:
            status = self.status()
            if status is not None and condition(status):
                return status
            time.sleep(POLL_S)
        pytest.fail(f"not within {timeout_s:g} s: {what}\n{status}\n{self.logs()}")

    def until_held_up(self, *, after_step: int) -> job_pb.JobStatus:
        """Close the gate once this many steps are done, and wait until the job stands at it."""
        self.until(lambda s: s.step >= after_step, what=f"step {after_step}")
        self.close_gate()
        since, step = time.monotonic(), -1

        def stands(status: job_pb.JobStatus) -> bool:
            nonlocal since, step
            if status.step != step or not status.activity.startswith("generating"):
                since, step = time.monotonic(), status.step
            return time.monotonic() - since > 0.5 and "reward-0 has" in status.activity

        return self.until(stands, what="the job stands at the gate")

    def resize(self, rollouts: int) -> None:
        """Other numbers of replicas."""
        with self.client() as client:
            client.resize(
                job_pb.ResizeRequest(
                    rollout_replicas=rollouts,
                    min_rollout_replicas=1,
                    reward_replicas=1,
                    min_reward_replicas=1,
                )
            )

    def metrics(self) -> list[dict[str, Any]]:
        """metrics.jsonl."""
        return [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]

    def logs(self, lines: int = 20) -> str:
        """The ends of all pods' logs."""
        parts = []
        for pod in self.pods:
            tail = pod.log.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"--- {pod.log.name} (exit {pod.process.poll()})\n" + "\n".join(tail))
        return "\n".join(parts)

    def end(self) -> None:
        """Nothing stays."""
        for pod in self.pods:
            pod.end()

    def _operator_folder(self) -> Path:
        from trimtab_operator.certs import JobCredentials, MasterKey

        job = JobCredentials(MasterKey(b"m" * 32), job_uid=UID, namespace="ns", job_name="job")
        pems = job.operator_pems(dt.datetime.now(dt.UTC))
        folder = self.folder / "operator"
        folder.mkdir()
        (folder / "ca.crt").write_bytes(pems.ca)
        (folder / f"{OPERATOR}.crt").write_bytes(pems.certificate)
        (folder / f"{OPERATOR}.key").write_bytes(pems.key)
        return folder


@pytest.fixture
def cluster(
    tmp_path: Path, jobs: Any, tls_mount: Callable[..., Any], service_names: Any
) -> Iterator[Cluster]:
    """A job of the tiny model, none of its pods started."""
    job = jobs.spec()
    job["spec"]["training"]["steps"] = 8
    job["spec"]["rewards"] = [{"function": "gated:score", "timeoutSeconds": 300}]
    job["spec"]["checkpoint"] = {"everySteps": 3}
    made = Cluster(tmp_path, job, tls_mount, service_names)
    try:
        yield made
    finally:
        made.end()
