"""Scheduler and kubelet of a namespace, played by the test."""

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import aiohttp
from tests.apiserver.client import Api, ApiError

Manifest = dict[str, Any]
POD_LABELS = "app.kubernetes.io/managed-by=trimtab"
_THIRD = itertools.count(1)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _addresses() -> Iterator[str]:
    """Loopback addresses that nobody else uses: those of a process of its own, of a namespace of its own."""
    number = os.getpid() * 64 + next(_THIRD)
    head = f"127.{1 + number // 250 % 250}.{number % 250}"
    while True:
        yield from (f"{head}.{last}" for last in range(2, 250))


class Kubelet:
    """Pods run as soon as they are there, and go when told."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.addresses = _addresses()
        self.coordinators: dict[str, str] = {}
        """Job -> address that its coordinator's pod is given."""
        self.held: set[str] = set()
        """Jobs whose coordinator's pod is not started yet, as nobody plays it."""
        self.away = False
        """Whether it does nothing, as on a dead node."""
        self.ran: list[str] = []
        """Pods that it has started, in order."""
        self._bound: set[str] = set()

    def coordinator_address(self, job: str) -> str:
        """Where a job's coordinator is, whoever asks first: its pod, or who plays it."""
        if job not in self.coordinators:
            self.coordinators[job] = next(self.addresses)
        return self.coordinators[job]

    async def run(self) -> None:
        """Play until cancelled."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, ApiError):
                await self._watch()
            await asyncio.sleep(0.2)

    async def _watch(self) -> None:
        path = await self._api.path("Pod")
        pods = {}
        answer = await self._api.request("GET", path, labelSelector=POD_LABELS)
        for pod in answer["items"]:
            pods[pod["metadata"]["uid"]] = pod
        changes: asyncio.Queue[Manifest] = asyncio.Queue()
        watch = asyncio.create_task(self._read(path, answer["metadata"]["resourceVersion"], changes))
        try:
            while not watch.done():
                for pod in [] if self.away else list(pods.values()):
                    await self._step(pod)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        event = await changes.get()
                        pods[event["object"]["metadata"]["uid"]] = event["object"]
                        if event["type"] == "DELETED":
                            del pods[event["object"]["metadata"]["uid"]]
            watch.result()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _read(self, path: str, version: str, changes: "asyncio.Queue[Manifest]") -> None:
        parameters = {"watch": "1", "labelSelector": POD_LABELS, "resourceVersion": version}
        headers = {"Authorization": f"Bearer {self._api.token}"}
        url = self._api.server.url + path
        async with self._api.session.get(url, params=parameters, headers=headers) as response:
            async for line in response.content:
                event = json.loads(line)
                if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
                    return
                changes.put_nowait(event)

    async def _step(self, pod: Manifest) -> None:
        metadata = pod["metadata"]
        name, labels = metadata["name"], metadata["labels"]
        if metadata.get("deletionTimestamp"):
            with contextlib.suppress(ApiError):  # gone already
                body = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
                await self._api.delete("Pod", name, body=body)
        elif not pod["spec"].get("nodeName") and metadata["uid"] not in self._bound:
            is_coordinator = labels["trimtab.dev/role"] == "coordinator"
            if is_coordinator and labels["trimtab.dev/job"] in self.held:
                return
            self._bound.add(metadata["uid"])
            with contextlib.suppress(ApiError):  # gone meanwhile
                await self._start(name, labels["trimtab.dev/job"] if is_coordinator else "")

    async def _start(self, name: str, coordinates: str) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"kind": "Node", "name": "node-1"},
        }
        path = await self._api.path("Pod", name, subresource="binding")
        await self._api.request("POST", path, body=binding)
        address = self.coordinator_address(coordinates) if coordinates else None
        await self.status(name, {"running": {"startedAt": _now()}}, address=address)
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
