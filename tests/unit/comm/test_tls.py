"""Who gets onto a job's control and experience plane, over real sockets: one asyncio program per test."""

import asyncio
import datetime as dt
import itertools
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from trimtab.comm.control import (
    ControlServer,
    CoordinatorLostError,
    JobControlClient,
    WorkerKey,
    WorkerSession,
)
from trimtab.comm.experience import AsyncExperienceLink, ExperienceHub, Message
from trimtab.comm.tls import COORDINATOR, OPERATOR, WORKER, CurveClient, JobTls
from trimtab.errors import DeadlineError, TrimtabError, UserError, WorkerLostError
from trimtab.v1 import control_pb2 as pb
from trimtab.v1 import control_pb2_grpc as pb_grpc
from trimtab.v1 import job_control_pb2 as jc

Mount = Callable[..., Any]
NAME = "rollout-0/rank-0"
GARBAGE = {
    "zeroes": b"\x00" * 300,
    "random bytes": os.urandom(5000),
    "a web browser": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "plain HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 20,
    "a broken TLS record": b"\x16\x03\x01\xff\xff" + b"\xff" * 3000,
    "a ZeroMQ greeting without security": b"\xff" + b"\x00" * 8 + b"\x7f\x03\x00NULL" + b"\x00" * 48,
}


@dataclass
class Job:
    """Answers, and remembers what it was asked."""

    calls: list[str] = field(default_factory=list)

    async def get_status(self) -> jc.JobStatus:
        self.calls.append("GetStatus")
        return jc.JobStatus(name="job")

    async def watch(self) -> AsyncIterator[jc.JobStatus]:
        self.calls.append("Watch")
        yield jc.JobStatus(name="job")

    async def checkpoint(self, request: jc.CheckpointRequest) -> jc.CheckpointResponse:
        self.calls.append("Checkpoint")
        return jc.CheckpointResponse()

    async def update_rollout(self, request: jc.UpdateRolloutRequest) -> jc.UpdateRolloutResponse:
        self.calls.append("UpdateRollout")
        return jc.UpdateRolloutResponse()

    async def stop(self, request: jc.StopRequest) -> jc.StopResponse:
        self.calls.append("Stop")
        return jc.StopResponse()

    async def resize(self, request: jc.ResizeRequest) -> jc.ResizeResponse:
        self.calls.append("Resize")
        return jc.ResizeResponse()


COMMANDS: dict[str, Callable[[JobControlClient], object]] = {
    "GetStatus": lambda client: client.get_status(),
    "Watch": lambda client: list(client.watch()),
    "Checkpoint": lambda client: client.checkpoint(timeout_s=5),
    "UpdateRollout": lambda client: client.update_rollout(jc.UpdateRolloutRequest()),
    "Stop": lambda client: client.stop(reason="test", grace_s=1),
    "Resize": lambda client: client.resize(jc.ResizeRequest()),
}


@dataclass
class Coordinator:
    """A control server with certificates, and who joined it."""

    tls: JobTls | None
    job: Job = field(default_factory=Job)
    joined: list[str] = field(default_factory=list)
    somebody_joined: asyncio.Event = field(default_factory=asyncio.Event)

    def _note(self, worker: WorkerKey, register: pb.Register) -> None:
        self.joined.append(str(worker))
        self.somebody_joined.set()

    def __post_init__(self) -> None:
        self.server = ControlServer(
            training_identity="t",
            attempt=1,
            heartbeat_interval_s=0.2,
            heartbeat_timeout_s=10.0,
            experience_address="tcp://127.0.0.1:1",
            coordinator_instance="first",
            admit=lambda register: None,
            on_join=self._note,
            on_leave=lambda worker, reason: None,
            on_failed=lambda worker, message, kind: None,
            job_control=self.job,
            tls=self.tls,
        )


@asynccontextmanager
async def coordinator(tls: JobTls | None) -> AsyncIterator[tuple[Coordinator, str]]:
    made = Coordinator(tls)
    address = f"127.0.0.1:{await made.server.start('127.0.0.1:0')}"
    try:
        async with asyncio.timeout(60):
            yield made, address
    finally:
        await made.server.close("over")


def register() -> pb.Register:
    worker = pb.WorkerId(role="rollout", incarnation=1)
    return pb.Register(protocol_version=1, worker=worker, attempt=1, training_identity="t")


async def try_to_join(address: str, tls: JobTls | None) -> None:
    session = WorkerSession(register(), address, dial_timeout_s=1.0, tls=tls)
    try:
        await asyncio.to_thread(session.start)
    finally:
        await asyncio.to_thread(session.close)


