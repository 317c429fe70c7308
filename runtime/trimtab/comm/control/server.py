r"""ControlServer: the coordinator's end of the control plane. Runs on the coordinator's asyncio loop.

The coordinator makes one, gives it callbacks, and awaits `start`. Workers then dial in:

    (stream opened) --Register--> checked --refused--> Refused, stream closed, never dialled again
                                     |   \--not yet--> UNAVAILABLE, dialled again: this coordinator is about
                                     |                 to be replaced, or to hear of more replicas
                                     |
                                  Welcome, on_join
                                     |
                                  connected <--Heartbeat, CommandResult, WorkerFailed--
                                     |
      stream broke | silent too long | replaced by a newer stream | told to shut down
                                     |
                                  on_leave(reason); every pending call raises WorkerLostError

A worker that only lost its stream comes back and is joined again, with the same incarnation; the
coordinator then repeats the calls that failed, under the same keys. The worker runs a key once: a
repeated key attaches to the running command or gets the cached result, so a repeat is always safe.
Messages on one stream are neither lost, doubled nor reordered (HTTP/2 over TCP); what was in flight
when a stream broke is covered by repeating the key.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import grpc
import grpc.aio

from trimtab.comm.control.constants import (
    PROTOCOL_VERSION,
    REGISTRATION_TIMEOUT_S,
    SERVER_OPTIONS,
    RefusalReason,
)
from trimtab.comm.control.errors import CommandError
from trimtab.comm.control.job_control import JobControlHandler, JobControlServicer
from trimtab.comm.control.keys import WorkerKey
from trimtab.comm.control.ledger import digest
from trimtab.comm.control.peers import Peers
from trimtab.comm.tls import JobTls
from trimtab.errors import DeadlineError, UserError, WorkerLostError
from trimtab.v1 import control_pb2 as pb
from trimtab.v1 import control_pb2_grpc as pb_grpc
from trimtab.v1 import job_control_pb2_grpc as jc_grpc

logger = logging.getLogger(__name__)

OnJoin = Callable[[WorkerKey, pb.Register], None]
OnLeave = Callable[[WorkerKey, str], None]
OnFailed = Callable[[WorkerKey, str, str], None]
OnLeaving = Callable[[WorkerKey, str], None]


@dataclass(frozen=True)
class NotAdmitted:
    """Why the coordinator does not take a worker that is what it says it is."""

    message: str
    final: bool = True
    """Whether the worker is to give up; else it dials again, until its own deadline."""


@dataclass
class WorkerInfo:
    """What the coordinator knows of a connected worker; updated in place on the server's loop."""

    register: pb.Register
    """As last registered; applied_step and weight_version are kept current by heartbeats."""
    heartbeat: pb.Heartbeat
    """The last one; empty before the first."""
    last_seen_s: float
    """Loop time of the last message of any kind."""


@dataclass(frozen=True)
class _Pending:
    asked: bytes
    result: "asyncio.Future[pb.CommandResult]"


@dataclass
class _Connection:
    worker: WorkerKey
    info: WorkerInfo
    outbox: "asyncio.Queue[pb.CoordinatorMessage]"
    closed: "asyncio.Future[str]"
    """Its result is the reason; once set, the stream is on its way down."""
    pending: "dict[str, _Pending]" = field(default_factory=dict)
    leaving: str | None = None
    """Why it was told to leave, once it was."""

    def close(self, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)


