"""Server and sessions in one process, over real sockets: each test is one asyncio program."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import pytest

from trimtab.comm.control import (
    CommandError,
    ControlServer,
    CoordinatorLostError,
    JobControlClient,
    NotAdmitted,
    RefusedError,
    WorkerKey,
    WorkerSession,
    job_control,
)
from trimtab.errors import DeadlineError, ExitCode, UserError, WorkerLostError
from trimtab.v1 import control_pb2 as pb
from trimtab.v1 import control_pb2_grpc as pb_grpc
from trimtab.v1 import job_control_pb2 as jc
from trimtab.v1 import job_control_pb2_grpc as jc_grpc

IDENTITY = "a1b2"


class IdleJob:
    """A JobControlHandler that records what it was asked."""

    def __init__(self) -> None:
        self.stops: list[jc.StopRequest] = []
        self.step = 3
        self.phase = "Running"

    async def get_status(self) -> jc.JobStatus:
        return jc.JobStatus(name="idle", step=self.step, phase=self.phase)

    async def watch(self) -> AsyncIterator[jc.JobStatus]:
        for step in range(3):
            yield jc.JobStatus(step=step)

    async def checkpoint(self, request: jc.CheckpointRequest) -> jc.CheckpointResponse:
        raise DeadlineError("actor-0/rank-0 did not save")

    async def update_rollout(self, request: jc.UpdateRolloutRequest) -> jc.UpdateRolloutResponse:
        raise UserError("temperature is -1, allowed is 0 or more")

    async def stop(self, request: jc.StopRequest) -> jc.StopResponse:
        self.stops.append(request)
        return jc.StopResponse()

    async def resize(self, request: jc.ResizeRequest) -> jc.ResizeResponse:
        raise UserError(f"rollout: {request.rollout_replicas} replicas, at least 1")


@dataclass
class Coordinator:
    """A server that records its callbacks and lets a test wait for them."""

    attempt: int = 2
    heartbeat_interval_s: float = 0.1
    heartbeat_timeout_s: float = 5.0
    instance: str = "first"
    refuse: NotAdmitted | None = None
    events: list[tuple[str, ...]] = field(default_factory=list)
    job: IdleJob = field(default_factory=IdleJob)

    def __post_init__(self) -> None:
        self.server = ControlServer(
            training_identity=IDENTITY,
            attempt=self.attempt,
            heartbeat_interval_s=self.heartbeat_interval_s,
            heartbeat_timeout_s=self.heartbeat_timeout_s,
            experience_address="tcp://127.0.0.1:1",
            coordinator_instance=self.instance,
            admit=lambda register: self.refuse,
            on_join=lambda worker, register: self.note("join", str(worker)),
            on_leave=lambda worker, reason: self.note("leave", str(worker), reason),
            on_failed=lambda worker, message, kind: self.note("failed", str(worker), message, kind),
            on_leaving=lambda worker, reason: self.note("leaving", str(worker), reason),
            job_control=self.job,
        )

    def note(self, *event: str) -> None:
        self.events.append(event)

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - heartbeats raise no event to wait for
                await asyncio.sleep(0.005)

    async def start(self, port: int = 0) -> str:
        return f"127.0.0.1:{await self.server.start(f'127.0.0.1:{port}')}"


def register(**changes: Any) -> pb.Register:
    worker = pb.WorkerId(role="actor", replica=0, node=0, rank=1, incarnation=1)
    values: dict[str, Any] = {
        "protocol_version": 1,
        "worker": worker,
        "attempt": 2,
        "training_identity": IDENTITY,
        "applied_step": -1,
        "weight_version": -1,
    }
    return pb.Register(**(values | changes))


KEY = WorkerKey("actor", 0, 0, 1, 1)


def update(key: str, step: int = 1) -> pb.Command:
    return pb.Command(key=key, update=pb.Update(step=step))


def program(main: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        asyncio.run(asyncio.wait_for(main(), 30))

    test.__name__ = main.__name__
    return test


async def session_on(address: str, **changes: Any) -> WorkerSession:
    session = WorkerSession(register(**changes), address, dial_timeout_s=5)
    await asyncio.to_thread(session.start)
    return session


def echo(session: WorkerSession) -> threading.Thread:
    """A role that answers every command at once, with the step as a metric."""

    def serve() -> None:
        for command in session.commands():
            session.reply(pb.CommandResult(key=command.key, ok=True, metrics={"step": command.update.step}))
        session.close()

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@program
async def test_call_of_a_connected_worker_returns_its_result() -> None:
    coordinator = Coordinator()
    session = await session_on(await coordinator.start())
    role = echo(session)
    result = await coordinator.server.call(KEY, update("k", step=7), timeout_s=5)
    assert result.metrics["step"] == 7
    assert str(KEY) == "actor-0/rank-1"
    assert await coordinator.server.shutdown_all("done", 0, timeout_s=5) == []
    await asyncio.to_thread(role.join)
    assert session.shutdown == pb.Shutdown(reason="done", exit_code=0)
    assert coordinator.events == [
        ("join", "actor-0/rank-1"),
        ("leave", "actor-0/rank-1", "told to leave: done"),
    ]
    await coordinator.server.close("over")


@program
async def test_commands_async_yields_commands_until_shutdown() -> None:
    coordinator = Coordinator()
    session = await session_on(await coordinator.start())

    async def role() -> list[str]:
        seen = []
        async for command in session.commands_async():
            seen.append(command.key)
            session.reply(pb.CommandResult(key=command.key, ok=True))
        return seen

    serving = asyncio.create_task(role())
    for key in ("a", "b", "c"):
        await coordinator.server.call(KEY, update(key), timeout_s=5)
    await coordinator.server.shutdown_worker(KEY, "done", 0)
    assert await serving == ["a", "b", "c"]
    await asyncio.to_thread(session.close)
    await coordinator.server.close("over")


REFUSALS: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "another protocol version": ({"protocol_version": 9}, "protocol-version", ["9", "1"]),
    "another training": ({"training_identity": "ffff"}, "training-identity", ["ffff", IDENTITY]),
    "an older attempt": ({"attempt": 1}, "attempt-older", ["1", "2"]),
}


@pytest.mark.parametrize(("changes", "reason", "values"), REFUSALS.values(), ids=REFUSALS.keys())
def test_registration_that_does_not_fit_is_refused_with_both_values(
    changes: dict[str, Any], reason: str, values: list[str]
) -> None:
    async def main() -> None:
        coordinator = Coordinator()
        address = await coordinator.start()
        with pytest.raises(RefusedError) as caught:
            await session_on(address, **changes)
        assert caught.value.reason == reason
        assert caught.value.exit_code == ExitCode.REFUSED
        assert all(value in str(caught.value) for value in values)
        assert "actor-0/rank-1" in str(caught.value)
        assert coordinator.events == []
        await coordinator.server.close("over")

    program(main)()


@program
async def test_registration_that_admit_declines_is_refused_with_its_text() -> None:
    coordinator = Coordinator(refuse=NotAdmitted("role 'critic' is not part of this job"))
    address = await coordinator.start()
    with pytest.raises(RefusedError, match="role 'critic' is not part of this job"):
        await session_on(address)
    await coordinator.server.close("over")


@program
async def test_worker_that_is_not_admitted_yet_dials_until_it_is() -> None:
    coordinator = Coordinator(refuse=NotAdmitted("rollout-2 is beyond the job's 2", final=False))
    session = WorkerSession(register(), await coordinator.start(), dial_timeout_s=20)
    welcomed = asyncio.create_task(asyncio.to_thread(session.start))
    await asyncio.sleep(0.3)
    assert not welcomed.done()
    coordinator.refuse = None
    await welcomed
    await asyncio.to_thread(session.close)
    await coordinator.server.close("over")


@program
async def test_worker_of_a_newer_attempt_waits_for_the_coordinator_of_its_own() -> None:
    old = Coordinator()
    port = int((await old.start()).rpartition(":")[2])
    session = WorkerSession(register(attempt=3), f"127.0.0.1:{port}", dial_timeout_s=20)
    welcomed = asyncio.create_task(asyncio.to_thread(session.start))
    await asyncio.sleep(0.3)
    assert not welcomed.done()
    await old.server.close("its job was started again")
    new = Coordinator(attempt=3)
    await new.start(port)
    await welcomed
    await asyncio.to_thread(session.close)
    await new.server.close("over")


@program
async def test_work_of_the_role_is_done_between_commands_where_they_are_taken() -> None:
    coordinator = Coordinator()
    session = await session_on(await coordinator.start())
    done: list[threading.Thread] = []
    role = echo(session)
    await asyncio.to_thread(session.call_soon, lambda: done.append(threading.current_thread()))
    await coordinator.server.call(KEY, update("k"), timeout_s=5)
    assert done == [role]
    session.call_soon(lambda: done.append(threading.current_thread()))
    await coordinator.wait_for(lambda: len(done) == 2)  # also while no command comes
    await coordinator.server.shutdown_all("done", 0, timeout_s=5)
    await asyncio.to_thread(role.join)
    await coordinator.server.close("over")


@program
async def test_worker_whose_pod_goes_says_so_to_this_coordinator_and_the_next() -> None:
    coordinator = Coordinator()
    address = await coordinator.start()
    session = await session_on(address)
    await asyncio.to_thread(session.leave, "SIGTERM: its pod is being ended")
    said = ("leaving", "actor-0/rank-1", "SIGTERM: its pod is being ended")
    await coordinator.wait_for(lambda: said in coordinator.events)
    await coordinator.server.close("moved")
    following = Coordinator(instance="second")
    await following.start(int(address.rpartition(":")[2]))
    await following.wait_for(lambda: said in following.events)
    await following.wait_for(lambda: next(iter(following.server.workers().values())).heartbeat.leaving != "")
    assert following.events.count(said) == 1  # level-based on the wire, told once
    await asyncio.to_thread(session.close)
    await following.server.close("over")


@program
async def test_newer_incarnation_replaces_the_older_which_is_then_refused() -> None:
    coordinator = Coordinator()
    address = await coordinator.start()
    old = await session_on(address)
    new = await session_on(address, worker=pb.WorkerId(role="actor", rank=1, incarnation=2))
    with pytest.raises(RefusedError, match="incarnation 1, incarnation 2 has registered"):
        await asyncio.to_thread(lambda: list(old.commands()))
    assert [w.incarnation for w in coordinator.server.workers()] == [2]
    assert [event[0] for event in coordinator.events] == ["join", "leave", "join"]
    for session in (old, new):
        await asyncio.to_thread(session.close)
    await coordinator.server.close("over")


@program
async def test_silent_worker_is_declared_lost_and_its_calls_fail() -> None:
    coordinator = Coordinator(heartbeat_interval_s=0.05, heartbeat_timeout_s=0.3)
    address = await coordinator.start()
    async with grpc.aio.insecure_channel(address) as channel:
        stream = pb_grpc.CoordinatorStub(channel).Session()  # type: ignore[no-untyped-call]
        await stream.write(pb.WorkerMessage(register=register()))
        assert (await stream.read()).HasField("welcome")
        with pytest.raises(
            WorkerLostError, match=r"actor-0/rank-1 was lost during k: no heartbeat for 0\.\d s"
        ):
            await coordinator.server.call(KEY, update("k"), timeout_s=5)
    assert not coordinator.server.workers()
    assert coordinator.events[-1][:2] == ("leave", "actor-0/rank-1")
    await coordinator.server.close("over")


@program
async def test_busy_worker_stays_by_its_heartbeats_and_reports_its_state() -> None:
    coordinator = Coordinator(heartbeat_interval_s=0.05, heartbeat_timeout_s=0.5)
    session = await session_on(await coordinator.start())
    session.update_state(applied_step=4, activity="computing", gauges={"memory": 2.0})
    info = coordinator.server.workers()[KEY]
    await coordinator.wait_for(lambda: info.heartbeat.activity == "computing")
    assert info.register.applied_step == 4
    assert info.heartbeat.gauges["memory"] == 2.0
    with pytest.raises(
        DeadlineError, match=r"actor-0/rank-1 did not finish update \(k\) within 1 s; it was computing"
    ):
        await coordinator.server.call(KEY, update("k"), timeout_s=1)  # nobody takes the command
    assert KEY in coordinator.server.workers()
    await asyncio.to_thread(session.close)
    await coordinator.server.close("over")


@program
async def test_call_of_an_absent_worker_fails_at_once() -> None:
    coordinator = Coordinator()
    await coordinator.start()
    with pytest.raises(WorkerLostError, match="actor-0/rank-1 is not connected"):
        await coordinator.server.call(KEY, update("k"), timeout_s=5)
    await coordinator.server.close("over")


@program
async def test_call_that_the_worker_answers_with_an_error_raises_its_kind() -> None:
    coordinator = Coordinator()
    session = await session_on(await coordinator.start())
    call = asyncio.create_task(coordinator.server.call(KEY, update("k"), timeout_s=5))
    command = await asyncio.to_thread(lambda: next(session.commands()))
    session.reply(pb.CommandResult(key=command.key, error="no memory", error_kind="oom"))
    with pytest.raises(CommandError, match="actor-0/rank-1: no memory") as caught:
        await call
    assert (caught.value.kind, caught.value.exit_code) == ("oom", ExitCode.OUT_OF_MEMORY)
    await asyncio.to_thread(session.close)
    await coordinator.server.close("over")


@program
async def test_repeated_key_runs_once_and_answers_every_call() -> None:
    coordinator = Coordinator()
    session = await session_on(await coordinator.start())
    first = asyncio.create_task(coordinator.server.call(KEY, update("k"), timeout_s=5))
    command = await asyncio.to_thread(lambda: next(session.commands()))
    second = asyncio.create_task(coordinator.server.call(KEY, update("k"), timeout_s=5))
    with pytest.raises(CommandError, match="key k is in use for another command"):
        await coordinator.server.call(KEY, update("k", step=2), timeout_s=5)
    session.reply(pb.CommandResult(key=command.key, ok=True, metrics={"run": 1}))
    later = await coordinator.server.call(KEY, update("k"), timeout_s=5)
    assert later.metrics["run"] == 1
    assert (await first).metrics["run"] == (await second).metrics["run"] == 1
    with pytest.raises(CommandError, match=r"key k was used for another command \(update, now update\)"):
        await coordinator.server.call(KEY, update("k", step=2), timeout_s=5)
    await asyncio.to_thread(session.close)
    await coordinator.server.close("over")


@program
async def test_result_finished_while_disconnected_is_delivered_to_the_next_coordinator() -> None:
    first = Coordinator(instance="first")
    address = await first.start()
    port = int(address.rsplit(":", 1)[1])
    moved: list[str] = []
    session = WorkerSession(
        register(),
        address,
        dial_timeout_s=20,
        on_new_coordinator=lambda welcome: moved.append(welcome.coordinator_instance),
    )
    await asyncio.to_thread(session.start)
    call = asyncio.create_task(first.server.call(KEY, update("k"), timeout_s=10))
    command = await asyncio.to_thread(lambda: next(session.commands()))
    await first.server.close("restart")
    with pytest.raises(WorkerLostError, match="lost during k"):
        await call
    session.reply(pb.CommandResult(key=command.key, ok=True, metrics={"run": 1}))
    session.update_state(applied_step=1)
    second = Coordinator(instance="second")
    await second.start(port)
    await second.wait_for(lambda: KEY in second.server.workers())
    assert second.server.workers()[KEY].register.applied_step == 1
    assert (await second.server.call(KEY, update("k"), timeout_s=5)).metrics["run"] == 1
    assert moved == ["second"]
    await asyncio.to_thread(session.close)
    await second.server.close("over")


@program
async def test_session_without_a_coordinator_gives_up_at_the_deadline() -> None:
    session = WorkerSession(register(), "127.0.0.1:9", dial_timeout_s=0.4)
    with pytest.raises(CoordinatorLostError, match=r"127\.0\.0\.1:9 within 0\.4 s") as caught:
        await asyncio.to_thread(session.start)
    assert caught.value.exit_code == ExitCode.COORDINATOR_LOST
    with pytest.raises(CoordinatorLostError):
        list(session.commands())


@program
async def test_exception_that_leaves_the_session_is_told_to_the_coordinator() -> None:
    coordinator = Coordinator()
    address = await coordinator.start()

    def role() -> None:
        with WorkerSession(register(), address, dial_timeout_s=5) as session:
            session.start()
            raise UserError("model.path is /nowhere: no such folder")

    with pytest.raises(UserError):
        await asyncio.to_thread(role)
    await coordinator.wait_for(lambda: len(coordinator.events) == 3)
    _, failed, left = coordinator.events
    assert failed[0] == "failed"
    assert "model.path is /nowhere" in failed[2]
    assert failed[3] == "user"
    assert left[0] == "leave"
    await coordinator.server.close("over")


@program
async def test_start_on_a_port_in_use_says_so() -> None:
    coordinator = Coordinator()
    address = await coordinator.start()
    with pytest.raises(UserError, match="the port is in use"):
        await Coordinator().server.start(address)
    await coordinator.server.close("over")


@program
async def test_job_control_reaches_the_handler_and_brings_its_errors_back() -> None:
    coordinator = Coordinator()
    address = await coordinator.start()

    def ask() -> None:
        with JobControlClient(address) as client:
            assert client.get_status().step == 3
            client.stop(reason="Ctrl-C", grace_s=5)
            with pytest.raises(UserError, match="temperature is -1"):
                client.update_rollout(jc.UpdateRolloutRequest(temperature=-1))
            with pytest.raises(DeadlineError, match="actor-0/rank-0 did not save"):
                client.checkpoint(timeout_s=5)
            with pytest.raises(UserError, match="rollout: 0 replicas"):
                client.resize(jc.ResizeRequest())

    await asyncio.to_thread(ask)
    assert coordinator.job.stops == [jc.StopRequest(reason="Ctrl-C", grace_s=5)]
    async with grpc.aio.insecure_channel(address) as channel:
        stub = jc_grpc.JobControlStub(channel)  # type: ignore[no-untyped-call]
        assert [status.step async for status in stub.Watch(jc.WatchRequest())] == [0, 1, 2]
    await coordinator.server.close("over")


@program
async def test_question_for_news_is_answered_when_there_is_some_or_its_time_is_over() -> None:
    coordinator = Coordinator()
    address = await coordinator.start()
    async with grpc.aio.insecure_channel(address) as channel:
        stub = jc_grpc.JobControlStub(channel)  # type: ignore[no-untyped-call]
        first = await stub.GetStatus(jc.GetStatusRequest())
        assert first.mark

        question = jc.GetStatusRequest(mark=first.mark, wait_s=30.0)
        waiting = asyncio.ensure_future(stub.GetStatus(question, timeout=20.0))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        coordinator.job.step = 4
        news = await waiting
        assert (news.step, news.mark == first.mark) == (4, False)
        assert (await stub.GetStatus(question, timeout=20.0)).step == 4, "it is not what the asker has seen"

        patient = jc.GetStatusRequest(mark=news.mark, wait_s=30.0, numbers_s=25.0)
        waiting = asyncio.ensure_future(stub.GetStatus(patient, timeout=20.0))
        coordinator.job.step = 5
        await asyncio.sleep(2 * job_control.NEWS_INTERVAL_S)
        assert not waiting.done(), "numbers can wait"
        coordinator.job.phase = "Recovering"
        news = await waiting
        assert (news.step, news.phase) == (5, "Recovering")

        same = await stub.GetStatus(jc.GetStatusRequest(mark=news.mark, wait_s=0.05), timeout=20.0)
        assert same == news
        for senseless in (math.nan, -1.0):
            request = jc.GetStatusRequest(mark=news.mark, wait_s=senseless)
            assert await stub.GetStatus(request, timeout=20.0) == news
    await coordinator.server.close("over")


def test_job_control_without_a_coordinator_says_that_the_job_is_not_running() -> None:
    with JobControlClient("127.0.0.1:9") as client, pytest.raises(UserError, match="is not running"):
        client.get_status(timeout_s=5)
