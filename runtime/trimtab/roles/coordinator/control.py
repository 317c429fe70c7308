"""JobControl on the coordinator: status, watch, checkpoint now, change the sampling, resize, stop.

Implements `trimtab.comm.control.JobControlHandler`; runs on the coordinator's loop. It only takes notes:
the training loop looks at them between two steps, and `StopWish.deadline_s` also during one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trimtab.api.conditions import Phase
from trimtab.errors import DeadlineError, UserError
from trimtab.roles.coordinator.membership import Sizes
from trimtab.roles.coordinator.status import ENDED, StatusBoard
from trimtab.v1 import job_control_pb2 as job_pb

WATCH_INTERVAL_S = 0.25
T = TypeVar("T")


class StopNow(Exception):  # noqa: N818 - a signal between tasks, not an error
    """The grace of a stop, or of the actor's leave, is over: what is under way is given up."""


@dataclass
class Wishes:
    """What was asked for from outside; read by the training loop."""

    stop_reason: str | None = None
    stop_deadline: float | None = None
    """Monotonic time by which the running step is to be over."""
    leave_reason: str | None = None
    """Why the actor's pods are about to be ended: it is to leave with a checkpoint, and come back."""
    leave_deadline: float | None = None
    leave_incarnation: int = -1
    """Of the actor that is to leave."""
    checkpoints: list["asyncio.Future[tuple[str, int]]"] = field(default_factory=list)
    rollout_changes: dict[str, float] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self, reason: str, grace_s: float) -> None:
        """Ask to stop; repeating it can only shorten the grace."""
        deadline = time.monotonic() + grace_s
        self.stop_reason = self.stop_reason or reason
        self.stop_deadline = deadline if self.stop_deadline is None else min(deadline, self.stop_deadline)
        self.changed.set()

    def leave(self, reason: str, grace_s: float, *, incarnation: int) -> None:
        """The actor has to leave; what is said first counts, of each incarnation."""
        if self.leave_reason is None or incarnation > self.leave_incarnation:
            self.leave_reason, self.leave_deadline = reason, time.monotonic() + grace_s
            self.leave_incarnation = incarnation
            self.changed.set()

    def actor_left(self) -> None:
        """The leave has been taken."""
        self.leave_reason = self.leave_deadline = None

    def _grace_left_s(self) -> float | None:
        deadlines = [d for d in (self.stop_deadline, self.leave_deadline) if d is not None]
        return min(deadlines) - time.monotonic() if deadlines else None

    async def past_grace(self) -> None:
        """Return when a stop's or a leave's grace is over."""
        while (left := self._grace_left_s()) is None or left > 0:
            self.changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self.changed.wait()
            except TimeoutError:
                continue

    async def within_grace(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`; raises StopNow (and cancels it) when a grace is over before it is done."""
        task, watch = asyncio.ensure_future(work), asyncio.create_task(self.past_grace())
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise StopNow
            return task.result()
        finally:
            for other in (task, watch):
                other.cancel()
            await asyncio.gather(task, watch, return_exceptions=True)


class JobControl:
    """The handler."""

    def __init__(self, board: StatusBoard, wishes: Wishes, *, max_response_tokens: int) -> None:
        self._max_response_tokens = max_response_tokens
        self._board = board
        self._wishes = wishes
        self.take_sizes: Callable[[Sizes], Awaitable[None]] | None = None
        """What a resize is passed on to; set by the coordinator's main."""

    async def get_status(self) -> job_pb.JobStatus:
        """See JobControlHandler."""
        return self._board.render()

    async def watch(self) -> AsyncIterator[job_pb.JobStatus]:
        """See JobControlHandler."""
        last: job_pb.JobStatus | None = None
        while True:
            status = self._board.render()
            if status != last:
                yield status
                last = status
            if self._board.phase in ENDED:
                return
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def checkpoint(self, request: job_pb.CheckpointRequest) -> job_pb.CheckpointResponse:
        """See JobControlHandler."""
        if self._board.phase in ENDED:
            raise UserError(
                f"the job is over ({self._board.phase}); its last checkpoint is {self._board.checkpoint[0]}"
            )
        future: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        self._wishes.checkpoints.append(future)
        self._wishes.changed.set()
        try:
            async with asyncio.timeout(request.timeout_s or None):
                path, step = await future
        except TimeoutError:
            raise DeadlineError(
                f"no checkpoint within {request.timeout_s:g} s: the job is {self._board.activity} "
                f"(step {self._board.step + 1}), and saves after the step"
            ) from None
        return job_pb.CheckpointResponse(path=path, step=step)

    async def update_rollout(self, request: job_pb.UpdateRolloutRequest) -> job_pb.UpdateRolloutResponse:
        """See JobControlHandler."""
        changes = {f.name: float(getattr(request, f.name)) for f, _ in request.ListFields()}
        if request.HasField("temperature") and not 0 < request.temperature <= 10:
            raise UserError(f"temperature: {request.temperature:g}; allowed: above 0, at most 10")
        if request.HasField("top_p") and not 0 < request.top_p <= 1:
            raise UserError(f"top_p: {request.top_p:g}; allowed: above 0, at most 1")
        if request.HasField("top_k") and request.top_k < 0:
            raise UserError(f"top_k: {request.top_k}; allowed: 0 (all) and above")
        limit = self._max_response_tokens
        if request.HasField("max_response_tokens") and not 1 <= request.max_response_tokens <= limit:
            raise UserError(
                f"max_response_tokens: {request.max_response_tokens}; allowed: 1 to {limit}, "
                "the job's spec.training.maxResponseTokens, for which the engines were sized"
            )
        self._wishes.rollout_changes.update(changes)
        return job_pb.UpdateRolloutResponse(effective_step=self._board.step + 2)

    async def stop(self, request: job_pb.StopRequest) -> job_pb.StopResponse:
        """See JobControlHandler."""
        self.request_stop(request.reason or "asked to stop", max(0.0, request.grace_s))
        return job_pb.StopResponse()

    async def resize(self, request: job_pb.ResizeRequest) -> job_pb.ResizeResponse:
        """See JobControlHandler."""
        sizes = {
            "rollout": (request.rollout_replicas, request.min_rollout_replicas),
            "reward": (request.reward_replicas, request.min_reward_replicas),
        }
        for role, (replicas, least) in sizes.items():
            if not 1 <= least <= replicas:
                raise UserError(
                    f"{role}: {replicas} replicas, at least {least}; allowed: 1 and more, at least 1 and no "
                    "more than the replicas"
                )
        if self._board.phase not in ENDED:
            assert self.take_sizes is not None
            await self.take_sizes(
                Sizes(
                    rollouts=request.rollout_replicas,
                    min_rollouts=request.min_rollout_replicas,
                    rewards=request.reward_replicas,
                    min_rewards=request.min_reward_replicas,
                )
            )
        return job_pb.ResizeResponse()

    def request_stop(self, reason: str, grace_s: float) -> None:
        """Note the wish, and show it; also what a signal does."""
        self._wishes.stop(reason, grace_s)
        if self._board.phase not in ENDED:
            self._board.phase = Phase.STOPPING
