"""A small world around real operator processes and a real API server. What a test asks for:

    operator   one operator process that leads and serves the test's namespace
    world      everything else, see `World`: jobs, pods, more operators, the coordinators of jobs

The test plays scheduler and kubelet (`Kubelet`), as nobody else does. The coordinator of a job is a gRPC
server of the test (`Coordinator`), on a loopback address that its pod is given, with the job's certificates.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from trimtab.v1 import job_control_pb2 as pb
from trimtab.v1 import job_control_pb2_grpc as rpc
from trimtab_operator.certs import JobCredentials, MasterKey
from trimtab_operator.constants import CONTROL_PORT

Manifest = dict[str, Any]

MASTER = b"m" * 32
STARTED_S = 30.0
WITHIN_S = 40.0
POD_LABELS = "app.kubernetes.io/managed-by=trimtab"


@pytest.fixture(autouse=True, scope="session")
def _asked_for() -> None:
    """Not part of every run: they take five minutes, and their deadlines are short for a busy machine."""
    if not os.environ.get("TRIMTAB_OPERATOR_TESTS"):
        pytest.skip(
            "TRIMTAB_OPERATOR_TESTS is not set: 1 runs the real operator against a real API server (5 min)"
        )


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _addresses() -> Iterator[str]:
    """Loopback addresses that no other test process uses."""
    head = f"127.{1 + os.getpid() // 250 % 250}.{os.getpid() % 250}"
    while True:
        yield from (f"{head}.{number}" for number in range(2, 250))


class OperatorProcess:
    """`trimtab-operator run`, with its log in a file."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, stderr=file, stdout=file, preexec_fn=_die_with_parent)

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    async def logged(self, pattern: str, timeout_s: float = STARTED_S) -> re.Match[str]:
        """Wait until a message matches."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for line in self.lines():
                if found := re.search(pattern, line["message"]):
                    return found
            assert self.process.poll() is None, f"the operator has ended: {self.log.read_text()[-3000:]}"
            await asyncio.sleep(0.05)
        raise AssertionError(f"nothing like {pattern!r} was logged: {self.log.read_text()[-3000:]}")

    async def get(self, path: str) -> tuple[int, str]:
        """Ask its health endpoint."""
        port = (await self.logged(r"on port (\d+)"))[1]
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}{path}") as response,
        ):
            return response.status, await response.text()

    async def ready(self) -> None:
        """Wait until it leads, or stands by."""
        deadline = time.monotonic() + STARTED_S
        while (await self.get("/readyz"))[0] != 200:
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            await asyncio.sleep(0.05)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        families = text_string_to_metric_families((await self.get("/metrics"))[1])
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    async def end(self, number: int = signal.SIGTERM, timeout_s: float = 10.0) -> int:
        """Send a signal, and wait; the exit code."""
        self.process.send_signal(number)
        return await self.ended(timeout_s)

    async def ended(self, timeout_s: float) -> int:
        """Wait for its end; the exit code."""
        return await asyncio.to_thread(self.process.wait, timeout_s)

    def kill(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait(10)


class Kubelet:
    """Scheduler and kubelet of the namespace: pods run as soon as they are there, and go when told."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self.addresses = _addresses()
        self.coordinators: dict[str, str] = {}
        """Job -> address that its coordinator's pod is given."""
        self.away = False
        """Whether it does nothing, as on a dead node."""
        self.ran: list[str] = []
        """Pods that it has started, in order."""

    def coordinator_address(self, job: str) -> str:
        """Where a job's coordinator is, whoever asks first: its pod, or who plays it."""
        if job not in self.coordinators:
            self.coordinators[job] = next(self.addresses)
        return self.coordinators[job]

    async def run(self) -> None:
        """Play until cancelled."""
        while True:
            if not self.away:
                with contextlib.suppress(aiohttp.ClientError, self._api.Error):
                    for pod in await self._api.list("Pod", labelSelector=POD_LABELS):
                        await self._step(pod)
            await asyncio.sleep(0.05)

    async def _step(self, pod: Manifest) -> None:
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        if pod["metadata"].get("deletionTimestamp"):
            await self._api.delete("Pod", name, body={"gracePeriodSeconds": 0})
        elif not pod["spec"].get("nodeName"):
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name},
                "target": {"kind": "Node", "name": "node-1"},
            }
            path = await self._api.path("Pod", name, subresource="binding")
            await self._api.request("POST", path, body=binding)
            is_coordinator = labels["trimtab.dev/role"] == "coordinator"
            known = self.coordinator_address(labels["trimtab.dev/job"]) if is_coordinator else None
            await self.status(name, {"running": {"startedAt": _now()}}, address=known)
            self.ran.append(name)

    async def status(
        self, name: str, state: Manifest, *, phase: str = "Running", address: str | None = None
    ) -> None:
        """Write the status of a pod whose main container is in a state."""
        ready, address = "running" in state, address or next(self.addresses)
        container = {
            "name": "trimtab",
            "image": "i",
            "imageID": "",
            "ready": ready,
            "restartCount": 0,
            "state": state,
        }
        status = {
            "phase": phase,
            "startTime": _now(),
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": str(ready)},
            ],
            "containerStatuses": [container],
        }
        await self._api.patch("Pod", name, {"status": status}, subresource="status")

    async def ends(self, name: str, code: int, message: str | Manifest = "") -> None:
        """End a pod's main container, with a log line or a final word."""
        text = message if isinstance(message, str) else json.dumps({"trimtab": 1, **message})
        ended = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "message": text,
            "finishedAt": _now(),
        }
        await self.status(name, {"terminated": ended}, phase="Failed" if code else "Succeeded")


