r"""WorkerSession: a worker's end of the control plane. Owns one thread with its own asyncio loop.

The role makes one, calls `start` (blocking), and then takes commands on its main thread
(`for command in session.commands()`) or on its own loop (`async for ... in session.commands_async()`),
answering each with `reply`. Heartbeats go out from the session's thread while the role computes.

    dialling --Welcome--> connected --stream broke--> dialling (bounded backoff)
        |  \                   |
     Refused  dial deadline  Shutdown --> leaving: stream kept until `close`, never dialled again
        |        |             |
        v        v             v
    commands() raises      commands() ends
    RefusedError / CoordinatorLostError / whatever else ended the thread

Commands run once: `CommandLedger` remembers keys across streams and coordinators. A result that is
ready while no stream is up is kept, and goes out when the coordinator repeats the key. The role sees
nothing of a reconnection, unless it gives `on_new_coordinator`.

Start the session after anything that forks: a forked child of a process with gRPC threads may hang.
"""

import asyncio
import concurrent.futures
import logging
import queue
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from trimtab.comm.control.constants import REGISTRATION_TIMEOUT_S, channel_options
from trimtab.comm.control.errors import CoordinatorLostError, RefusedError, error_kind
from trimtab.comm.control.keys import WorkerKey
from trimtab.comm.control.ledger import Admission, CommandLedger
from trimtab.comm.tls import JobTls, aio_channel
from trimtab.errors import TrimtabError, UserError
from trimtab.v1 import control_pb2 as pb
from trimtab.v1 import control_pb2_grpc as pb_grpc

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 2.0
FLUSH_TIMEOUT_S = 5.0
STATUS_TIMEOUT_S = 1.0
_STREAM_ERRORS = (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError)


@dataclass(frozen=True)
class _End:
    """The last item of the inbox: no further command will come."""

    error: Exception | None


@dataclass(frozen=True)
class _Call:
    """An item of the inbox that is not the coordinator's: done on the thread that takes commands."""

    work: Callable[[], None]


