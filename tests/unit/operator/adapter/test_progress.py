"""Against real gRPC servers with the certificates that a job's pods have, on loopback addresses."""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import grpc
import grpc.aio
import pytest

from trimtab.comm.control import job_control
from trimtab.comm.control.constants import SERVER_OPTIONS
from trimtab.comm.control.job_control import JobControlServicer
from trimtab.comm.control.peers import Peers
from trimtab.v1 import job_control_pb2 as pb
from trimtab.v1 import job_control_pb2_grpc as rpc
from trimtab.v1.control_pb2 import WorkerId
from trimtab_operator.adapter import progress as module
from trimtab_operator.adapter.progress import CoordinatorError, Coordinators
from trimtab_operator.adapter.trim import KnownPod
from trimtab_operator.certs import JobCredentials, MasterKey
from trimtab_operator.constants import CONTROL_PORT
from trimtab_operator.model.observed import Pod

MASTER = MasterKey(b"m" * 32)
_hosts = itertools.count(2)


def credentials(uid: str = "uid-1") -> JobCredentials:
    return JobCredentials(MASTER, job_uid=uid, namespace="ns", job_name="job")


def pod(address: str, uid: str = "pod-1", incarnation: int = 1) -> KnownPod:
    known = Pod(
        name=uid,
        uid=uid,
        role="coordinator",
        replica=0,
        node=0,
        incarnation=incarnation,
        attempt=5001,
        phase="Running",
        created=datetime.now(UTC),
    )
    return KnownPod(pod=known, namespace="ns", job_uid="uid-1", version=1, address=address)