async def test_worker_with_the_jobs_certificate_registers_and_takes_commands(tls_mount: Mount) -> None:
    async with coordinator(JobTls(tls_mount(COORDINATOR).path, COORDINATOR)) as (made, address):
        tls = JobTls.found_in(tls_mount(WORKER).path)
        session = WorkerSession(register(), address, dial_timeout_s=20, tls=tls)
        await asyncio.to_thread(session.start)
        assert (await answer_one_command(made, session)).ok
        await asyncio.to_thread(session.close)


async def answer_one_command(made: Coordinator, session: WorkerSession) -> pb.CommandResult:
    worker = next(iter(made.server.workers()))
    abort = pb.Command(key="k", abort_generation=pb.AbortGeneration())
    calling = asyncio.create_task(made.server.call(worker, abort, timeout_s=20))
    command = await asyncio.to_thread(lambda: next(session.commands()))
    session.reply(pb.CommandResult(key=command.key, ok=True))
    return await calling


async def test_worker_whose_certificates_cannot_be_read_says_so_at_once(tls_mount: Mount) -> None:
    mount = tls_mount(WORKER)
    (mount.path / "..data" / "worker.crt").unlink()
    session = WorkerSession(register(), "127.0.0.1:1", dial_timeout_s=60, tls=JobTls(mount.path, WORKER))
    with pytest.raises(UserError, match=r"TRIMTAB_TLS_DIR: .*worker.crt cannot be read"):
        async with asyncio.timeout(10):
            await asyncio.to_thread(session.start)


async def test_worker_dials_again_once_its_certificates_can_be_read_again(tls_mount: Mount) -> None:
    server_tls, mount = JobTls(tls_mount(COORDINATOR).path, COORDINATOR), tls_mount(WORKER)
    async with coordinator(server_tls) as (made, address):
        session = WorkerSession(register(), address, dial_timeout_s=20, tls=JobTls(mount.path, WORKER))
        await asyncio.to_thread(session.start)
        files = {path.name: path.read_bytes() for path in mount.path.glob("[!.]*")}
        mount.write({name: content for name, content in files.items() if name != "worker.crt"})
        made.somebody_joined.clear()
        made.server._connections[next(iter(made.server.workers())).place].close("the test ends the stream")
        await asyncio.sleep(0.5)
        mount.write(files)
        await made.somebody_joined.wait()
        assert (await answer_one_command(made, session)).ok
        await asyncio.to_thread(session.close)


@pytest.mark.parametrize("who", ["no certificate", "another job's", "another job's, trusting this one"])
async def test_stranger_does_not_get_through_and_says_why_it_gave_up(tls_mount: Mount, who: str) -> None:
    async with coordinator(JobTls(tls_mount(COORDINATOR).path, COORDINATOR)) as (made, address):
        tls = None
        if who != "no certificate":
            other = tls_mount(WORKER, uid="another-job")
            if who.endswith("trusting this one"):
                files = {path.name: path.read_bytes() for path in other.path.glob("[!.]*")}
                files["ca.crt"] = (tls_mount(WORKER).path / "ca.crt").read_bytes()
                other.write(files)
            tls = JobTls(other.path, WORKER)
        with pytest.raises(CoordinatorLostError, match=r"no coordinator at .* within 1 s \(UNAVAILABLE"):
            await try_to_join(address, tls)
        assert made.joined == []


async def test_worker_does_not_fall_for_another_jobs_or_a_plain_coordinator(tls_mount: Mount) -> None:
    ours = JobTls(tls_mount(WORKER).path, WORKER)
    for tls in (None, JobTls(tls_mount(COORDINATOR, uid="another-job").path, COORDINATOR)):
        async with coordinator(tls) as (made, address):
            with pytest.raises(CoordinatorLostError):
                await try_to_join(address, ours)
            assert made.joined == []


async def test_worker_does_not_pass_for_the_coordinator_of_its_own_job(tls_mount: Mount) -> None:
    mount = tls_mount(WORKER)
    async with coordinator(JobTls(mount.path, WORKER)) as (made, address):
        with pytest.raises(CoordinatorLostError):
            await try_to_join(address, JobTls(mount.path, WORKER))
        assert made.joined == []


