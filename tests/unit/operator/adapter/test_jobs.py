import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from trimtab_operator.adapter.jobs import JobAudit, JobCache
from trimtab_operator.kube.client import Client

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Connect = Callable[[Handler], Awaitable[Client]]


def job(uid: str, version: int, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"job-{uid}",
            "namespace": "ns",
            "uid": uid,
            "resourceVersion": str(version),
            "generation": 1,
            "creationTimestamp": "2026-11-30T10:00:00Z",
        },
        "spec": {},
        "status": status,
    }


class JobServer:
    """The jobs as the API server has them."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}

    def put(self, raw: dict[str, Any]) -> dict[str, Any]:
        self.jobs[raw["metadata"]["name"]] = raw
        return raw

    async def answer(self, request: web.Request) -> web.Response:
        name = request.path.rpartition("/")[2]
        if name != "rltrainingjobs":
            found = self.jobs.get(name)
            return web.json_response(found) if found else web.json_response({"code": 404}, status=404)
        assert "PartialObjectMetadataList" in request.headers["Accept"]
        items = [{"metadata": raw["metadata"]} for raw in self.jobs.values()]
        return web.json_response({"metadata": {"resourceVersion": "99"}, "items": items})


@pytest.fixture
def changed() -> list[str]:
    return []


@pytest.fixture
def cache(changed: list[str]) -> JobCache:
    return JobCache(changed.append)


@pytest.fixture
def server() -> JobServer:
    return JobServer()


def test_echo_of_an_own_write_costs_nothing_and_a_change_of_others_does(
    cache: JobCache, changed: list[str]
) -> None:
    cache.put(job("a", 1))
    cache.put_own(job("a", 2, step=7))
    cache.put(job("a", 1))
    cache.put(job("a", 2, step=7))
    assert changed == ["a"]
    assert cache.get("a").status.step == 7
    cache.put(job("a", 3, step=7))
    assert changed == ["a", "a"]


def test_echo_that_is_faster_than_the_answer_costs_nothing(cache: JobCache, changed: list[str]) -> None:
    cache.put(job("a", 1))
    with cache.writing("a"):
        cache.put(job("a", 2, step=7))
        cache.put_own(job("a", 2, step=7))
    assert changed == ["a"]
    with cache.writing("a"):
        cache.put_own(job("a", 3, step=8))
        cache.put(job("a", 4, step=8))  # of somebody else
    assert changed == ["a", "a"]
    assert cache.get("a").resource_version == "4"


def test_spec_that_stays_is_held_once(cache: JobCache) -> None:
    def said(version: int, generation: int, **spec: Any) -> Any:
        raw = job("a", version) | {"spec": spec}
        raw["metadata"]["generation"] = generation
        cache.put(raw)
        known = cache.get("a")
        assert known is not None
        assert (known.spec, known.resource_version) == (spec, str(version))
        return known.spec

    first = said(1, 1, suspend=False)
    assert said(2, 1, suspend=False) is first
    assert said(3, 1, suspend=False, seed=1) is not first, "a new default of the CRD"
    assert said(4, 2, suspend=0, seed=1)["suspend"] is not False, "an edit"


def test_removed_job_is_told_once(cache: JobCache, changed: list[str]) -> None:
    cache.put(job("a", 1))
    cache.remove("a")
    cache.remove("a")
    assert changed == ["a", "a"]
    assert cache.get("a") is None


def test_answer_to_an_own_write_does_not_bring_a_job_back(cache: JobCache, changed: list[str]) -> None:
    cache.put(job("a", 1))
    with cache.writing("a"):
        cache.remove("a")
        cache.put_own(job("a", 2, step=7))
    assert cache.get("a") is None
    assert changed == ["a", "a"]


def test_job_whose_status_cannot_be_read_is_left_alone(
    cache: JobCache, caplog: pytest.LogCaptureFixture
) -> None:
    cache.put(job("a", 1))
    with caplog.at_level(logging.ERROR):
        cache.put(job("a", 2, attempt="many"))
    assert cache.get("a") is None
    assert cache.versions() == {"a": "2"}
    assert "ns/job-a: its status cannot be read" in caplog.text
    cache.put(job("a", 3, attempt=4))
    assert cache.get("a").status.attempt == 4


async def test_audit_finds_nothing_where_the_watch_keeps_up(connect, cache, server, changed) -> None:
    cache.put(server.put(job("a", 1)))
    audit = JobAudit(await connect(server.answer), cache, [None])
    assert [await audit.audit() for _ in range(3)] == [0, 0, 0]
    cache.put(server.put(job("a", 2)))
    server.put(job("a", 3))  # on its way: the watch gets the time until the next audit
    assert await audit.audit() == 0
    assert audit.missing_s == 0
    assert changed == ["a", "a"]


async def test_audit_makes_good_what_the_watch_has_missed(connect, cache, server, changed) -> None:
    now = [50.0]
    for uid in "abc":
        cache.put(server.put(job(uid, 1)))
    audit = JobAudit(await connect(server.answer), cache, [None], clock=lambda: now[0])
    server.put(job("a", 5, step=2))
    server.put(job("new", 6))
    del server.jobs["job-c"]
    changed.clear()
    assert await audit.audit() == 0
    server.put(job("a", 8, step=3))  # another change: still nothing has come since version 5
    assert await audit.audit() == 3
    assert sorted(changed) == ["a", "c", "new"]
    assert cache.get("a").status.step == 3
    assert cache.get("c") is None
    now[0] = 80.0
    assert audit.missing_s == 30
    assert await audit.audit() == 0
    assert audit.missing_s == 0


async def test_audit_tells_a_job_from_another_one_of_the_same_name(connect, cache, server) -> None:
    old = server.put(job("a", 1))
    cache.put(old)
    audit = JobAudit(await connect(server.answer), cache, [None])
    again = job("b", 9)
    again["metadata"]["name"] = "job-a"
    server.put(again)
    await audit.audit()
    await audit.audit()
    assert cache.get("a") is None
    assert cache.get("b") is not None