class FakeCoordinator(rpc.JobControlServicer):
    """Answers with `status`, as a coordinator does; records what it is asked and told."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.status = pb.JobStatus(attempt=5001, phase="Starting")
        self.asked = 0
        self.waits: list[float] = []
        """For how long each question may wait for something new."""
        self._servicer = JobControlServicer(self, Peers(secured=True))
        self.gate = asyncio.Event()
        self.gate.set()
        self.stops: list[pb.StopRequest] = []
        self.sizes: list[pb.ResizeRequest] = []

    async def GetStatus(self, request: pb.GetStatusRequest, context: object) -> pb.JobStatus:  # noqa: N802
        self.asked += 1
        self.waits.append(request.wait_s)
        await self.gate.wait()
        return await self._servicer.GetStatus(request, context)

    async def get_status(self) -> pb.JobStatus:
        return self.status

    async def Stop(self, request: pb.StopRequest, context: object) -> pb.StopResponse:  # noqa: N802
        self.stops.append(request)
        return pb.StopResponse()

    async def Resize(self, request: pb.ResizeRequest, context: object) -> pb.ResizeResponse:  # noqa: N802
        self.sizes.append(request)
        return pb.ResizeResponse()


@pytest.fixture
def addresses() -> Iterator[str]:
    """Addresses that no other test process uses."""
    return (f"127.{1 + os.getpid() // 250 % 250}.{os.getpid() % 250}.{number}" for number in _hosts)


@pytest.fixture
async def coordinator(
    addresses: Iterator[str],
) -> AsyncIterator[Callable[..., Awaitable[FakeCoordinator]]]:
    servers = []

    async def start(uid: str = "uid-1", address: str = "") -> FakeCoordinator:
        made = FakeCoordinator(address or next(addresses))
        data = credentials(uid).secret_data(datetime.now(UTC))
        server = grpc.aio.server(options=SERVER_OPTIONS)
        rpc.add_JobControlServicer_to_server(made, server)
        server.add_secure_port(
            f"{made.address}:{CONTROL_PORT}",
            grpc.ssl_server_credentials(
                [(data["coordinator.key"], data["coordinator.crt"])],
                root_certificates=data["ca.crt"],
                require_client_auth=True,
            ),
        )
        await server.start()
        servers.append(server)
        return made

    yield start
    for server in servers:
        await server.stop(None)


@pytest.fixture
def changed() -> list[str]:
    return []


@pytest.fixture
def codes() -> list[str]:
    return []


@pytest.fixture
async def links(
    changed: list[str], codes: list[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Coordinators]:
    monkeypatch.setattr(module, "SOON_S", 0.01)
    made = Coordinators(changed=changed.append, on_poll=codes.append)
    yield made
    await made.close()


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 -- what is waited for raises no event
            await asyncio.sleep(0.005)


async def test_coordinator_is_asked_at_once_and_understood(links, coordinator, changed) -> None:
    peer = await coordinator()
    peer.status = pb.JobStatus(
        attempt=5001,
        phase="Running",
        step=3,
        total_steps=8,
        metrics={"reward": 0.5},
        not_finite=["kl"],
        missing=["rollout-1/rank-0"],
        roles=[pb.RoleStatus(role="rollout", desired=2, ready=1, min_desired=1)],
        restart_requests=[
            pb.RestartRequest(worker=WorkerId(role="rollout", replica=1, incarnation=4), reason="hangs")
        ],
        checkpoint_path="/runs/2",
        checkpoint_step=2,
    )
    links.follow("uid-1", pod(peer.address, incarnation=7), credentials)
    await _until(lambda: changed)
    said = links.latest("uid-1")
    assert (said.phase, said.step, said.total_steps, said.incarnation) == ("Running", 3, 8, 7)
    assert (said.ready, said.desired, said.minimum) == ({"rollout": 1}, {"rollout": 2}, {"rollout": 1})
    assert (said.metrics, said.not_finite, said.missing) == ({"reward": 0.5}, ("kl",), "rollout-1/rank-0")
    assert (said.checkpoint_step, said.checkpoint_path) == (2, "/runs/2")
    wish = said.restart_wishes[0]
    assert (wish.role, wish.replica, wish.incarnation, wish.reason) == ("rollout", 1, 4, "hangs")
    assert not said.final


async def test_numbers_alone_do_not_wake_the_queue_and_news_do(links, coordinator, changed) -> None:
    peer = await coordinator()
    peer.status = pb.JobStatus(attempt=5001, phase="Running", step=1)
    links.follow("uid-1", pod(peer.address), credentials)
    await _until(lambda: changed)
    for step in (2, 3):
        asked = peer.asked
        peer.status = pb.JobStatus(attempt=5001, phase="Running", step=step, metrics={"reward": step / 8})
        links.ask_soon("uid-1")
        await _until(lambda asked=asked: peer.asked > asked)
    await _until(lambda: links.latest("uid-1").step == 3)
    assert changed == ["uid-1"]
    peer.status = pb.JobStatus(attempt=5001, phase="Recovering", step=3)
    links.ask_soon("uid-1")
    await _until(lambda: len(changed) == 2)


async def test_questions_follow_one_another_at_their_interval(links, coordinator, monkeypatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.05)
    peer = await coordinator()
    links.follow("uid-1", pod(peer.address), credentials)
    await _until(lambda: peer.asked >= 4)


async def _running(
    links: Coordinators, coordinator: Callable[..., Awaitable[FakeCoordinator]]
) -> FakeCoordinator:
    """One that takes steps and is followed."""
    peer = await coordinator()
    peer.status = pb.JobStatus(attempt=5001, phase="Running", step=7)
    links.follow("uid-1", pod(peer.address), credentials)
    return peer


@pytest.fixture
async def stepping(links, coordinator, changed, monkeypatch) -> FakeCoordinator:
    """A coordinator that takes steps: a question is left with it."""
    monkeypatch.setattr(module, "POLL_S", 0.05)
    monkeypatch.setattr(job_control, "NEWS_INTERVAL_S", 0.05)
    peer = await _running(links, coordinator)
    await _until(lambda: peer.asked == 2)
    shortest_s, longest_s = module.PATIENCE_S
    assert peer.waits[0] == 0.0
    assert shortest_s <= peer.waits[1] <= longest_s
    return peer


async def test_question_is_left_with_a_coordinator_that_takes_steps(stepping, links, changed) -> None:
    stepping.status.step = 8
    await asyncio.sleep(0.4)
    assert stepping.asked == 2
    assert links.latest("uid-1").step == 7
    assert changed == ["uid-1"]


async def test_numbers_of_a_coordinator_come_once_a_minute(links, coordinator, changed, monkeypatch) -> None:
    monkeypatch.setattr(module, "NUMBERS_S", 0.5)
    monkeypatch.setattr(module, "MARGIN_S", 0.1)
    monkeypatch.setattr(module, "POLL_S", 0.05)
    monkeypatch.setattr(job_control, "NEWS_INTERVAL_S", 0.01)
    peer = await _running(links, coordinator)
    await _until(lambda: peer.asked == 2)
    begun = time.monotonic()
    while time.monotonic() < begun + 2.0:
        peer.status.step += 1
        await asyncio.sleep(0.01)
    assert 3 <= peer.asked <= 6
    assert len(changed) == peer.asked - 1, "each answer is of use"
    assert links.latest("uid-1").step > 8


async def test_news_of_a_coordinator_are_heard_at_once(stepping, links, changed) -> None:
    stepping.status.restart_requests.append(
        pb.RestartRequest(worker=WorkerId(role="rollout", replica=1, incarnation=4), reason="hangs")
    )
    await _until(lambda: len(changed) == 2)
    assert links.latest("uid-1").restart_wishes
    await _until(lambda: stepping.asked == 3)
    assert stepping.waits[2] > 0


@pytest.mark.parametrize("how", [{"phase": "Stopping"}, {"missing": ["rollout-1/rank-0"]}])
async def test_coordinator_that_takes_no_steps_is_asked_often(stepping, how) -> None:
    stepping.status.MergeFrom(pb.JobStatus(**how))
    await _until(lambda: stepping.asked >= 6)
    assert set(stepping.waits[2:]) == {0.0}


async def test_question_that_was_left_is_taken_back_when_something_happens(stepping, links) -> None:
    links.ask_soon("uid-1")
    await _until(lambda: stepping.asked == 4)
    assert stepping.waits[2] == 0.0
    assert stepping.waits[3] > 0


async def test_decision_gets_the_numbers_of_now(stepping, links) -> None:
    stepping.status.step = 9
    await links.ask_now("uid-1")
    assert links.latest("uid-1").step == 9


async def test_decision_waits_a_little_for_a_coordinator_that_does_not_answer(
    stepping, links, monkeypatch
) -> None:
    monkeypatch.setattr(module, "NOW_S", 0.2)
    stepping.gate.clear()
    async with asyncio.timeout(2):
        await links.ask_now("uid-1")
        await links.ask_now("nobody")
    assert links.latest("uid-1").step == 7
    stepping.gate.set()
    links.rest("uid-1")
    async with asyncio.timeout(0.1):
        await links.ask_now("uid-1")


async def test_certificate_that_runs_out_takes_back_a_question_that_was_left(stepping, links, codes) -> None:
    links._links["uid-1"]._valid_until = datetime.now(UTC)
    async with asyncio.timeout(module.CALL_TIMEOUT_S / 2):
        await links.stop("uid-1", reason="suspended", grace_s=30)
    await _until(lambda: stepping.asked > 2)
    assert set(codes) == {"OK"}


async def test_coordinator_that_waits_for_nothing_is_asked_at_the_usual_interval(
    links, coordinator, monkeypatch
) -> None:
    """One of a version that does not know of waiting."""
    monkeypatch.setattr(module, "POLL_S", 0.05)
    monkeypatch.setattr(job_control, "MAX_WAIT_S", 0.0)
    peer = await _running(links, coordinator)
    await _until(lambda: peer.asked == 8)
    begun = time.monotonic()
    await _until(lambda: peer.asked == 12)
    assert time.monotonic() - begun > 2 * module.POLL_S


async def test_coordinator_with_a_question_counts_as_heard_until_its_connection_is_dead(
    links, coordinator, addresses, codes, monkeypatch
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.05)
    monkeypatch.setattr(module, "GONE_S", 2.0)
    pings = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
    options = dict(module._OPTIONS) | dict.fromkeys(pings, 1000)
    monkeypatch.setattr(module, "_OPTIONS", tuple(options.items()))
    peer = await coordinator()
    peer.status = pb.JobStatus(attempt=5001, phase="Running", step=7)
    async with _relay(next(addresses), peer.address) as (address, stand_still):
        links.follow("uid-1", pod(address), credentials)
        await _until(lambda: peer.asked == 2)
        answered = links.latest("uid-1").received
        await _until(lambda: links.latest("uid-1").heard > answered + timedelta(seconds=1))
        assert links.latest("uid-1").received == answered
        assert set(codes) == {"OK"}
        stand_still.set()
        at = datetime.now(UTC)
        await _until(lambda: codes[-1] == "UNAVAILABLE")
        assert links.latest("uid-1").heard <= at
    assert peer.asked == 2


@asynccontextmanager
async def _relay(address: str, to: str) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Passes bytes on until it is told to stand still, as a machine does that was cut off."""
    stand_still, serving = asyncio.Event(), set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not stand_still.is_set():
                writer.write(data)
        writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        writers = [writer]
        try:
            there, back = await asyncio.open_connection(to, CONTROL_PORT)
            writers.append(back)
            await asyncio.gather(pump(reader, back), pump(there, writer))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for each in writers:
                each.transport.abort()
                with contextlib.suppress(ConnectionError):
                    await each.wait_closed()

    server = await asyncio.start_server(serve, address, CONTROL_PORT)
    try:
        yield address, stand_still
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def test_stop_and_resize_are_heard(links, coordinator) -> None:
    peer = await coordinator()
    links.follow("uid-1", pod(peer.address), credentials)
    await links.stop("uid-1", reason="suspended", grace_s=30)
    await links.resize("uid-1", rollouts=4, min_rollouts=2, rewards=1, min_rewards=1)
    assert peer.stops == [pb.StopRequest(reason="suspended", grace_s=30)]
    assert peer.sizes == [
        pb.ResizeRequest(rollout_replicas=4, min_rollout_replicas=2, reward_replicas=1, min_reward_replicas=1)
    ]