class ControlServer:
    """Accepts workers, sends them commands, and tells the coordinator who came and who went.

    `admit` may refuse a registration that passed every check here. With `tls` only peers with a certificate
    of the job get through, each to what is its own (`trimtab.comm.control.peers`). All callbacks run on the
    server's loop, must not block, and are called in the order of events: `on_join` for a worker always comes
    before its `on_leave`, and a replaced stream's `on_leave` before the new stream's `on_join`. `on_leaving`
    tells, once for each of its streams, of a worker whose pod is about to be ended.
    """

    def __init__(
        self,
        *,
        training_identity: str,
        attempt: int,
        heartbeat_interval_s: float,
        heartbeat_timeout_s: float,
        experience_address: str,
        coordinator_instance: str,
        admit: Callable[[pb.Register], NotAdmitted | None],
        on_join: OnJoin,
        on_leave: OnLeave,
        on_failed: OnFailed,
        job_control: JobControlHandler,
        on_leaving: OnLeaving | None = None,
        tls: JobTls | None = None,
    ) -> None:
        self._training_identity = training_identity
        self._attempt = attempt
        self._heartbeat_interval_s = heartbeat_interval_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._experience_address = experience_address
        self._coordinator_instance = coordinator_instance
        self._admit = admit
        self._on_join = on_join
        self._on_leave = on_leave
        self._on_failed = on_failed
        self._on_leaving = on_leaving
        self._job_control = job_control
        self._tls = tls
        self._peers = Peers(secured=tls is not None)
        self._connections: dict[tuple[str, int, int, int], _Connection] = {}
        self._newest_incarnation: dict[tuple[str, int, int, int], int] = {}
        self._left = asyncio.Condition()
        self._closing: str | None = None
        self._server: Any = None
        self._watchdog: asyncio.Task[None] | None = None

    async def start(self, address: str) -> int:
        """Listen on `host:port` (port 0: any free one) and return the port. UserError where it is taken."""
        server = grpc.aio.server(options=SERVER_OPTIONS)
        pb_grpc.add_CoordinatorServicer_to_server(_Servicer(self._serve), server)  # type: ignore[no-untyped-call]
        job_control = JobControlServicer(self._job_control, self._peers)
        jc_grpc.add_JobControlServicer_to_server(job_control, server)  # type: ignore[no-untyped-call]
        try:
            if self._tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._tls.server_credentials())
        except RuntimeError as error:
            await server.stop(grace=None)
            raise UserError(
                f"the coordinator cannot listen on {address}: the port is in use or the address is not of "
                "this machine; end the other process or choose another port"
            ) from error
        await server.start()
        self._server = server
        self._watchdog = asyncio.create_task(self._watch_heartbeats(), name="control-watchdog")
        return int(port)

    def workers(self) -> Mapping[WorkerKey, WorkerInfo]:
        """The connected workers, now."""
        return MappingProxyType({c.worker: c.info for c in self._connections.values()})

    async def call(self, worker: WorkerKey, command: pb.Command, *, timeout_s: float) -> pb.CommandResult:
        """Send a command and wait for its result.

        Safe to repeat under the same key, also after an error and on a later coordinator. Raises
        WorkerLostError where the worker is not connected or its stream ends first, DeadlineError past
        `timeout_s`, CommandError where the worker answered with an error; each names the worker.
        `command.timeout_s` is filled in where it is 0. A key that this stream still owes an answer is
        not sent again: the call waits for that answer.
        """
        connection = self._connections.get(worker.place)
        if connection is None or connection.worker != worker or connection.closed.done():
            raise WorkerLostError(f"{worker} is not connected (command {command.key})")
        assert command.key, "a command needs an idempotency key"
        asked, body = digest(command), command.WhichOneof("body")
        pending = connection.pending.get(command.key)
        if pending is None:
            pending = _Pending(asked, asyncio.get_running_loop().create_future())
            connection.pending[command.key] = pending
            sent = pb.Command()
            sent.CopyFrom(command)
            sent.timeout_s = sent.timeout_s or timeout_s
            connection.outbox.put_nowait(pb.CoordinatorMessage(command=sent))
        elif pending.asked != asked:
            message = f"key {command.key} is in use for another command than this {body}"
            raise CommandError(str(worker), "internal", message)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await asyncio.shield(pending.result)
        except TimeoutError as error:
            activity = connection.info.heartbeat.activity
            raise DeadlineError(
                f"{worker} did not finish {body} ({command.key}) within {timeout_s:g} s"
                + (f"; it was {activity}" if activity else "")
            ) from error
        if not answer.ok:
            raise CommandError(str(worker), answer.error_kind, answer.error)
        return answer

    async def shutdown_worker(self, worker: WorkerKey, reason: str, exit_code: int) -> None:
        """Tell a worker to leave with this exit code; returns once it is queued. Unknown ones are ignored."""
        connection = self._connections.get(worker.place)
        if connection is None or connection.worker != worker:
            return
        connection.leaving = reason
        shutdown = pb.Shutdown(reason=reason, exit_code=exit_code)
        connection.outbox.put_nowait(pb.CoordinatorMessage(shutdown=shutdown))

    async def shutdown_all(self, reason: str, exit_code: int, *, timeout_s: float) -> list[WorkerKey]:
        """Tell every worker to leave and wait until they have; returns those still here at the deadline."""
        for worker in self.workers():
            await self.shutdown_worker(worker, reason, exit_code)
        try:
            async with asyncio.timeout(timeout_s), self._left:
                await self._left.wait_for(lambda: not self._connections)
        except TimeoutError:
            return sorted(self.workers())
        return []

    async def close(self, reason: str) -> None:
        """Stop listening and end every stream without a word: workers dial again, for a next coordinator."""
        self._closing = reason
        if self._watchdog is not None:
            self._watchdog.cancel()
        for connection in list(self._connections.values()):
            connection.close(reason)
        if self._server is not None:
            await self._server.stop(grace=1.0)

    def _refusal(self, register: pb.Register) -> tuple[RefusalReason | None, str] | None:
        """Why a registration is declined; without a reason it is for now only, and the worker dials again."""
        worker = WorkerKey.from_proto(register.worker)
        if register.protocol_version != PROTOCOL_VERSION:
            return RefusalReason.PROTOCOL_VERSION, (
                f"{worker} speaks protocol version {register.protocol_version}, the coordinator "
                f"{PROTOCOL_VERSION}: run the same trimtab version in every role"
            )
        if register.training_identity != self._training_identity:
            return RefusalReason.TRAINING_IDENTITY, (
                f"{worker} belongs to training {register.training_identity}, the coordinator to "
                f"{self._training_identity}: model, data, algorithm, precision or seed differ"
            )
        if register.attempt < self._attempt:
            return RefusalReason.ATTEMPT_OLDER, (
                f"{worker} is of attempt {register.attempt}, the job is at attempt {self._attempt}: "
                "it was started again meanwhile"
            )
        if register.attempt > self._attempt:
            return None, (
                f"{worker} is of attempt {register.attempt}, this coordinator is still of attempt "
                f"{self._attempt}: it reached a coordinator that is to be replaced"
            )
        newest = self._newest_incarnation.get(worker.place, 0)
        if worker.incarnation < newest:
            return RefusalReason.INCARNATION_OLDER, (
                f"{worker} is incarnation {worker.incarnation}, incarnation {newest} has registered already"
            )
        denied = self._admit(register)
        if denied is None:
            return None
        return RefusalReason.NOT_ADMITTED if denied.final else None, denied.message

    async def _serve(self, context: Any) -> None:
        """One stream, from its registration to its end."""
        if self._closing is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self._closing)
        first = await _read_first(context)
        if first is None:
            return
        # Only now: a stream that ends before the other side has written loses its status there.
        await self._peers.require_worker(context)
        if first.WhichOneof("body") != "register":
            refused = pb.Refused(
                reason=RefusalReason.NOT_A_REGISTRATION,
                message=f"a stream begins with register, not {first.WhichOneof('body')}",
            )
            await context.write(pb.CoordinatorMessage(refused=refused))
            return
        register = first.register
        refusal = self._refusal(register)
        if refusal is not None:
            reason, message = refusal
            if reason is None:
                logger.info("not yet: %s", message)
                await context.abort(grpc.StatusCode.UNAVAILABLE, message)
            logger.warning("refused: %s", message)
            refused = pb.Refused(reason=reason, message=message)
            await context.write(pb.CoordinatorMessage(refused=refused))
            return
        connection = self._join(register)
        reader = asyncio.create_task(self._read(connection, context))
        writer = asyncio.create_task(_write(connection, context))
        try:
            ends: set[asyncio.Future[Any]] = {reader, writer, connection.closed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            told = connection.leaving
            connection.close("its stream ended" if told is None else f"told to leave: {told}")
        finally:
            reader.cancel()
            writer.cancel()
            connection.close("its stream broke")
            await self._leave(connection)
            for problem in await asyncio.gather(reader, writer, return_exceptions=True):
                if isinstance(problem, Exception):
                    logger.warning("the stream of %s ended with %r", connection.worker, problem)

    def _join(self, register: pb.Register) -> _Connection:
        worker = WorkerKey.from_proto(register.worker)
        loop = asyncio.get_running_loop()
        previous = self._connections.pop(worker.place, None)
        if previous is not None:
            reason = f"replaced by a newer stream of incarnation {worker.incarnation}"
            previous.close(reason)
            self._drop(previous)
        info = WorkerInfo(register, pb.Heartbeat(), loop.time())
        connection = _Connection(worker, info, asyncio.Queue(), loop.create_future())
        welcome = pb.Welcome(
            coordinator_instance=self._coordinator_instance,
            experience_address=self._experience_address,
            heartbeat_interval_s=self._heartbeat_interval_s,
        )
        connection.outbox.put_nowait(pb.CoordinatorMessage(welcome=welcome))
        self._connections[worker.place] = connection
        self._newest_incarnation[worker.place] = worker.incarnation
        self._on_join(worker, register)
        return connection

    async def _leave(self, connection: _Connection) -> None:
        if self._connections.get(connection.worker.place) is connection:
            del self._connections[connection.worker.place]
            self._drop(connection)
        async with self._left:
            self._left.notify_all()

    def _drop(self, connection: _Connection) -> None:
        """Fail what waits for this connection and tell the coordinator; once per connection."""
        reason = connection.closed.result()
        for key, pending in connection.pending.items():
            error = WorkerLostError(f"{connection.worker} was lost during {key}: {reason}")
            pending.result.set_exception(error)
            pending.result.exception()  # the caller may have given up already
        connection.pending.clear()
        self._on_leave(connection.worker, reason)

    async def _read(self, connection: _Connection, context: Any) -> None:
        loop = asyncio.get_running_loop()
        while True:
            message = await context.read()
            if message is grpc.aio.EOF:
                return
            info = connection.info
            info.last_seen_s = loop.time()
            body = message.WhichOneof("body")
            if body == "heartbeat":
                leaving, known = message.heartbeat.leaving, info.heartbeat.leaving
                if leaving and not known and self._on_leaving is not None:
                    self._on_leaving(connection.worker, leaving)
                info.heartbeat = message.heartbeat
                info.register.applied_step = message.heartbeat.applied_step
                info.register.weight_version = message.heartbeat.weight_version
            elif body == "result":
                pending = connection.pending.pop(message.result.key, None)
                if pending is not None:
                    pending.result.set_result(message.result)
            elif body == "failed":
                self._on_failed(connection.worker, message.failed.message, message.failed.error_kind)
            else:
                connection.close(f"it sent {body} where only heartbeats and results are expected")
                return

    async def _watch_heartbeats(self) -> None:
        """Declare silent workers lost; their streams are closed, so that they notice if they still live."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(self._heartbeat_interval_s, self._heartbeat_timeout_s / 4))
            for connection in list(self._connections.values()):
                silent_s = loop.time() - connection.info.last_seen_s
                if silent_s > self._heartbeat_timeout_s:
                    connection.close(f"no heartbeat for {silent_s:.1f} s")


class _Servicer(pb_grpc.CoordinatorServicer):
    def __init__(self, serve: Callable[[Any], Any]) -> None:
        self._serve = serve

    async def Session(self, requests: Any, context: Any) -> None:  # noqa: N802
        """See the proto; the context is read and written directly, the iterator is not used."""
        await self._serve(context)


async def _read_first(context: Any) -> pb.WorkerMessage | None:
    try:
        async with asyncio.timeout(REGISTRATION_TIMEOUT_S):
            message = await context.read()
    except TimeoutError:
        await context.abort(
            grpc.StatusCode.DEADLINE_EXCEEDED, f"no registration within {REGISTRATION_TIMEOUT_S:g} s"
        )
        return None
    return None if message is grpc.aio.EOF else message


async def _write(connection: _Connection, context: Any) -> None:
    while True:
        message = await connection.outbox.get()
        await context.write(message)