@pytest.mark.parametrize("name", COMMANDS)
async def test_commands_are_taken_from_operator_and_coordinator_and_not_from_a_worker(
    tls_mount: Mount, name: str
) -> None:
    def ask(address: str, tls: JobTls | None) -> None:
        with JobControlClient(address, tls) as client:
            COMMANDS[name](client)

    ours = tls_mount(COORDINATOR)
    async with coordinator(JobTls(ours.path, COORDINATOR)) as (made, address):
        for identity in (JobTls(ours.path, COORDINATOR), operators(ours.path, tls_mount)):
            await asyncio.to_thread(ask, address, identity)
        assert made.job.calls == [name, name]
        with pytest.raises(TrimtabError, match=f"'worker' may not call JobControl.{name}"):
            await asyncio.to_thread(ask, address, JobTls(tls_mount(WORKER).path, WORKER))
        for stranger in (None, JobTls(tls_mount(COORDINATOR, uid="another-job").path, COORDINATOR)):
            with pytest.raises(UserError, match="no coordinator answers"):
                await asyncio.to_thread(ask, address, stranger)
        assert made.job.calls == [name, name]


def operators(folder: Path, tls_mount: Mount) -> JobTls:
    """The operator's certificate, which no pod has, in a folder of its own."""
    from trimtab_operator.certs import JobCredentials, MasterKey

    job = JobCredentials(MasterKey(b"m" * 32), job_uid="this-job", namespace="ns", job_name="job")
    pems = job.operator_pems(dt.datetime.now(dt.UTC))
    made = folder.with_name("tls-operator")
    made.mkdir(exist_ok=True)
    files = {"ca.crt": pems.ca, f"{OPERATOR}.crt": pems.certificate, f"{OPERATOR}.key": pems.key}
    for name, content in files.items():
        (made / name).write_bytes(content)
    return JobTls(made, OPERATOR)


@pytest.mark.parametrize("who", [COORDINATOR, OPERATOR])
async def test_session_is_for_workers_alone(tls_mount: Mount, who: str) -> None:
    ours = tls_mount(COORDINATOR)
    async with coordinator(JobTls(ours.path, COORDINATOR)) as (made, address):
        tls = JobTls(ours.path, COORDINATOR) if who == COORDINATOR else operators(ours.path, tls_mount)
        with pytest.raises(CoordinatorLostError, match="PERMISSION_DENIED"):
            await try_to_join(address, tls)
        assert made.joined == []