async def test_coordinator_of_another_job_is_not_believed(links, coordinator, codes, changed) -> None:
    stranger = await coordinator("another-uid")
    links.follow("uid-1", pod(stranger.address), credentials)
    await _until(lambda: codes)
    assert codes[0] == "UNAVAILABLE"
    assert stranger.asked == 0
    assert changed == []
    with pytest.raises(CoordinatorError, match=r"the coordinator at 127\."):
        await links.stop("uid-1", reason="x", grace_s=1)
    assert stranger.stops == []


async def test_coordinator_that_cannot_be_reached_keeps_its_last_word(
    links, coordinator, addresses, changed, codes
) -> None:
    peer = await coordinator()
    links.follow("uid-1", pod(peer.address), credentials)
    await _until(lambda: changed)
    links.rest("uid-1")
    assert links.latest("uid-1").phase == "Starting"
    asked = peer.asked
    links.ask_soon("uid-1")
    await asyncio.sleep(0.05)
    assert peer.asked == asked
    links.follow("uid-1", pod(next(addresses), uid="pod-2"), credentials)
    assert links.latest("uid-1") is None
    await _until(lambda: "UNAVAILABLE" in codes)


async def test_coordinator_that_does_not_listen_yet_is_dialled_once_it_does(
    links, coordinator, addresses, codes, monkeypatch
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.05)
    dialled = []

    def counted() -> JobCredentials:
        dialled.append(1)
        return credentials()

    address = next(addresses)
    links.follow("uid-1", pod(address), counted)
    await _until(lambda: codes.count("UNAVAILABLE") >= 3)
    assert dialled == [], "no channel"
    await coordinator(address=address)
    await _until(lambda: links.latest("uid-1") is not None)
    assert dialled == [1]


