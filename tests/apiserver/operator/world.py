"""A namespace on a real API server, and what happens in it: jobs, pods, operators, coordinators of jobs.

The test plays scheduler and kubelet (kubelet.py), as nobody else does, and the coordinators (coordinator.py),
each on a loopback address that its pod is given, with the job's certificates.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc.aio
from tests.apiserver.client import Api
from tests.apiserver.operator.coordinator import Coordinator
from tests.apiserver.operator.kubelet import POD_LABELS, Kubelet
from tests.apiserver.operator.process import OperatorProcess

from trimtab.v1 import job_control_pb2_grpc as rpc
from trimtab_operator.certs import JobCredentials, MasterKey
from trimtab_operator.constants import CONTROL_PORT

Manifest = dict[str, Any]

MASTER = b"m" * 32
WITHIN_S = 150.0
SETTINGS = {
    "roles": {name: {"image": "i"} for name in ("coordinator", "actor", "rollout", "reward")},
    "backoffS": 1,
    "terminatingDeadlineS": 2,
}


class World:
    """The test's namespace, and what happens in it."""

    def __init__(self, api: Api, folder: Path, *, operator: OperatorProcess | None = None) -> None:
        """`operator`: the one that serves all namespaces, with the chart's roles."""
        self.api = api
        self.kubelet = Kubelet(api)
        self.master = MASTER
        self._shared = operator
        self._folder = folder
        self._operators: list[OperatorProcess] = []
        self._coordinators: list[Coordinator] = []
        identity = folder / "identity"
        identity.mkdir(parents=True)
        (identity / "master.key").write_bytes(MASTER)
        settings = {"operatorNamespace": api.namespace, **SETTINGS}
        (folder / "settings.json").write_text(json.dumps(settings))

    @property
    def operator(self) -> OperatorProcess:
        """The one that serves all namespaces."""
        assert self._shared is not None
        return self._shared

    def start_operator(self, *flags: str, everywhere: bool = False) -> OperatorProcess:
        """Another operator, with all rights; `everywhere`: in cluster mode."""
        config = self.api.server.kubeconfig(namespace=self.api.namespace)
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
        self.kubelet.held.add(name)
        return await self.bring_up(await self.api.create(self.job(name, **spec)))

    async def bring_up(self, made: Manifest) -> tuple[Manifest, Coordinator]:
        """Let a job that was created take steps; the job then, and its coordinator."""
        name, peer = made["metadata"]["name"], await self.coordinator(made)
        started = await self.job_until(name, lambda raw: self.attempt(raw) > 0, "started")
        peer.trains(self.attempt(started), 1)
        self.kubelet.held.discard(name)
        return await self.job_is(name, Running="True/TakingSteps"), peer

    async def coordinator(self, made: Manifest) -> Coordinator:
        """Play the coordinator of a job from now on."""
        metadata = made["metadata"]
        data = JobCredentials(
            MasterKey(self.master),
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
async def open_world(
    api: Api, folder: Path, *, operator: OperatorProcess | None = None
) -> AsyncIterator[World]:
    """A world whose kubelet works; everything that was started in it ends with it."""
    made = World(api, folder, operator=operator)
    task = asyncio.create_task(made.kubelet.run())
    try:
        yield made
    finally:
        await made.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
