"""A peer that keeps objects as the API server does, as far as the adapter's tests need, and a small job."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from trimtab_operator.builders.pods import pod_manifest
from trimtab_operator.builders.resolve import resolve
from trimtab_operator.kube.client import Client
from trimtab_operator.model.observed import Job
from trimtab_operator.model.plan import PodPlan
from trimtab_operator.model.resolved import Settings

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Connect = Callable[[Handler], Awaitable[Client]]

ROLES = {name: {"image": "i"} for name in ("coordinator", "actor", "rollout", "reward")}
SETTINGS = Settings.model_validate({"roles": ROLES})
JOB = Job(
    namespace="ns",
    name="job",
    uid="uid-1",
    generation=1,
    resource_version="5",
    created=datetime(2026, 11, 30, tzinfo=UTC),
    spec={
        "model": {"path": "/m"},
        "data": {"train": {"path": "/d.jsonl"}},
        "algorithm": {"grpo": {}},
        "training": {"steps": 8},
        "rewards": [{"function": "exact_match"}],
        "storage": {"claim": {"size": "1Gi"}},
    },
)
RESOLVED = resolve(JOB, SETTINGS, 7001)


def plan(role: str = "actor", incarnation: int = 1) -> PodPlan:
    return PodPlan(
        job="job",
        job_uid="uid-1",
        group=role,
        role=role,
        replica=0,
        node=0,
        incarnation=incarnation,
        attempt=7001,
    )


class World:
    """Objects by path; `fails` maps (method, part of the path) to answers that come first.

    `dry_run_refusals` are the answers to dry runs, which are accepted after them.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.fails: dict[tuple[str, str], list[web.Response]] = {}
        self.calls: list[tuple[str, str]] = []
        self.put_bodies: list[dict[str, Any]] = []
        self.dry_run_refusals: list[dict[str, Any]] = []

    def put(self, path: str, raw: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        metadata = {"uid": f"uid-of-{path.rpartition('/')[2]}", "creationTimestamp": "2026-11-30T10:00:00Z"}
        metadata |= raw["metadata"] | {"resourceVersion": str(self.version), "namespace": "ns"}
        self.objects[path] = raw | {"metadata": metadata}
        return self.objects[path]

    def put_pod(self, which: PodPlan, **status: Any) -> dict[str, Any]:
        raw = pod_manifest(which, RESOLVED) | {"status": {"phase": "Running", **status}}
        return self.put(f"/api/v1/namespaces/ns/pods/{which.name}", raw)

    async def answer(self, request: web.Request) -> web.Response:
        self.calls.append((request.method, request.path))
        for (method, part), answers in self.fails.items():
            if method == request.method and part in request.path and answers:
                return answers.pop(0)
        if request.method == "POST":
            return await self._post(request)
        if request.method == "GET" and request.path.endswith("/pods"):
            pods = [raw for path, raw in self.objects.items() if "/pods/" in path]
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": pods})
        if request.method == "PATCH":
            return web.json_response(self.put(request.path, await request.json()))
        if request.method == "PUT":
            self.put_bodies.append(await request.json())
            return web.json_response(self._replace(request.path, self.put_bodies[-1]))
        if request.path not in self.objects:
            return status(404, "NotFound")
        if request.method == "DELETE":
            uid = (await request.json())["preconditions"]["uid"]
            if self.objects[request.path]["metadata"]["uid"] != uid:
                return status(409, "Conflict")
            return web.json_response(self.objects.pop(request.path))
        return web.json_response(self.objects[request.path])

    async def _post(self, request: web.Request) -> web.Response:
        if "dryRun" in request.query:
            refusal = self.dry_run_refusals.pop(0) if self.dry_run_refusals else None
            return web.json_response(refusal or {}, status=refusal["code"] if refusal else 201)
        if request.path.endswith("/selfsubjectaccessreviews"):
            return web.json_response({"status": {"allowed": True}})
        raw = await request.json()
        path = f"{request.path}/{raw['metadata']['name']}"
        if path in self.objects:
            return status(409, "AlreadyExists")
        return web.json_response(self.put(path, raw), status=201)

    def _replace(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """PUT: of a status, the rest of the object stays as it is."""
        path = path.removesuffix("/status")
        before = self.objects.get(path, {})
        return self.put(path, before | body | {"metadata": before.get("metadata", {}) | body["metadata"]})

    def count(self, method: str, part: str) -> int:
        return sum(method == each and part in path for each, path in self.calls)


def status(code: int, reason: str, message: str = "no") -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code)
