"""The election against a peer that keeps one Lease with versions, as a server does. Time is the test's."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from trimtab_operator.kube import election as module
from trimtab_operator.kube.client import Client
from trimtab_operator.kube.election import LEASE_DURATION_S, RENEW_DEADLINE_S, Election, LeaseLostError
from trimtab_operator.kube.errors import NotLeadingError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Connect = Callable[[Handler], Awaitable[Client]]


class LeaseServer:
    """One Lease."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.broken = False
        """Whether it answers 503 only."""
        self.writes = 0

    async def answer(self, request: web.Request) -> web.Response:
        if self.broken:
            return web.json_response({"code": 503}, status=503)
        if request.method == "GET":
            return self._lease() if self.lease else web.json_response({"code": 404}, status=404)
        body = await request.json()
        if request.method == "POST":
            if self.lease is not None:
                return web.json_response({"code": 409, "reason": "AlreadyExists"}, status=409)
            return self.put(body)
        if self.lease is None:
            return web.json_response({"code": 404}, status=404)
        if body["metadata"].get("resourceVersion") != str(self.version):
            return web.json_response({"code": 409, "reason": "Conflict"}, status=409)
        return self.put(body)

    def put(self, body: dict[str, Any]) -> web.Response:
        self.version += 1
        self.writes += 1
        self.lease = body | {"metadata": {"name": "lease", "resourceVersion": str(self.version)}}
        return self._lease()

    def taken_by(self, holder: str) -> None:
        assert self.lease is not None
        self.put(self.lease | {"spec": self.lease["spec"] | {"holderIdentity": holder}})

    def _lease(self) -> web.Response:
        return web.json_response(self.lease)


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of every candidate; pauses between looks take no time."""
    monkeypatch.setattr(module, "RENEW_S", 0.001)
    return [1000.0]


@pytest.fixture
def candidate(
    connect: Connect, server: LeaseServer, now: list[float]
) -> Callable[[str], Awaitable[Election]]:
    async def make(identity: str) -> Election:
        return Election(
            await connect(server.answer),
            namespace="ns",
            name="lease",
            identity=identity,
            clock=lambda: now[0],
        )

    return make


async def _until(holds: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 -- what is waited for raises no event
            await asyncio.sleep(0.001)
    assert holds(), what


async def test_first_candidate_makes_the_lease_and_leads(candidate, server, now) -> None:
    one = await candidate("one")
    await one.acquire()
    assert one.leading
    assert server.lease["spec"]["holderIdentity"] == "one"
    one.check()


async def test_leader_leads_no_longer_than_its_deadline_without_a_renewal(candidate, now) -> None:
    one = await candidate("one")
    await one.acquire()
    now[0] += RENEW_DEADLINE_S - 0.1
    one.check()
    now[0] += 0.1
    with pytest.raises(NotLeadingError):
        one.check()


async def test_other_candidate_waits_for_the_duration_that_it_has_seen_itself(candidate, server, now) -> None:
    one, two = await candidate("one"), await candidate("two")
    await one.acquire()
    now[0] += 100  # however old the record is: it counts from the first look
    waiting = asyncio.create_task(two.acquire())
    await _until(lambda: two.holder == "one", "two has looked")
    now[0] += LEASE_DURATION_S - 0.1
    await asyncio.sleep(0.05)
    assert not waiting.done()
    now[0] += 0.2
    async with asyncio.timeout(10):
        await waiting
    assert two.leading
    assert not one.leading
    assert server.lease["spec"]["leaseTransitions"] == 1


async def test_renewing_leader_keeps_others_out(candidate, server, now) -> None:
    one, two = await candidate("one"), await candidate("two")
    await one.acquire()
    holding, waiting = asyncio.create_task(one.hold()), asyncio.create_task(two.acquire())
    for _ in range(20):
        writes = server.writes
        now[0] += 5
        await _until(lambda writes=writes: server.writes > writes + 1, "renewed")
    assert one.leading
    assert not waiting.done()
    holding.cancel()
    waiting.cancel()
    await asyncio.gather(holding, waiting, return_exceptions=True)


async def test_released_lease_is_taken_at_once(candidate, now) -> None:
    one, two = await candidate("one"), await candidate("two")
    await one.acquire()
    await one.release()
    assert not one.leading
    async with asyncio.timeout(10):
        await two.acquire()
    assert two.leading


async def test_server_that_fails_ends_the_leader_at_its_deadline_and_says_why(candidate, server, now) -> None:
    one = await candidate("one")
    await one.acquire()
    holding = asyncio.create_task(one.hold())
    server.broken = True
    await asyncio.sleep(0.05)
    assert not holding.done()
    now[0] += RENEW_DEADLINE_S
    with pytest.raises(LeaseLostError, match=r"lost the lease ns/lease: .*503"):
        async with asyncio.timeout(10):
            await holding
    assert not one.leading


async def test_server_that_comes_back_in_time_is_survived(candidate, server, now) -> None:
    one = await candidate("one")
    await one.acquire()
    holding = asyncio.create_task(one.hold())
    server.broken = True
    now[0] += RENEW_DEADLINE_S - 1
    await asyncio.sleep(0.02)
    server.broken = False
    writes = server.writes
    await _until(lambda: server.writes > writes + 1, "renewed")
    now[0] += 5
    assert one.leading
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)


async def test_lease_that_another_took_ends_the_leader(candidate, server, now) -> None:
    one = await candidate("one")
    await one.acquire()
    server.taken_by("two")
    with pytest.raises(LeaseLostError, match="two took the lease"):
        async with asyncio.timeout(10):
            await one.hold()
    assert not one.leading


async def test_write_that_got_through_without_an_answer_is_recognised(candidate, server, now) -> None:
    one = await candidate("one")
    await one.acquire()
    server.taken_by("one")  # a renewal of one's own, whose answer was lost: the version is another one
    holding = asyncio.create_task(one.hold())
    writes = server.writes
    await _until(lambda: server.writes > writes + 1, "renewed")
    assert one.leading
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)


async def test_candidate_that_cannot_reach_the_server_goes_on_trying(candidate, server, now) -> None:
    server.broken = True
    one = await candidate("one")
    waiting = asyncio.create_task(one.acquire())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    server.broken = False
    async with asyncio.timeout(10):
        await waiting
    assert one.leading
