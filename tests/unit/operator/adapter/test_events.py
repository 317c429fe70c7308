import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from trimtab_operator.adapter import events as module
from trimtab_operator.adapter.events import BURST, REFILL_S, SERIES_S, EventSink
from trimtab_operator.kube.client import Client
from trimtab_operator.model.actions import Event
from trimtab_operator.model.observed import Job

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Connect = Callable[[Handler], Awaitable[Client]]
JOB = Job(
    namespace="ns",
    name="job",
    uid="u",
    generation=1,
    resource_version="1",
    created=datetime(2026, 11, 30, tzinfo=UTC),
    spec={},
)


class EventServer:
    """Keeps what is posted and patched."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.patched: list[tuple[str, dict[str, Any]]] = []
        self.status = 0
        """Answers with this, once; 0: as it should."""

    async def answer(self, request: web.Request) -> web.Response:
        status, self.status = self.status, 0
        if status:
            return web.json_response({"code": status}, status=status)
        if request.method == "POST":
            self.posted.append(await request.json())
        else:
            self.patched.append((request.path.rpartition("/")[2], await request.json()))
        return web.json_response({})


@pytest.fixture
def server() -> EventServer:
    return EventServer()


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
async def sink(connect: Connect, server: EventServer, now: list[float]) -> AsyncIterator[EventSink]:
    made = EventSink(await connect(server.answer), identity="op", clock=lambda: now[0])
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def event(message: str = "m") -> Event:
    return Event(type="Warning", reason="PodFailed", message=message)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 -- what is waited for raises no event
            await asyncio.sleep(0.001)


async def test_event_is_about_the_job(sink, server) -> None:
    sink.publish(JOB, event("it broke " + "x" * 3000))
    await _until(lambda: server.posted)
    posted = server.posted[0]
    assert posted["regarding"] == {
        "apiVersion": "trimtab.dev/v1alpha1",
        "kind": "RLTrainingJob",
        "namespace": "ns",
        "name": "job",
        "uid": "u",
    }
    assert (posted["type"], posted["reason"], posted["reportingController"]) == (
        "Warning",
        "PodFailed",
        "trimtab.dev/operator",
    )
    assert posted["note"].startswith("it broke ")
    assert len(posted["note"]) <= 1024


async def test_same_event_is_counted_up_and_another_one_posted(sink, server, now) -> None:
    for _ in range(3):
        sink.publish(JOB, event("same"))
    sink.publish(JOB, event("other"))
    await _until(lambda: len(server.posted) == 2)
    assert [body["series"]["count"] for _, body in server.patched] == [2, 3]
    assert {name for name, _ in server.patched} == {server.posted[0]["metadata"]["name"]}
    now[0] += SERIES_S
    sink.publish(JOB, event("same"))
    await _until(lambda: len(server.posted) == 3)
    assert len({posted["metadata"]["name"] for posted in server.posted}) == 3


async def test_counted_event_that_has_expired_is_posted_anew(sink, server) -> None:
    sink.publish(JOB, event())
    await _until(lambda: len(server.posted) == 1)
    server.status = 404
    sink.publish(JOB, event())
    await _until(lambda: len(server.posted) == 2)


async def test_refused_event_is_dropped_and_the_next_one_sent(sink, server) -> None:
    server.status = 500
    sink.publish(JOB, event("one"))
    sink.publish(JOB, event("two"))
    await _until(lambda: server.posted)
    assert [posted["note"] for posted in server.posted] == ["two"]
    assert sink.dropped == 1


async def test_job_that_goes_round_in_circles_is_held_back(sink, server, now) -> None:
    for number in range(BURST + 10):
        sink.publish(JOB, event(str(number)))
    assert sink.dropped == 10
    now[0] += 2 * REFILL_S
    for number in range(5):
        sink.publish(JOB, event(f"later {number}"))
    assert sink.dropped == 13
    await _until(lambda: len(server.posted) == BURST + 2)


async def test_full_queue_drops_and_never_waits(connect, server, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    idle = EventSink(await connect(server.answer), identity="op")
    for number in range(3):
        idle.publish(JOB, event(str(number)))
    assert idle.dropped == 1
