"""JobControl on the coordinator: status, watch, checkpoint now, change the sampling, stop.

Implements `trimtab.comm.control.JobControlHandler`; runs on the coordinator's loop. It only takes notes:
the training loop looks at them between two steps, and `StopWish.deadline_s` also during one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trimtab.errors import DeadlineError, UserError
from trimtab.roles.coordinator.status import ENDED, Phase, StatusBoard
from trimtab.v1 import job_control_pb2 as job_pb

WATCH_INTERVAL_S = 0.25
T = TypeVar("T")


class StopNow(Exception):  # noqa: N818 - a signal between tasks, not an error
    """The grace of a stop is over: what is under way is given up."""


@dataclass
class Wishes:
    """What was asked for from outside; read by the training loop."""

    stop_reason: str | None = None
    stop_deadline: float | None = None
    """Monotonic time by which the running step is to be over."""
    checkpoints: list["asyncio.Future[tuple[str, int]]"] = field(default_factory=list)
    rollout_changes: dict[str, float] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self, reason: str, grace_s: float) -> None:
        """Ask to stop; repeating it can only shorten the grace."""
        deadline = time.monotonic() + grace_s
        self.stop_reason = self.stop_reason or reason
        self.stop_deadline = deadline if self.stop_deadline is None else min(deadline, self.stop_deadline)
        self.changed.set()

    async def past_grace(self) -> None:
        """Return when a stop's grace is over."""
        while self.stop_deadline is None or time.monotonic() < self.stop_deadline:
            left = None if self.stop_deadline is None else self.stop_deadline - time.monotonic()
            self.changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self.changed.wait()
            except TimeoutError:
                continue

    async def within_grace(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`; raises StopNow (and cancels it) when a stop's grace is over before it is done."""
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

    def request_stop(self, reason: str, grace_s: float) -> None:
        """Note the wish, and show it; also what a signal does."""
        self._wishes.stop(reason, grace_s)
        if self._board.phase not in ENDED:
            self._board.phase = Phase.STOPPING
