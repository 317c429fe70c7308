import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from trimtab_operator.adapter import pods as module
from trimtab_operator.adapter.pods import SELECTOR, PodCache, PodWatch
from trimtab_operator.adapter.trim import KnownPod
from trimtab_operator.kube.client import Client

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Connect = Callable[[Handler], Awaitable[Client]]


def pod(
    uid: str, version: int, *, job: str = "j", phase: str = "Pending", namespace: str = "ns"
) -> dict[str, Any]:
    labels = {"trimtab.dev/job-uid": job, "trimtab.dev/role": "rollout"} | {
        f"trimtab.dev/{name}": "1" for name in ("replica", "node", "incarnation", "attempt")
    }
    return {
        "metadata": {
            "name": f"pod-{uid}",
            "namespace": namespace,
            "uid": uid,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-11-30T10:00:00Z",
            "labels": labels,
            "ownerReferences": [{"uid": job}],
        },
        "status": {"phase": phase},
    }


class Changes:
    """Records what the cache tells."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []

    def __call__(self, old: KnownPod | None, new: KnownPod | None) -> None:
        uid = (new or old).pod.uid  # type: ignore[union-attr]
        self.told.append((uid, old.pod.phase if old else "-", new.pod.phase if new else "-"))


@pytest.fixture
def changes() -> Changes:
    return Changes()


@pytest.fixture
def cache(changes: Changes) -> PodCache:
    return PodCache(changes)


def test_newer_state_counts_and_older_news_do_not(cache: PodCache, changes: Changes) -> None:
    cache.put(pod("a", 5, phase="Running"))
    cache.put(pod("a", 4, phase="Pending"))
    cache.put(pod("a", 5, phase="Running"))
    assert [known.pod.phase for known in cache.of_job("j")] == ["Running"]
    assert changes.told == [("a", "-", "Running")]


def test_version_without_a_change_that_matters_is_not_told(cache: PodCache, changes: Changes) -> None:
    cache.put(pod("a", 5))
    cache.put(pod("a", 6))
    assert cache.of_job("j")[0].version == 6
    assert len(changes.told) == 1


def test_late_answer_does_not_bring_a_pod_back(cache: PodCache, changes: Changes) -> None:
    cache.put(pod("a", 5))
    cache.remove(pod("a", 7))
    cache.put(pod("a", 6, phase="Running"))
    assert cache.of_job("j") == []
    assert changes.told[-1] == ("a", "Pending", "-")


def test_list_removes_what_it_lacks_but_nothing_newer_and_no_other_namespace(cache: PodCache) -> None:
    for raw in (pod("a", 5), pod("b", 6), pod("new", 11), pod("c", 6, namespace="other")):
        cache.put(raw)
    cache.keep_only({"a"}, namespace="ns", version=10)
    assert sorted(known.pod.uid for known in cache.of_job("j")) == ["a", "c", "new"]
    cache.keep_only({"a"}, namespace=None, version=10)
    assert sorted(known.pod.uid for known in cache.of_job("j")) == ["a", "new"]


def test_pods_are_found_by_their_job(cache: PodCache) -> None:
    cache.put(pod("a", 1, job="one"))
    cache.put(pod("b", 2, job="two"))
    assert [known.pod.uid for known in cache.of_job("two")] == ["b"]
    assert cache.of_job("three") == []
    assert len(list(cache.all())) == 2


class PodServer:
    """Lists `listed` and then streams what the test puts into `stream`; None ends a watch."""

    def __init__(self) -> None:
        self.listed: list[dict[str, Any]] = []
        self.version = 10
        self.lists = 0
        self.watched_from: list[str] = []
        self.stream: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.gone = False
        self.always_gone = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.query["labelSelector"] == SELECTOR
        if "watch" not in request.query:
            self.lists += 1
            metadata = {"resourceVersion": str(self.version)}
            return web.json_response({"metadata": metadata, "items": self.listed})
        self.watched_from.append(request.query["resourceVersion"])
        if self.gone or self.always_gone:
            self.gone = False
            return web.json_response({"code": 410, "reason": "Expired"}, status=410)
        response = web.StreamResponse()
        await response.prepare(request)
        while (event := await self.stream.get()) is not None:
            await response.write(json.dumps(event).encode() + b"\n")
        return response


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 -- what is waited for raises no event
            await asyncio.sleep(0.001)


@pytest.fixture
def server() -> PodServer:
    return PodServer()


@pytest.fixture
async def watch(
    connect: Connect, server: PodServer, cache: PodCache, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PodWatch]:
    monkeypatch.setattr(module, "RETRY_S", 0.001)
    made = PodWatch(await connect(server.answer), cache, None)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    server.stream.put_nowait(None)
    await asyncio.gather(task, return_exceptions=True)


async def test_watch_lists_and_follows(watch, server, cache) -> None:
    server.listed = [pod("a", 5)]
    await watch.synced.wait()
    server.stream.put_nowait({"type": "MODIFIED", "object": pod("a", 11, phase="Running")})
    server.stream.put_nowait({"type": "ADDED", "object": pod("b", 12)})
    await _until(lambda: len(cache.of_job("j")) == 2)
    assert sorted(known.pod.phase for known in cache.of_job("j")) == ["Pending", "Running"]
    server.stream.put_nowait({"type": "DELETED", "object": pod("b", 13)})
    await _until(lambda: len(cache.of_job("j")) == 1)
    assert server.watched_from == ["10"]


async def test_watch_that_ends_goes_on_where_it_stood(watch, server, cache) -> None:
    await watch.synced.wait()
    server.stream.put_nowait({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "40"}}})
    server.stream.put_nowait(None)
    await _until(lambda: len(server.watched_from) == 2)
    assert server.watched_from == ["10", "40"]
    assert server.lists == 1


async def test_watch_that_is_too_old_lists_again_and_finds_what_is_gone(watch, server, cache) -> None:
    server.listed = [pod("a", 5), pod("b", 6)]
    await watch.synced.wait()
    await _until(lambda: len(cache.of_job("j")) == 2)
    server.listed, server.version, server.gone = [pod("b", 6)], 20, True
    server.stream.put_nowait(None)
    await _until(lambda: server.lists == 2 and len(cache.of_job("j")) == 1)
    assert cache.of_job("j")[0].pod.uid == "b"
    await _until(lambda: server.watched_from[-1] == "20")


async def test_watch_that_is_always_too_old_is_not_asked_for_without_a_pause(watch, server) -> None:
    server.always_gone = True
    await asyncio.sleep(0.3)
    assert 1 < server.lists < 15
