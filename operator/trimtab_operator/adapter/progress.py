"""What each job's coordinator says over gRPC, and what it is told: one channel a running coordinator.

    coordinator's pod runs --> link: once somebody listens there dial its IP over mTLS; ask every POLL_S
    it takes steps, and nobody is missing --> leave the next question with it, to be answered once there is
                                 something new: numbers after NUMBERS_S, else within PATIENCE_S
    a pod of the job changed --> take back a question that was left there, and ask at once
    another pod, another address, a certificate that runs out --> a new channel
    the pod has ended --> the channel is closed, the last answer stays; the job is gone --> that goes too

The times of the regular questions are spread evenly over POLL_S by the job's uid, so that a thousand jobs
never are a thousand questions at once. An answer that says nothing new but numbers wakes the queue once a
minute, as often as those are written; one that says nothing new at all, never. A coordinator that cannot be
reached is no error of the operator: its last answer grows old, and `reconcile` sees how old. While a question
is left with a coordinator its connection is pinged, so that one that is gone, or whose process stands still,
is noticed within GONE_S.

Runs on the operator's loop. grpc is known here alone.
"""

import asyncio
import contextlib
import hashlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import grpc
import grpc.aio

from trimtab.api.conditions import Phase
from trimtab.v1 import job_control_pb2 as pb
from trimtab.v1 import job_control_pb2_grpc as rpc
from trimtab_operator.adapter.trim import MAX_WORDS, KnownPod
from trimtab_operator.certs import COORDINATOR, JobCredentials, needs_rotation
from trimtab_operator.constants import CONTROL_PORT
from trimtab_operator.kube.errors import KubeError
from trimtab_operator.model.observed import Progress, RestartWish

logger = logging.getLogger(__name__)

POLL_S: Final = 10.0
CALL_TIMEOUT_S: Final = 5.0
PATIENCE_S: Final = (180.0, 300.0)
"""For how long a question is left with a coordinator that has nothing new to say, as in the middle of a long
step: a thousand of them cost next to nothing. Some time in between, so that they do not end together."""
PING_S: Final = 60.0
PING_TIMEOUT_S: Final = 20.0
GONE_S: Final = PING_S + PING_TIMEOUT_S
"""Until it is noticed that a coordinator is gone which a question was left with."""
NOW_S: Final = 2.0
"""How long a decision waits for the newest numbers."""
SOON_S: Final = 0.2
"""Pods change several at a time: one question is enough."""
NUMBERS_S: Final = 60.0
"""An answer that says nothing new but numbers wakes the queue as often as those are written."""
MARGIN_S: Final = 1.0
"""Then they are due for sure when they come."""
ANSWER_BYTES: Final = 1024 * 1024
_OPTIONS: Final = (
    ("grpc.ssl_target_name_override", COORDINATOR),
    ("grpc.max_receive_message_length", ANSWER_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 10_000),
    # While a question is there. Without the third the second means nothing, and it is a minute.
    ("grpc.keepalive_time_ms", round(PING_S * 1000)),
    ("grpc.keepalive_timeout_ms", round(PING_TIMEOUT_S * 1000)),
    ("grpc.http2.ping_timeout_ms", round(PING_TIMEOUT_S * 1000)),
    ("grpc.http2.max_pings_without_data", 0),  # any number
)


_StatusCall: TypeAlias = "grpc.aio.UnaryUnaryCall[pb.GetStatusRequest, pb.JobStatus]"


class CoordinatorError(KubeError):
    """A coordinator could not be told something now."""


