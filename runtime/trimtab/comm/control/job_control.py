"""JobControl: what the CLI, the launcher and the operator ask of a running job.

`JobControlHandler` is implemented by the coordinator; `JobControlServicer` puts it on the wire, on the
coordinator's loop. `JobControlClient` is the blocking client of the CLI, on the caller's thread.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Final, NoReturn, Protocol, Self

import grpc
import grpc.aio

from trimtab.comm.control.constants import channel_options
from trimtab.comm.control.peers import Peers
from trimtab.comm.tls import JobTls, channel
from trimtab.errors import DeadlineError, TrimtabError, UserError
from trimtab.v1 import job_control_pb2 as jc
from trimtab.v1 import job_control_pb2_grpc as jc_grpc

NEWS_INTERVAL_S: Final = 1.0
"""Between two looks for something new, while a question waits for it."""
MAX_WAIT_S: Final = 600.0
"""A question is not held longer than this."""
_NUMBERS: Final = (
    "activity",
    "step",
    "epoch",
    "seconds_left",
    "metrics",
    "checkpoint_path",
    "checkpoint_step",
)
"""Fields of a JobStatus that change with every step: no news by themselves."""


class JobControlHandler(Protocol):
    """The coordinator's side.

    Every method runs on the coordinator's loop and may be called at any time after
    `ControlServer.start`. A `UserError` reaches the caller as its message; a `TrimtabError` too.
    """

    async def get_status(self) -> jc.JobStatus:
        """The job as it is now; never blocks on a worker."""
        ...

    def watch(self) -> AsyncIterator[jc.JobStatus]:
        """The status now and after every change, until the job ends; several may watch at once."""
        ...

    async def checkpoint(self, request: jc.CheckpointRequest) -> jc.CheckpointResponse:
        """Save after the running step; returns when it is committed, or raises past `timeout_s`."""
        ...

    async def update_rollout(self, request: jc.UpdateRolloutRequest) -> jc.UpdateRolloutResponse:
        """Change the sampling from the next step on; repeating it is harmless."""
        ...

    async def stop(self, request: jc.StopRequest) -> jc.StopResponse:
        """Ask the job to stop and return at once; repeating it can only shorten the grace."""
        ...

    async def resize(self, request: jc.ResizeRequest) -> jc.ResizeResponse:
        """Take the numbers of replicas from now on; returns once they count, repeating it is harmless."""
        ...


class JobControlServicer(jc_grpc.JobControlServicer):
    """Lets through who may ask, delegates to the handler and turns its errors into gRPC status codes."""

    def __init__(self, handler: JobControlHandler, peers: Peers) -> None:
        self._handler = handler
        self._peers = peers

    async def GetStatus(self, request: jc.GetStatusRequest, context: Any) -> jc.JobStatus:  # noqa: N802
        """See the proto."""
        await self._peers.require_control(context, "GetStatus")
        begun = time.monotonic()
        while True:
            status = await self._handler.get_status()
            status.mark = _mark(status)
            past_s = time.monotonic() - begun
            left_s = min(request.wait_s, MAX_WAIT_S) - past_s
            numbers_too = not past_s < request.numbers_s
            if not left_s > 0 or _has_news(status.mark, request.mark, numbers_too=numbers_too):
                return status
            await asyncio.sleep(min(NEWS_INTERVAL_S, left_s))

    async def Watch(self, request: jc.WatchRequest, context: Any) -> AsyncIterator[jc.JobStatus]:  # noqa: N802
        """See the proto."""
        await self._peers.require_control(context, "Watch")
        async for status in self._handler.watch():
            yield status

    async def Checkpoint(self, request: jc.CheckpointRequest, context: Any) -> jc.CheckpointResponse:  # noqa: N802
        """See the proto."""
        await self._peers.require_control(context, "Checkpoint")
        try:
            return await self._handler.checkpoint(request)
        except TrimtabError as error:
            await _abort(context, error)

    async def UpdateRollout(  # noqa: N802
        self, request: jc.UpdateRolloutRequest, context: Any
    ) -> jc.UpdateRolloutResponse:
        """See the proto."""
        await self._peers.require_control(context, "UpdateRollout")
        try:
            return await self._handler.update_rollout(request)
        except TrimtabError as error:
            await _abort(context, error)

    async def Stop(self, request: jc.StopRequest, context: Any) -> jc.StopResponse:  # noqa: N802
        """See the proto."""
        await self._peers.require_control(context, "Stop")
        try:
            return await self._handler.stop(request)
        except TrimtabError as error:
            await _abort(context, error)

    async def Resize(self, request: jc.ResizeRequest, context: Any) -> jc.ResizeResponse:  # noqa: N802
        """See the proto."""
        await self._peers.require_control(context, "Resize")
        try:
            return await self._handler.resize(request)
        except TrimtabError as error:
            await _abort(context, error)


def _mark(status: jc.JobStatus) -> str:
    """Two digests: of everything, and of what does not change with every step."""
    everything, news = jc.JobStatus(), jc.JobStatus()
    everything.CopyFrom(status)
    everything.ClearField("mark")
    news.CopyFrom(everything)
    for name in _NUMBERS:
        news.ClearField(name)
    news.step = min(status.step, 1)  # the first one is news
    return f"{_digest(everything)}-{_digest(news)}"


def _digest(status: jc.JobStatus) -> str:
    return hashlib.blake2b(status.SerializeToString(deterministic=True), digest_size=8).hexdigest()


def _has_news(mark: str, seen: str, *, numbers_too: bool) -> bool:
    return mark.rpartition("-")[2] != seen.rpartition("-")[2] or (numbers_too and mark != seen)


async def _abort(context: Any, error: TrimtabError) -> NoReturn:
    if isinstance(error, UserError):
        code = grpc.StatusCode.INVALID_ARGUMENT
    elif isinstance(error, DeadlineError):
        code = grpc.StatusCode.DEADLINE_EXCEEDED
    else:
        code = grpc.StatusCode.INTERNAL
    await context.abort(code, str(error))
    raise AssertionError("abort raises")


class JobControlClient:
    """Blocking client, for one thread.

    Every call has a deadline; failures are `UserError` where no coordinator answers (the job is not
    running) and `TrimtabError` with the coordinator's own message.
    """

    def __init__(self, address: str, tls: JobTls | None = None) -> None:
        self._address = address
        self._channel = channel(address, tls, channel_options())
        self._stub = jc_grpc.JobControlStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def get_status(self, *, timeout_s: float = 10.0) -> jc.JobStatus:
        """The job as it is now."""
        status: jc.JobStatus = self._call(self._stub.GetStatus, jc.GetStatusRequest(), timeout_s)
        return status

    def watch(self) -> Iterator[jc.JobStatus]:
        """The status now and after every change, until the job ends; no deadline, as a job takes its time."""
        try:
            yield from self._stub.Watch(jc.WatchRequest())
        except grpc.RpcError as error:
            self._raise(error, "in time")

    def checkpoint(self, *, timeout_s: float) -> jc.CheckpointResponse:
        """Save a checkpoint now; returns when it is committed."""
        # The coordinator's own deadline names whom it waited for, so it gets the chance to answer first.
        request = jc.CheckpointRequest(timeout_s=timeout_s)
        response: jc.CheckpointResponse = self._call(self._stub.Checkpoint, request, timeout_s + 5.0)
        return response

    def update_rollout(
        self, request: jc.UpdateRolloutRequest, *, timeout_s: float = 10.0
    ) -> jc.UpdateRolloutResponse:
        """Change the rollout's sampling from the next step on."""
        response: jc.UpdateRolloutResponse = self._call(self._stub.UpdateRollout, request, timeout_s)
        return response

    def stop(self, *, reason: str, grace_s: float, timeout_s: float = 10.0) -> None:
        """Ask the job to stop; returns once the coordinator has taken note."""
        self._call(self._stub.Stop, jc.StopRequest(reason=reason, grace_s=grace_s), timeout_s)

    def resize(self, request: jc.ResizeRequest, *, timeout_s: float = 10.0) -> None:
        """Change the numbers of replicas; returns once the coordinator goes by them."""
        self._call(self._stub.Resize, request, timeout_s)

    def _call(self, method: Any, request: Any, timeout_s: float) -> Any:
        try:
            return method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            self._raise(error, f"within {timeout_s:g} s")

    def _raise(self, error: grpc.RpcError, within: str) -> NoReturn:
        """Tell a failed call as an error of ours."""
        code, details = error.code(), error.details()
        if code == grpc.StatusCode.UNAVAILABLE:
            raise UserError(
                f"no coordinator answers at {self._address}: the job is not running or not up yet"
            ) from error
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            raise DeadlineError(
                f"the coordinator at {self._address} did not answer {within} ({details})"
            ) from error
        if code == grpc.StatusCode.INVALID_ARGUMENT:
            raise UserError(details) from error
        raise TrimtabError(f"the coordinator at {self._address}: {code.name}: {details}") from error