class Coordinator(rpc.JobControlServicer):
    """Says `status`, and records what it is told."""

    def __init__(self) -> None:
        self.status = pb.JobStatus(phase="Starting")
        self.stops: list[pb.StopRequest] = []
        self.sizes: list[pb.ResizeRequest] = []
        self.server = grpc.aio.server()

    async def GetStatus(self, request: pb.GetStatusRequest, context: object) -> pb.JobStatus:  # noqa: N802
        return self.status

    async def Stop(self, request: pb.StopRequest, context: object) -> pb.StopResponse:  # noqa: N802
        self.stops.append(request)
        return pb.StopResponse()

    async def Resize(self, request: pb.ResizeRequest, context: object) -> pb.ResizeResponse:  # noqa: N802
        self.sizes.append(request)
        wanted = {"rollout": request.rollout_replicas, "reward": request.reward_replicas}
        for role in self.status.roles:
            role.desired = wanted.get(role.role, role.desired)
        return pb.ResizeResponse()

    def trains(self, attempt: int, step: int, *, rollouts: int = 2) -> None:
        """Take steps with everybody registered."""
        counts = {"actor": 1, "rollout": rollouts, "reward": 1}
        self.status = pb.JobStatus(
            attempt=attempt,
            phase="Running",
            step=step,
            total_steps=8,
            metrics={"critic/rewards/mean": 0.5},
            roles=[
                pb.RoleStatus(role=role, desired=count, ready=count, min_desired=1)
                for role, count in counts.items()
            ],
            checkpoint_path="/trimtab/run/checkpoints/step-2",
            checkpoint_step=2,
        )