class WorkerSession:
    """Registers with the coordinator and stays registered until told to leave.

    `register` says who the worker is; its applied_step and weight_version are brought up to date from
    `update_state` at every registration. `dial_timeout_s` bounds how long it goes without a coordinator,
    at the start and after each loss. `silence_s` is how long the coordinator's machine may say nothing at
    all before the stream counts as broken. `on_new_coordinator(welcome)` is called on the session's thread
    after it has registered with another coordinator process than before; it must not block. Every dial looks
    the coordinator's name up anew, and reads the certificates of `tls` anew.

    `reply`, `update_state`, `call_soon`, `leave`, `fail` and `close` may be called from any thread. As a
    context manager it reports an exception that leaves the block with `fail`, and closes.
    """

    def __init__(
        self,
        register: pb.Register,
        coordinator: str,
        *,
        dial_timeout_s: float,
        silence_s: float = 20.0,
        tls: JobTls | None = None,
        on_new_coordinator: Callable[[pb.Welcome], None] | None = None,
    ) -> None:
        self._register = register
        self._worker = WorkerKey.from_proto(register.worker)
        self._coordinator = coordinator
        self._dial_timeout_s = dial_timeout_s
        self._options = channel_options(silence_s=silence_s)
        self._tls = tls
        self._on_new_coordinator = on_new_coordinator
        self._ledger = CommandLedger()
        self._inbox: queue.SimpleQueue[pb.Command | _Call | _End] = queue.SimpleQueue()
        self._wake: Callable[[], None] = _nothing
        self._lock = threading.Lock()  # guards _wake and _state
        self._state = pb.Heartbeat(applied_step=register.applied_step, weight_version=register.weight_version)
        self._welcomed: concurrent.futures.Future[pb.Welcome] = concurrent.futures.Future()
        self._on_arrival: Callable[[pb.Command], None] = lambda command: None
        self._instance: str | None = None
        self._alone_since: float | None = time.monotonic()
        self._shutdown: pb.Shutdown | None = None
        # The rest belongs to the session's loop.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outbox: asyncio.Queue[pb.WorkerMessage | None] | None = None
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"session {self._worker}", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        told = isinstance(error, (RefusedError, CoordinatorLostError))
        if isinstance(error, Exception) and not told:
            text = str(error) if isinstance(error, TrimtabError) else f"{type(error).__name__}: {error}"
            self.fail(text, error_kind(error))
        self.close()

    @property
    def worker(self) -> WorkerKey:
        """Who this is."""
        return self._worker

    @property
    def shutdown(self) -> pb.Shutdown | None:
        """The coordinator's word to leave, once it has come."""
        return self._shutdown

    @property
    def alone_s(self) -> float:
        """For how long there has been no coordinator; 0 while one is connected."""
        since = self._alone_since
        return 0.0 if since is None else time.monotonic() - since

    def start(self) -> pb.Welcome:
        """Dial and register. Raises RefusedError, or CoordinatorLostError past the dial deadline."""
        self._thread.start()
        # The thread keeps the deadline itself; the margin is for a machine that stalls.
        return self._welcomed.result(timeout=self._dial_timeout_s + 2 * REGISTRATION_TIMEOUT_S)

    def commands(self) -> Iterator[pb.Command]:
        """Commands to run, each once, until Shutdown; raises as `start` where the coordinator is gone."""
        while True:
            item = self._inbox.get()
            if isinstance(item, _End):
                self._inbox.put(item)  # every later iteration ends the same way
                if item.error is not None:
                    raise item.error
                return
            if isinstance(item, _Call):
                item.work()
            else:
                yield item

    async def commands_async(self) -> AsyncIterator[pb.Command]:
        """`commands` for a role that runs on an asyncio loop; one consumer at a time."""
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(arrived.set)

        with self._lock:
            self._wake = wake
        try:
            while True:
                arrived.clear()
                while (item := self._take()) is not None:
                    if isinstance(item, _End):
                        self._inbox.put(item)
                        if item.error is not None:
                            raise item.error
                        return
                    if isinstance(item, _Call):
                        item.work()
                    else:
                        yield item
                await arrived.wait()
        finally:
            with self._lock:
                self._wake = _nothing

    def on_arrival(self, note: Callable[[pb.Command], None]) -> None:
        """Have each new command told to `note` before it is queued: a role that is busy learns of it at once.

        It is called on the session's thread and must not block. The command is to be run and answered all
        the same.
        """
        self._on_arrival = note

    def reply(self, result: pb.CommandResult) -> None:
        """Answer a command; exactly once per command. Delivered now or when the key is repeated."""
        self._ledger.complete(result)
        self._post(pb.WorkerMessage(result=result))

    def update_state(
        self,
        *,
        applied_step: int | None = None,
        weight_version: int | None = None,
        activity: str | None = None,
        gauges: Mapping[str, float] | None = None,
    ) -> None:
        """What the next heartbeat and the next registration say; what is left out stays as it is."""
        with self._lock:
            if applied_step is not None:
                self._state.applied_step = applied_step
            if weight_version is not None:
                self._state.weight_version = weight_version
            if activity is not None:
                self._state.activity = activity
            for name, value in (gauges or {}).items():
                self._state.gauges[name] = value

    def call_soon(self, work: Callable[[], None]) -> None:
        """Have `work` done where commands are taken, before the next one: it may touch what the role uses."""
        self._deliver(_Call(work))

    def leave(self, reason: str) -> None:
        """Tell the coordinator, now and whichever comes next, that this worker's pod is about to be ended.

        The session goes on: the coordinator says when to leave. Not for a signal handler: it takes a lock.
        """
        with self._lock:
            self._state.leaving = reason
        self._post(pb.WorkerMessage(heartbeat=self._snapshot()))

    def fail(self, message: str, kind: str) -> None:
        """Tell the coordinator that this worker cannot go on, and close the session."""
        failed = pb.WorkerFailed(message=f"{self._worker}: {message}", error_kind=kind)
        self._post(pb.WorkerMessage(failed=failed))
        self.close()

    def close(self) -> None:
        """Send what is queued, end the stream and the thread. Safe to repeat; takes at most a few seconds."""
        if not self._thread.is_alive():
            return
        self._on_loop(self._begin_stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=2 * FLUSH_TIMEOUT_S)

    def _take(self) -> pb.Command | _Call | _End | None:
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            return None

    def _deliver(self, item: pb.Command | _Call | _End) -> None:
        self._inbox.put(item)
        with self._lock:
            self._wake()

    def _snapshot(self) -> pb.Heartbeat:
        with self._lock:
            state = pb.Heartbeat()
            state.CopyFrom(self._state)
            return state

    def _on_loop(self, action: Callable[[], None]) -> None:
        """Run on the session's loop; nothing where the session has not begun or is over."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            loop.call_soon_threadsafe(action)
        except RuntimeError:  # it closed in between
            return

    def _post(self, message: pb.WorkerMessage) -> None:
        self._on_loop(lambda: self._send(message))

    def _send(self, message: pb.WorkerMessage) -> None:
        if self._outbox is not None:
            self._outbox.put_nowait(message)

    def _begin_stop(self) -> None:
        self._stopping.set()
        if self._outbox is not None:
            self._outbox.put_nowait(None)

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        error: Exception | None = None
        try:
            await self._stay_connected()
        except Exception as final:  # noqa: BLE001 - the edge of the thread: the role's thread raises it
            error = final
        if error is not None and not self._welcomed.done():
            self._welcomed.set_exception(error)
        self._deliver(_End(error))

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._dial_timeout_s
        backoff_s = FIRST_BACKOFF_S
        while not self._stopping.is_set() and self._shutdown is None:
            was_welcomed, problem = await self._one_stream(deadline)
            if was_welcomed:
                self._alone_since = time.monotonic()
            if self._stopping.is_set() or self._shutdown is not None:
                return
            if was_welcomed:
                logger.warning("lost the coordinator at %s (%s); dialling again", self._coordinator, problem)
                deadline = loop.time() + self._dial_timeout_s
                backoff_s = FIRST_BACKOFF_S
            if loop.time() >= deadline:
                raise CoordinatorLostError(
                    f"no coordinator at {self._coordinator} within {self._dial_timeout_s:g} s ({problem})"
                )
            # Jitter keeps a thousand workers from dialling a new coordinator in step.
            pause_s = backoff_s * random.uniform(0.5, 1.0)  # noqa: S311
            backoff_s = min(backoff_s * 2, LONGEST_BACKOFF_S)
            try:
                async with asyncio.timeout(min(pause_s, max(0.0, deadline - loop.time()))):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    async def _one_stream(self, deadline: float) -> tuple[bool, str]:
        """Serve one stream from dial to end; returns whether it was welcomed, and why it ended."""
        loop = asyncio.get_running_loop()
        try:
            dialled = aio_channel(self._coordinator, self._tls, self._options)
        except UserError as error:
            if not self._welcomed.done():
                raise
            return False, str(error)  # the certificates are being replaced: they were good before
        self._outbox = asyncio.Queue()
        async with dialled as channel:
            stream: Any = pb_grpc.CoordinatorStub(channel).Session()  # type: ignore[no-untyped-call]
            try:
                limit_s = min(REGISTRATION_TIMEOUT_S, max(0.1, deadline - loop.time()))
                async with asyncio.timeout(limit_s):
                    await stream.write(pb.WorkerMessage(register=self._registration()))
                    first = await stream.read()
                if first is grpc.aio.EOF:
                    return False, "the stream ended before an answer"
                if first.HasField("refused"):
                    raise RefusedError(first.refused.reason, first.refused.message)
                if not first.HasField("welcome"):
                    return False, f"an unexpected first answer: {first.WhichOneof('body')}"
                self._accept(first.welcome)
                return True, await self._serve(stream, first.welcome.heartbeat_interval_s)
            except _STREAM_ERRORS as error:
                return False, await _last_word(stream, error)
            finally:
                stream.cancel()
                self._outbox = None

    def _registration(self) -> pb.Register:
        register = pb.Register()
        register.CopyFrom(self._register)
        state = self._snapshot()
        register.applied_step = state.applied_step
        register.weight_version = state.weight_version
        return register

    def _accept(self, welcome: pb.Welcome) -> None:
        self._alone_since = None
        previous, self._instance = self._instance, welcome.coordinator_instance
        if not self._welcomed.done():
            self._welcomed.set_result(welcome)
        elif previous != self._instance and self._on_new_coordinator is not None:
            self._on_new_coordinator(welcome)

    async def _serve(self, stream: Any, heartbeat_interval_s: float) -> str:
        assert self._outbox is not None
        reader = asyncio.create_task(self._read(stream))
        writer = asyncio.create_task(self._write(stream, self._outbox, heartbeat_interval_s))
        if self._stopping.is_set():  # asked to stop while dialling
            self._outbox.put_nowait(None)
        done, _ = await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        if writer in done and not reader.done():
            # Told to stop, all is written: let the coordinator see the end before the channel goes.
            await asyncio.wait({reader}, timeout=FLUSH_TIMEOUT_S)
        reader.cancel()
        writer.cancel()
        results = await asyncio.gather(reader, writer, return_exceptions=True)
        problems = [r for r in results if isinstance(r, BaseException)]
        for problem in problems:
            if not isinstance(problem, (*_STREAM_ERRORS, asyncio.CancelledError)):
                raise problem
        return next((_describe(p) for p in problems if isinstance(p, _STREAM_ERRORS)), "the stream ended")

    async def _read(self, stream: Any) -> None:
        while (message := await stream.read()) is not grpc.aio.EOF:
            body = message.WhichOneof("body")
            if body == "command":
                admission, result = self._ledger.admit(message.command)
                if admission is Admission.RUN:
                    self._on_arrival(message.command)
                    self._deliver(message.command)
                elif result is not None:
                    self._send(pb.WorkerMessage(result=result))
            elif body == "shutdown":
                self._shutdown = message.shutdown
                self._deliver(_End(None))
            else:
                logger.error("the coordinator sent %s, which this version does not know", body)

    async def _write(
        self, stream: Any, outbox: "asyncio.Queue[pb.WorkerMessage | None]", interval_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        next_heartbeat = loop.time()
        while True:
            try:
                async with asyncio.timeout_at(next_heartbeat):
                    message = await outbox.get()
            except TimeoutError:
                message = pb.WorkerMessage(heartbeat=self._snapshot())
                next_heartbeat = loop.time() + interval_s
            if message is None:
                await stream.done_writing()
                return
            await stream.write(message)


async def _last_word(stream: Any, error: BaseException) -> str:
    """Why a stream ended: a write that fails says less than the status that the server sent meanwhile."""
    if isinstance(error, grpc.aio.AioRpcError):
        try:
            async with asyncio.timeout(STATUS_TIMEOUT_S):
                code, details = await stream.code(), await stream.details()
        except TimeoutError:
            return _describe(error)
        return f"{code.name}: {details}"
    return _describe(error)


def _describe(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__


def _nothing() -> None:
    return