async def test_certificates_are_replaced_while_the_job_runs(
    tls_mount: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    now, before = dt.datetime.now(dt.UTC), dt.datetime.now(dt.UTC) - dt.timedelta(days=20)
    uid = next(uid for uid in map(str, itertools.count()) if leaf_lasts_until(uid, before) > now)
    ours, workers = tls_mount(COORDINATOR, uid=uid), tls_mount(WORKER, uid=uid)
    for mount in (ours, workers):
        mount.fill(before)
    async with coordinator(JobTls(ours.path, COORDINATOR)) as (made, address):
        tls = JobTls(workers.path, WORKER)
        session = WorkerSession(register(), address, dial_timeout_s=20, tls=tls)
        await asyncio.to_thread(session.start)
        first = await asyncio.to_thread(served_certificate, address, workers.path)
        assert await asyncio.to_thread(served_certificate, address, workers.path) == first
        assert "serving a new certificate" not in caplog.text
        ours.fill(now)
        # The old and the new leaves are of one authority: whoever has not read the new ones yet gets in.
        assert await asyncio.to_thread(served_certificate, address, workers.path) != first
        assert caplog.text.count("serving a new certificate") == 1
        workers.fill(now)
        assert (await answer_one_command(made, session)).ok  # on the stream from before
        await asyncio.to_thread(session.close)
        await try_to_join(address, tls)
        assert made.joined == [NAME, NAME]


def leaf_lasts_until(uid: str, made: dt.datetime) -> dt.datetime:
    from trimtab_operator.certs import JobCredentials, MasterKey

    return JobCredentials(MasterKey(b"m" * 32), job_uid=uid, namespace="ns", job_name="job").not_after(made)


def served_certificate(address: str, folder: Path) -> bytes:
    """What the coordinator shows, in DER, to a client of its job."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "worker.crt", folder / "worker.key")
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as raw,
        context.wrap_socket(raw, server_hostname=COORDINATOR) as wrapped,
    ):
        shown = wrapped.getpeercert(binary_form=True)
    assert shown is not None
    return shown


async def test_certificates_that_are_gone_or_spoilt_leave_the_served_ones_in_force(tls_mount: Mount) -> None:
    files = tls_mount(COORDINATOR)
    worker = JobTls(tls_mount(WORKER).path, WORKER)
    async with coordinator(JobTls(files.path, COORDINATOR)) as (made, address):
        files.write({})
        await try_to_join(address, worker)
        files.write({"ca.crt": b"x", "coordinator.crt": b"y", "coordinator.key": b"z"})
        await try_to_join(address, worker)
        assert made.joined == [NAME, NAME]


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"TRIMTAB_TLS_DIR: .*worker\.key cannot be read|ca\.crt"):
        JobTls(tmp_path, WORKER).channel_credentials()


def test_keys_show_in_no_text(tls_mount: Mount) -> None:
    server, client = tls_mount(COORDINATOR), tls_mount(WORKER)
    shown = repr(
        [JobTls(server.path, COORDINATOR).curve_server(), JobTls(client.path, WORKER).curve_client()]
    )
    for mount, name in ((server, "curve-server.key"), (client, "curve-client.key")):
        assert (mount.path / name).read_text() not in shown


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_control_port_outlives_garbage(tls_mount: Mount, garbage: bytes) -> None:
    async with coordinator(JobTls(tls_mount(COORDINATOR).path, COORDINATOR)) as (made, address):
        await throw(address, garbage)
        await try_to_join(address, JobTls(tls_mount(WORKER).path, WORKER))
        assert made.joined == [NAME]


async def throw(address: str, garbage: bytes) -> None:
    """Send it, and wait until the other side has had enough."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(garbage)
    try:
        async with asyncio.timeout(20):
            while await reader.read(4096):
                pass
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def hub(tls_mount: Mount) -> AsyncIterator[tuple[ExperienceHub, str]]:
    made = ExperienceHub(JobTls(tls_mount(COORDINATOR).path, COORDINATOR).curve_server())
    try:
        async with asyncio.timeout(60):
            yield made, made.bind("tcp://127.0.0.1:*")
    finally:
        made.close()


@contextmanager
def link(address: str, curve: CurveClient | None) -> Iterator[AsyncExperienceLink]:
    made = AsyncExperienceLink(NAME, address, curve)
    try:
        yield made
    finally:
        made._socket.close(linger=0)  # what a stranger has queued never leaves
        made._context.term()


async def test_worker_of_the_job_sends_and_receives_on_the_experience_plane(tls_mount: Mount) -> None:
    curve = JobTls(tls_mount(WORKER).path, WORKER).curve_client()
    async with hub(tls_mount) as (made, address):
        with link(address, curve) as worker:
            await made.send(NAME, Message("batch", {}, {"x": np.arange(100_000)}), 20)
            np.testing.assert_array_equal((await worker.recv(20)).arrays["x"], np.arange(100_000))
            await worker.send(Message("log_probs", {"step": 1}), 20)
            assert await made.recv() == (NAME, Message("log_probs", {"step": 1}))


@pytest.mark.parametrize("who", ["plain text", "another job's key", "another coordinator's key"])
async def test_stranger_is_kept_off_the_experience_plane(
    tls_mount: Mount, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    ours = JobTls(tls_mount(WORKER).path, WORKER).curve_client()
    other = JobTls(tls_mount(WORKER, uid="another-job").path, WORKER).curve_client()
    curves = {
        "plain text": None,
        "another job's key": CurveClient(ours.server, other.public, other.secret),
        "another coordinator's key": CurveClient(other.server, ours.public, ours.secret),
    }
    async with hub(tls_mount) as (made, address):
        with link(address, curves[who]) as stranger:
            await stranger.send(Message("episode", {"episode_id": "forged"}), 5)
            receiving = asyncio.create_task(made.recv())
            with pytest.raises(WorkerLostError, match=f"{NAME} has no connection"):
                await made.send(NAME, Message("generate", {"prompt": "secret"}), 1.0)
            with pytest.raises(DeadlineError):
                await stranger.recv(0.1)
            assert not receiving.done()
            receiving.cancel()
        with link(address, ours) as worker:  # who belongs here is let in all the same
            await worker.send(Message("episode", {}), 20)
            assert await made.recv() == (NAME, Message("episode"))
    refusals = [record for record in caplog.records if "to the experience plane" in record.message]
    assert 1 <= len(refusals) <= 2  # it tries again ten times a second, and fills no log
    for secret in (ours.secret, other.secret):
        assert secret.decode() not in caplog.text


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_experience_port_outlives_garbage(tls_mount: Mount, garbage: bytes) -> None:
    ours = JobTls(tls_mount(WORKER).path, WORKER).curve_client()
    async with hub(tls_mount) as (made, address):
        await throw(address.removeprefix("tcp://"), garbage)
        with link(address, ours) as worker:
            await worker.send(Message("episode", {}), 20)
            assert await made.recv() == (NAME, Message("episode"))


async def test_plain_worker_opens_no_session_over_a_raw_channel(tls_mount: Mount) -> None:
    async with coordinator(JobTls(tls_mount(COORDINATOR).path, COORDINATOR)) as (made, address):
        async with grpc.aio.insecure_channel(address) as channel:
            stream = pb_grpc.CoordinatorStub(channel).Session()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stream.write(pb.WorkerMessage(register=register()))
                await stream.read()
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        assert made.joined == []