class World:
    """The test's namespace, and what happens in it."""

    def __init__(self, api: Any, folder: Path) -> None:
        self.api = api
        self.kubelet = Kubelet(api)
        self._folder = folder
        self._operators: list[OperatorProcess] = []
        self._coordinators: list[Coordinator] = []
        identity = folder / "identity"
        identity.mkdir()
        (identity / "master.key").write_bytes(MASTER)
        settings = {
            "operatorNamespace": api.namespace,
            "roles": {name: {"image": "i"} for name in ("coordinator", "actor", "rollout", "reward")},
            "backoffS": 1,
            "terminatingDeadlineS": 2,
        }
        (folder / "settings.json").write_text(json.dumps(settings))

    def start_operator(self, *flags: str, user: Any = None, everywhere: bool = False) -> OperatorProcess:
        """Another operator: with the rights of `user` (all by default); `everywhere`: in cluster mode."""
        account = user or self.api
        config = account.server.kubeconfig(token=account.token, namespace=account.namespace)
        command = [
            *(sys.executable, "-m", "trimtab_operator.main", "run", "--health-port=0"),
            f"--kubeconfig={config}",
            f"--settings={self._folder / 'settings.json'}",
            f"--identity-dir={self._folder / 'identity'}",
            *([] if everywhere else [f"--namespace={self.api.namespace}"]),
            *flags,
        ]
        made = OperatorProcess(command, self._folder / f"operator-{len(self._operators)}.log")
        self._operators.append(made)
        return made

    def job(self, name: str = "job", **spec: Any) -> Manifest:
        """A job of five pods: one coordinator, one actor, two rollouts, one reward."""
        return {
            "apiVersion": "trimtab.dev/v1alpha1",
            "kind": "RLTrainingJob",
            "metadata": {"name": name},
            "spec": {
                "model": {"path": "/models/tiny"},
                "data": {"train": {"path": "/data/train.jsonl"}},
                "algorithm": {"grpo": {}},
                "training": {"steps": 8},
                "rewards": [{"function": "exact_match"}],
                "storage": {"claim": {"size": "1Gi"}},
                "roles": {"rollout": {"replicas": 2}},
            }
            | spec,
        }

    async def running(self, name: str = "job", **spec: Any) -> tuple[Manifest, Coordinator]:
        """A job that takes steps, and its coordinator."""
        return await self.bring_up(await self.api.create(self.job(name, **spec)))

    async def bring_up(self, made: Manifest) -> tuple[Manifest, Coordinator]:
        """Let a job that was created take steps; the job then, and its coordinator."""
        name, peer = made["metadata"]["name"], await self.coordinator(made)
        started = await self.job_until(name, lambda raw: self.attempt(raw) > 0, "started")
        peer.trains(self.attempt(started), 1)
        return await self.job_is(name, Running="True/TakingSteps"), peer

    async def coordinator(self, made: Manifest) -> Coordinator:
        """Play the coordinator of a job from now on."""
        metadata = made["metadata"]
        data = JobCredentials(
            MasterKey(MASTER),
            job_uid=metadata["uid"],
            namespace=metadata["namespace"],
            job_name=metadata["name"],
        ).secret_data(datetime.now(UTC))
        peer, address = Coordinator(), self.kubelet.coordinator_address(metadata["name"])
        rpc.add_JobControlServicer_to_server(peer, peer.server)
        credentials = grpc.ssl_server_credentials(
            [(data["coordinator.key"], data["coordinator.crt"])],
            root_certificates=data["ca.crt"],
            require_client_auth=True,
        )
        peer.server.add_secure_port(f"{address}:{CONTROL_PORT}", credentials)
        await peer.server.start()
        self._coordinators.append(peer)
        return peer

    @staticmethod
    def attempt(raw: Manifest) -> int:
        """`status.attempt`; 0: none yet."""
        return int(raw.get("status", {}).get("attempt", 0))

    @staticmethod
    def condition(raw: Manifest, kind: str) -> str:
        """`True/Reason` of a condition."""
        found = [item for item in raw.get("status", {}).get("conditions", []) if item["type"] == kind]
        return f"{found[0]['status']}/{found[0]['reason']}" if found else ""

    @staticmethod
    def message(raw: Manifest, kind: str) -> str:
        """Message of a condition."""
        return str(next(item["message"] for item in raw["status"]["conditions"] if item["type"] == kind))

    async def job_until(self, name: str, holds: Callable[[Manifest], bool], what: str) -> Manifest:
        """Wait until something holds of a job."""
        found: Manifest = await self.api.wait_for("RLTrainingJob", name, holds, what=what, timeout_s=WITHIN_S)
        return found

    async def job_is(self, name: str, **conditions: str) -> Manifest:
        """Wait for conditions: `Running="True/TakingSteps"`."""
        return await self.job_until(
            name,
            lambda raw: all(self.condition(raw, kind) == value for kind, value in conditions.items()),
            str(conditions),
        )

    async def pods(self, name: str = "job", role: str = "") -> dict[str, str]:
        """Names and uids of a job's pods, or of one role's."""
        selector = f"{POD_LABELS},trimtab.dev/job={name}" + (f",trimtab.dev/role={role}" if role else "")
        pods = await self.api.list("Pod", labelSelector=selector)
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}

    async def pod(self, unit: str, name: str = "job") -> str:
        """The pod of a unit (`rollout-0`)."""
        return next(each for each in await self.pods(name) if each.startswith(f"{name}-{unit}-"))

    async def pods_are(self, count: int, name: str = "job", *, without: str = "") -> dict[str, str]:
        """Wait until a job has so many pods, `without` one of that name."""
        pods: dict[str, str] = {}

        async def holds() -> bool:
            nonlocal pods
            pods = await self.pods(name)
            return len(pods) == count and without not in pods

        await self.until(holds, f"{count} pods of {name}")
        return pods

    async def ran(self, count: int) -> None:
        """Wait until so many pods were started in all, and no pod twice."""

        async def holds() -> bool:
            return len(self.kubelet.ran) >= count

        await self.until(holds, f"{count} pods started")
        assert len(self.kubelet.ran) == len(set(self.kubelet.ran)) == count, "each pod once"

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + WITHIN_S
        while not await holds():
            assert time.monotonic() < deadline, f"not {what} after {WITHIN_S} s"
            await asyncio.sleep(0.05)

    async def told(self, list_of: Callable[[], list[Any]], what: str) -> Any:
        """Wait until a coordinator was told something; the first time that it was."""

        async def holds() -> bool:
            return bool(list_of())

        await self.until(holds, what)
        return list_of()[0]

    async def job_gone(self) -> None:
        """Wait until there is no job."""

        async def holds() -> bool:
            return not await self.api.list("RLTrainingJob")

        await self.until(holds, "removed")

    async def close(self) -> None:
        """End everything that was started."""
        for operator in self._operators:
            operator.kill()
        for peer in self._coordinators:
            await peer.server.stop(None)


@contextlib.asynccontextmanager
async def _world(api: Any, folder: Path) -> AsyncIterator[World]:
    made = World(api, folder)
    task = asyncio.create_task(made.kubelet.run())
    try:
        yield made
    finally:
        await made.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def world(crd: Any, tmp_path: Path) -> AsyncIterator[World]:
    """The test's namespace on the shared API server."""
    async with _world(crd, tmp_path) as made:
        yield made


@pytest.fixture
async def own_world(own_apiserver: Any, connect: Any, tmp_path: Path) -> AsyncIterator[World]:
    """A namespace on an API server of the test's own, without the CRD."""
    (tmp_path / "world").mkdir()
    async with connect(own_apiserver) as api, _world(api, tmp_path / "world") as made:
        yield made


@pytest.fixture
async def operator(world: World) -> OperatorProcess:
    """An operator that leads and has begun."""
    made = world.start_operator()
    await made.ready()
    await made.logged("leading as")
    return made
