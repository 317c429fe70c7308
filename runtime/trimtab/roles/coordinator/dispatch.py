"""Work shared over the replicas of a role: requests to rollouts, scorings to reward servers.

Runs on the coordinator's asyncio loop. A replica never holds more items than the capacity that it
registered with, and the least loaded one is served first, so a slow replica simply gets less.
A replica that cannot be reached (it has registered, and its socket is not there) is passed over for a moment,
and condemned when it has been so for as long as a silent one would be.
An item whose replica is lost goes back to the front of the queue and to another replica, however often
(how often a replica may be lost is the restart budget's concern); one that replicas answer with an error
fails after MAX_TRIES, and one that no message can carry fails at once. An item that stays out past its
deadline condemns its replica (`on_overdue`), not itself: that deadline lies beyond the one at which a
replica itself gives the item up. Every submission has a wire id of its own, so that a late answer to an
earlier submission is never taken for this one.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from trimtab.comm.experience import ExperienceHub, FrameError, Message
from trimtab.errors import TrimtabError, UserError, WorkerLostError
from trimtab.roles.coordinator.membership import Member, Members

log = logging.getLogger(__name__)

MAX_TRIES = 3
LOOK_EVERY_S = 1.0
"""Between two looks for items that are out past their deadline."""
SEND_TIMEOUT_S = 1.0
"""A replica's socket is there a moment after it has registered, and its queue has room."""
PASSED_OVER_S = 1.0
"""How long the others come first after a send that failed."""


@dataclass
class Answer:
    """What came back for one item, and from whom."""

    worker: str
    message: Message


@dataclass
class Counts:
    """What happened since the last `take_counts`."""

    submitted: int = 0
    retried: int = 0
    out_of_memory: int = 0


@dataclass
class _Item:
    wire_id: str
    message: Message
    timeout_s: float
    future: "asyncio.Future[Answer]"
    num_failures: int = 0
    worker: str = ""
    sent_at: float = 0.0


@dataclass
class _Load:
    member: Member
    out: dict[str, _Item] = field(default_factory=dict)
    unreachable_since: float | None = None
    passed_over_until: float = 0.0

    @property
    def ratio(self) -> float:
        return len(self.out) / max(1, self.member.register.capacity)