async def test_new_pod_of_the_coordinator_is_followed_instead(links, coordinator, changed) -> None:
    first, second = await coordinator(), await coordinator()
    links.follow("uid-1", pod(first.address), credentials)
    await _until(lambda: changed)
    second.status = pb.JobStatus(attempt=5001, phase="Recovering")
    links.follow("uid-1", replace(pod(second.address, uid="pod-2"), version=2), credentials)
    await _until(lambda: len(changed) == 2)
    assert links.latest("uid-1").phase == "Recovering"
    assert links.latest("uid-1").incarnation == 1


async def test_job_without_a_coordinator_cannot_be_told_anything(links) -> None:
    with pytest.raises(CoordinatorError, match="does not run"):
        await links.stop("uid-1", reason="x", grace_s=1)
    assert links.latest("uid-1") is None


async def test_certificate_that_runs_out_is_made_anew(links, coordinator, changed) -> None:
    made = []

    def counted() -> JobCredentials:
        made.append(1)
        return credentials()

    peer = await coordinator()
    links.follow("uid-1", pod(peer.address), counted)
    await _until(lambda: changed)
    assert len(made) == 1
    links._links["uid-1"]._valid_until = datetime.now(UTC)
    asked = peer.asked
    links.ask_soon("uid-1")
    await _until(lambda: peer.asked > asked)
    assert len(made) == 2


async def test_question_that_is_under_way_survives_a_new_certificate(links, coordinator, changed) -> None:
    peer = await coordinator()
    links.follow("uid-1", pod(peer.address), credentials)
    await _until(lambda: changed)
    peer.gate.clear()
    links.ask_soon("uid-1")
    await _until(lambda: peer.asked == 2)
    links._links["uid-1"]._valid_until = datetime.now(UTC)
    telling = asyncio.create_task(links.stop("uid-1", reason="suspended", grace_s=30))
    await asyncio.sleep(0.05)
    peer.status = pb.JobStatus(attempt=5001, phase="Stopping")
    peer.gate.set()
    await telling
    await _until(lambda: links.latest("uid-1").phase == "Stopping")
    links.ask_soon("uid-1")
    await _until(lambda: peer.asked == 3)


async def test_texts_that_no_status_would_take_are_cut(links, coordinator, changed) -> None:
    peer = await coordinator()
    peer.status = pb.JobStatus(
        attempt=5001, activity="a" * 40_000, checkpoint_path="b" * 40_000, missing=["c" * 40_000]
    )
    links.follow("uid-1", pod(peer.address), credentials)
    await _until(lambda: changed)
    said = links.latest("uid-1")
    assert {len(said.activity), len(said.checkpoint_path), len(said.missing)} == {4096}