class Coordinators:
    """The links to all coordinators. `changed(uid)` is called when one says something new."""

    def __init__(
        self,
        *,
        changed: Callable[[str], None],
        on_poll: Callable[[str], None] = lambda code: None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._changed = changed
        self._on_poll = on_poll
        self._clock = clock
        self._now = now
        self._links: dict[str, _Link] = {}

    def follow(self, uid: str, pod: KnownPod, credentials: Callable[[], JobCredentials]) -> None:
        """Poll this coordinator of the job from now on; another one of it no more."""
        link = self._links.get(uid)
        if link is not None and link.pod_uid == pod.pod.uid and link.address == pod.address:
            return
        if link is not None:
            link.close()
        self._links[uid] = _Link(
            pod,
            credentials,
            phase=_phase(uid),
            told=lambda: self._changed(uid),
            on_poll=self._on_poll,
            clock=self._clock,
            now=self._now,
        )

    def drop(self, uid: str) -> None:
        """Poll the job no longer."""
        link = self._links.pop(uid, None)
        if link is not None:
            link.close()

    def rest(self, uid: str) -> None:
        """The coordinator's pod has ended: ask no more, and keep what it last said."""
        link = self._links.get(uid)
        if link is not None:
            link.close()

    def latest(self, uid: str) -> Progress | None:
        """What its coordinator last said."""
        link = self._links.get(uid)
        return None if link is None else link.latest

    def ask_soon(self, uid: str) -> None:
        """Something has changed about the job."""
        link = self._links.get(uid)
        if link is not None:
            link.wake.set()

    async def ask_now(self, uid: str) -> None:
        """Have the coordinator asked, and wait until it has answered or cannot: NOW_S at most."""
        link = self._links.get(uid)
        if link is not None:
            await link.ask_now()

    async def stop(self, uid: str, *, reason: str, grace_s: float) -> None:
        """JobControl.Stop; CoordinatorError where it was not heard."""
        await self._link(uid).tell(lambda stub: stub.Stop(pb.StopRequest(reason=reason, grace_s=grace_s)))
        self.ask_soon(uid)

    async def resize(
        self, uid: str, *, rollouts: int, min_rollouts: int, rewards: int, min_rewards: int
    ) -> None:
        """JobControl.Resize; CoordinatorError where it was not heard."""
        request = pb.ResizeRequest(
            rollout_replicas=rollouts,
            min_rollout_replicas=min_rollouts,
            reward_replicas=rewards,
            min_reward_replicas=min_rewards,
        )
        await self._link(uid).tell(lambda stub: stub.Resize(request))

    async def close(self) -> None:
        """Close every channel."""
        links = list(self._links.values())
        self._links.clear()
        for link in links:
            link.close()
        await asyncio.gather(*(link.ended() for link in links))

    def _link(self, uid: str) -> "_Link":
        link = self._links.get(uid)
        if link is None:
            raise CoordinatorError("the coordinator does not run")
        return link


class _Link:
    """One coordinator's pod."""

    def __init__(
        self,
        pod: KnownPod,
        credentials: Callable[[], JobCredentials],
        *,
        phase: float,
        told: Callable[[], None],
        on_poll: Callable[[str], None],
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self.pod_uid = pod.pod.uid
        self.address = pod.address
        self.wake = asyncio.Event()
        self._answer: Progress | None = None
        self._mark = ""
        """Of the last answer."""
        self._left_at: datetime | None = None
        """When the question was asked that is left with the coordinator now."""
        self._surely_there: datetime | None = None
        self._incarnation = pod.pod.incarnation
        self._credentials = credentials
        self._phase = phase
        self._told = told
        self._on_poll = on_poll
        self._clock = clock
        self._now = now
        self._told_last: Progress | None = None
        self._told_at = 0.0
        self._hurries = True
        """Whether the next question is to be answered at once."""
        self._asked = asyncio.Event()
        """A question was answered, or cannot be."""
        self._untold = False
        """Whether numbers have changed since the queue was last woken."""
        self._channel: grpc.aio.Channel | None = None
        self._stub: rpc.JobControlStub | None = None
        self._valid_until = now()
        self._closing: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run(), name=f"progress {pod.pod.name}")

    @property
    def latest(self) -> Progress | None:
        """The last answer, and until when the coordinator is known to have been there since."""
        if self._answer is None:
            return None
        return replace(self._answer, surely_there=self._there())

    def _there(self) -> datetime | None:
        """A question that is left with a coordinator fails within GONE_S after that is gone."""
        if self._left_at is None:
            return self._surely_there
        return max(self._left_at, self._now() - timedelta(seconds=GONE_S))

    def close(self) -> None:
        """End the task and the channel, in the background."""
        if self._closing is None:
            self._task.cancel()
            self._closing = asyncio.create_task(self._close_channel())

    async def ended(self) -> None:
        """Wait until `close` has done its work."""
        waiting = [task for task in (self._task, self._closing) if task is not None]
        await asyncio.wait(waiting, timeout=CALL_TIMEOUT_S)

    async def ask_now(self) -> None:
        """Wait for an answer to a question that is asked from now on, or until there can be none."""
        if self._closing is not None:
            return
        self._asked.clear()
        self.wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NOW_S):
                await self._asked.wait()

    async def tell(
        self, send: "Callable[[rpc.JobControlStub], grpc.aio.UnaryUnaryCall[object, object]]"
    ) -> None:
        """Make one call; CoordinatorError names what went wrong."""
        stub = await self._connected()
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await send(stub)
        except grpc.aio.AioRpcError as error:
            raise CoordinatorError(f"the coordinator at {self.address}: {_words(error)}") from error
        except TimeoutError as error:
            raise CoordinatorError(f"the coordinator at {self.address} did not answer in time") from error

    async def _run(self) -> None:
        while True:
            begun = self._clock()
            await self._ask()
            waited = self._clock() - begun >= POLL_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.0 if waited else self._pause_s()):
                    await self.wake.wait()
            if self.wake.is_set():
                self._hurries = True
                await asyncio.sleep(SOON_S)
                self.wake.clear()

    def _pause_s(self) -> float:
        """Until this job's turn within the next interval, give or take a little."""
        into_s = (self._clock() - self._phase * POLL_S) % POLL_S
        jitter_s = random.uniform(0.0, POLL_S / 20)  # noqa: S311 -- spreads the questions
        return POLL_S - into_s + jitter_s

    async def _ask(self) -> None:
        if self._stub is None and not await self._listens():
            self._on_poll(grpc.StatusCode.UNAVAILABLE.name)
            self._asked.set()
            return
        stub = await self._connected()
        wait_s = random.uniform(*PATIENCE_S) if self._may_wait() else 0.0  # noqa: S311 -- spreads the questions
        request = pb.GetStatusRequest(mark=self._mark, wait_s=wait_s, numbers_s=NUMBERS_S + MARGIN_S)
        call = stub.GetStatus(request, timeout=wait_s + CALL_TIMEOUT_S)
        try:
            answer = await self._leave(call) if wait_s else await call
        except grpc.aio.AioRpcError as error:
            self._hurries = True
            self._asked.set()
            self._on_poll(error.code().name)
            logger.debug("the coordinator at %s: %s", self.address, _words(error))
            return
        if answer is not None:
            self._hurries = False
            self._on_poll("OK")
            self._take(answer)
            self._asked.set()

    def _may_wait(self) -> bool:
        """Whether the coordinator takes steps with everybody there: else it is asked often how it goes on."""
        last = self._answer
        return not self._hurries and last is not None and last.phase == Phase.RUNNING and not last.missing

    async def _leave(self, call: "_StatusCall") -> pb.JobStatus | None:
        """The answer, whenever it comes; None where the question was taken back: something has happened."""
        self._left_at = self._now()
        answered, woken = asyncio.ensure_future(call), asyncio.create_task(self.wake.wait())
        try:
            await asyncio.wait({answered, woken}, return_when=asyncio.FIRST_COMPLETED)
            return answered.result() if answered.done() else None
        finally:
            self._surely_there, self._left_at = self._there(), None
            for task in (answered, woken):
                task.cancel()
            await asyncio.gather(answered, woken, return_exceptions=True)

    def _take(self, answer: pb.JobStatus) -> None:
        before, self._mark = self._answer, answer.mark
        self._answer = latest = read_status(answer, self._incarnation, self._now())
        same = before is not None and replace(before, received=latest.received) == latest
        news, at = _essence(latest), self._clock()
        self._untold = self._untold or not same
        if news != self._told_last or (self._untold and at - self._told_at >= NUMBERS_S):
            self._told_last, self._told_at, self._untold = news, at, False
            self._told()

    async def _listens(self) -> bool:
        """Whether anybody listens there yet: a channel that only tries costs much more to find that out."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                _, writer = await asyncio.open_connection(self.address, CONTROL_PORT)
        except (OSError, TimeoutError) as error:
            logger.debug("the coordinator at %s: %s", self.address, str(error) or type(error).__name__)
            return False
        writer.close()
        return True

    async def _connected(self) -> rpc.JobControlStub:
        stub = self._stub
        if stub is None or needs_rotation(self._valid_until, self._now()):
            before, stub = self._channel, self._dial()
            if before is not None:
                # A call of the other task may be under way there: cut off, it would end that task.
                self.wake.set()
                await before.close(grace=CALL_TIMEOUT_S)
        return stub

    def _dial(self) -> rpc.JobControlStub:
        pems = self._credentials().operator_pems(self._now())
        self._valid_until = pems.not_after
        self._channel = grpc.aio.secure_channel(
            f"{_bracketed(self.address)}:{CONTROL_PORT}",
            grpc.ssl_channel_credentials(
                root_certificates=pems.ca, private_key=pems.key, certificate_chain=pems.certificate
            ),
            options=_OPTIONS,
        )
        self._stub = rpc.JobControlStub(self._channel)  # type: ignore[no-untyped-call]
        return self._stub

    async def _close_channel(self) -> None:
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close(grace=None)


def read_status(answer: pb.JobStatus, incarnation: int | None, received: datetime) -> Progress:
    """A coordinator's answer as the model has it; texts no longer than a status takes."""
    return Progress(
        attempt=answer.attempt,
        incarnation=incarnation,
        phase=answer.phase,
        activity=answer.activity[:MAX_WORDS],
        step=answer.step,
        total_steps=answer.total_steps,
        epoch=answer.epoch,
        metrics=dict(answer.metrics),
        not_finite=tuple(answer.not_finite),
        ready={role.role: role.ready for role in answer.roles},
        desired={role.role: role.desired for role in answer.roles},
        minimum={role.role: role.min_desired for role in answer.roles},
        missing=", ".join(answer.missing)[:MAX_WORDS],
        checkpoint_step=answer.checkpoint_step if answer.checkpoint_path else -1,
        checkpoint_path=answer.checkpoint_path[:MAX_WORDS],
        restart_wishes=tuple(
            RestartWish(
                role=wish.worker.role,
                replica=wish.worker.replica,
                incarnation=wish.worker.incarnation,
                reason=wish.reason,
            )
            for wish in answer.restart_requests
        ),
        reason=answer.reason,
        message=answer.message[:MAX_WORDS],
        received=received,
    )


def _essence(progress: Progress) -> Progress:
    """Without what changes all the time and is written once a minute."""
    return replace(
        progress,
        activity="",
        step=min(progress.step, 1),
        epoch=0.0,
        metrics={},
        received=datetime.min,
    )


def _phase(uid: str) -> float:
    """A fixed place of this job within [0, 1)."""
    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4], "big") / 2**32


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _words(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details() or ''}".rstrip(": ")