class WorkPool:
    """The queue of one role. Start with `run()` as a task; `answer()` is fed by the hub's reader."""

    def __init__(
        self,
        role: str,
        members: Members,
        hub: ExperienceHub,
        *,
        instance: str,
        eligible: Callable[[Member], bool],
        on_overdue: Callable[[Member, str], None],
        unreachable_s: float,
    ) -> None:
        self.role = role
        self._members = members
        self._hub = hub
        self._instance = instance
        self._eligible = eligible
        self._on_overdue = on_overdue
        self._unreachable_s = unreachable_s
        self._numbers = itertools.count(1)
        self._queue: deque[_Item] = deque()
        self._loads: dict[str, _Load] = {}
        self._wake = asyncio.Event()
        self._counts = Counts()
        members.on_join.append(self._joined)
        members.on_leave.append(self._left)

    def submit(
        self, kind: str, meta: dict[str, object], arrays: dict[str, NDArray[Any]], *, timeout_s: float
    ) -> "asyncio.Future[Answer]":
        """Queue one item. The future gets the answer, or WorkerLostError after MAX_TRIES replicas failed."""
        wire_id = f"{meta['episode_id']}#{self._instance}-{next(self._numbers)}"
        message = Message(kind, {**meta, "episode_id": wire_id}, arrays)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._counts.submitted += 1
        self._queue.append(_Item(wire_id, message, timeout_s, future))
        self._wake.set()
        return future

    def answer(self, worker: str, message: Message) -> None:
        """Take a replica's answer; one that nobody waits for any more is dropped."""
        item = self._settle(worker, message)
        if item is not None and not item.future.done():
            item.future.set_result(Answer(worker, message))

    def failed(self, worker: str, message: Message) -> None:
        """A replica could not do an item: another one gets it, a bounded number of times.

        An item that is wrong in itself (`kind` "invalid" or "user") fails at once.
        """
        item = self._settle(worker, message)
        if item is None or item.future.done():
            return
        error, kind = str(message.meta["error"]), message.meta["kind"]
        self._counts.out_of_memory += kind == "oom"
        if kind in ("invalid", "user"):
            item.future.set_exception(UserError(f"{worker}: {error}"))
        else:
            self._again(item, error)

    def take_counts(self) -> Counts:
        """What happened since the last call."""
        counts, self._counts = self._counts, Counts()
        return counts

    def cancel_all(self) -> None:
        """Forget everything queued and out; late answers are dropped."""
        items = [*self._queue, *(item for load in self._loads.values() for item in load.out.values())]
        self._queue.clear()
        for load in self._loads.values():
            load.out.clear()
        for item in items:
            item.future.cancel()

    def outstanding(self) -> dict[str, int]:
        """Items out per replica: who is waited for."""
        return {name: len(load.out) for name, load in self._loads.items() if load.out}

    async def run(self) -> None:
        """Hand out items until cancelled."""
        looked_at = time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):  # not wait_for: it can swallow a cancellation
                    await self._wake.wait()
            if time.monotonic() - looked_at >= LOOK_EVERY_S:  # also while the others are busy
                looked_at = time.monotonic()
                self._condemn_overdue()
            self._wake.clear()
            await self._hand_out()

    def wake(self) -> None:
        """Eligibility may have changed."""
        self._wake.set()

    async def _hand_out(self) -> None:
        while self._queue:
            now = time.monotonic()
            free = [
                load
                for load in self._loads.values()
                if len(load.out) < load.member.register.capacity
                and load.passed_over_until <= now
                and self._eligible(load.member)
            ]
            if not free:
                return
            load = min(free, key=lambda candidate: (candidate.ratio, candidate.member.key.replica))
            item = self._queue.popleft()
            if item.future.done():
                continue
            item.worker = str(load.member.key)
            item.sent_at = time.monotonic()
            load.out[item.wire_id] = item
            try:
                await self._hub.send(item.worker, item.message, timeout_s=SEND_TIMEOUT_S)
                load.unreachable_since = None
            except FrameError as error:  # whoever gets it, it cannot be sent
                load.out.pop(item.wire_id, None)
                if not item.future.done():
                    name = item.wire_id.split("#")[0]
                    item.future.set_exception(UserError(f"{self.role}: item {name} cannot be sent: {error}"))
            except TrimtabError as error:
                log.warning("%s", error)
                # Where the replica was lost meanwhile, `_left` has queued the item already.
                if load.out.pop(item.wire_id, None) is not None:
                    self._again(item)
                    self._pass_over(load, str(error))

    def _pass_over(self, load: _Load, error: str) -> None:
        now = time.monotonic()
        load.passed_over_until = now + PASSED_OVER_S
        if load.unreachable_since is None:
            load.unreachable_since = now
        elif now - load.unreachable_since > self._unreachable_s:
            self._on_overdue(load.member, error)

    def _again(self, item: _Item, error: str | None = None) -> None:
        """Queue it once more; `error` is a replica's own word that it could not."""
        if item.future.done():
            return
        item.num_failures += error is not None
        if item.num_failures >= MAX_TRIES:
            name = item.wire_id.split("#")[0]
            item.future.set_exception(
                WorkerLostError(
                    f"{self.role}: item {name} failed {item.num_failures} times, "
                    f"last on {item.worker}: {error}"
                )
            )
            return
        self._counts.retried += 1
        self._queue.appendleft(item)
        self._wake.set()

    def _settle(self, worker: str, message: Message) -> _Item | None:
        load = self._loads.get(worker)
        item = load.out.pop(str(message.meta.get("episode_id")), None) if load else None
        self._wake.set()
        return item

    def _condemn_overdue(self) -> None:
        now = time.monotonic()
        for load in list(self._loads.values()):
            late = [item for item in load.out.values() if now - item.sent_at > item.timeout_s]
            if late:
                worst = max(late, key=lambda item: now - item.sent_at)
                reason = (
                    f"{len(late)} item(s) out past their deadline of {worst.timeout_s:.0f} s, "
                    f"the oldest {worst.wire_id.split('#')[0]} for {now - worst.sent_at:.0f} s"
                )
                self._on_overdue(load.member, reason)

    def _joined(self, member: Member) -> None:
        if member.key.role != self.role:
            return
        name = str(member.key)
        previous = self._loads.get(name)
        self._loads[name] = _Load(member, previous.out if previous else {})
        self._wake.set()

    def _left(self, member: Member, reason: str) -> None:
        if member.key.role != self.role:
            return
        load = self._loads.pop(str(member.key), None)
        if load is None:
            return
        items = list(load.out.values())
        load.out.clear()
        for item in reversed(items):
            self._again(item)
