"""The keyed queue: what to look at next. One task a key at a time, and never a key twice in the queue.

    add -----------------> ready --(a worker is free)--> under way --(handler returned delay_s)--> waiting
    add_after(delay_s) --> waiting --(time)--> ready          |---(handler raised)--> waiting, ever longer
    add, while under way --> ready again as soon as the handler has returned

The handler is level-based: it looks at everything about its key, so that any number of adds in between are
one. Errors never leave the queue: they are counted, logged with the key and tried again, the pause doubling
up to `MAX_BACKOFF_S`. Runs on the operator's loop; `add` and `add_after` are called from that loop alone.
"""

import asyncio
import heapq
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from trimtab_operator.kube.errors import KubeError, NotLeadingError

logger = logging.getLogger(__name__)

Key = TypeVar("Key")

FIRST_BACKOFF_S: Final = 0.25
MAX_BACKOFF_S: Final = 60.0
HANDLER_TIMEOUT_S: Final = 120.0
"""Each request has a deadline of its own; this one only ends what no other does."""
CANCEL_S: Final = 5.0
WORKERS: Final = 64
"""Keys under way at a time: what they wait for is the API server, whose share in a burst grows with them."""


class RetryError(KubeError):
    """A handler's word that it wants to be called again, with backoff; it has logged why.

    `within_s`: at the latest after so long, as it has something else to do then.
    """

    def __init__(self, message: str, *, within_s: float | None = None) -> None:
        super().__init__(message)
        self.within_s = within_s


class KeyedQueue(Generic[Key]):
    """See above. `handle` returns after how many seconds it wants to be called again, or None."""

    def __init__(
        self,
        handle: Callable[[Key], Awaitable[float | None]],
        *,
        workers: int = WORKERS,
        clock: Callable[[], float] = time.monotonic,
        on_run: Callable[[float, bool], None] = lambda seconds, failed: None,
        name: Callable[[Key], str] = str,
    ) -> None:
        self._handle = handle
        self._workers = workers
        self._clock = clock
        self._on_run = on_run
        self._name = name
        self._ready: deque[Key] = deque()
        self._queued: set[Key] = set()
        self._ready_since: dict[Key, float] = {}
        self._under_way: dict[Key, float] = {}
        self._again: set[Key] = set()
        """Added while under way."""
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._sequence = 0
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Event()
        """Something is ready."""
        self._timer = asyncio.Event()
        """The heap's first element has changed."""
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        """Keys that are ready and wait for a worker."""
        return len(self._ready)

    @property
    def waiting(self) -> int:
        """Keys whose time has not come."""
        return len(self._due)

    @property
    def oldest_s(self) -> float:
        """How long the oldest piece of work has been ready or under way: a stuck queue shows here."""
        times = [*self._under_way.values(), *self._ready_since.values()]
        return self._clock() - min(times) if times else 0.0

    def add(self, key: Key) -> None:
        """Look at the key as soon as a worker is free."""
        self._due.pop(key, None)
        if key in self._under_way:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.append(key)
            self._ready_since[key] = self._clock()
            self._wake.set()

    def add_after(self, key: Key, delay_s: float) -> None:
        """Look at the key after a while; an earlier time that is set already stands."""
        if delay_s <= 0:
            self.add(key)
            return
        if key in self._queued or key in self._again:
            return
        due = self._clock() + delay_s
        if self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        self._sequence += 1
        heapq.heappush(self._heap, (due, self._sequence, key))
        if self._heap[0][2] == key:
            self._timer.set()

    async def run(self) -> None:
        """Work until cancelled; a handler that is under way then is cancelled too."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_time(), name="queue timer")
            for number in range(self._workers):
                group.create_task(self._work(), name=f"queue worker {number}")

    async def drain(self, timeout_s: float) -> None:
        """Begin nothing more, and let what is under way come to its end, for so long."""
        self._draining = True
        self._wake.set()
        async with asyncio.timeout(timeout_s):
            await self._idle.wait()

    async def _keep_time(self) -> None:
        while True:
            self._timer.clear()
            now = self._clock()
            while self._heap and self._heap[0][0] <= now:
                due, _, key = heapq.heappop(self._heap)
                if self._due.get(key) == due:
                    self.add(key)
            pause_s = self._heap[0][0] - now if self._heap else None
            try:
                async with asyncio.timeout(pause_s):
                    await self._timer.wait()
            except TimeoutError:
                continue

    async def _work(self) -> None:
        while not self._draining:
            if not self._ready:
                self._wake.clear()
                await self._wake.wait()
                continue
            key = self._ready.popleft()
            self._queued.discard(key)
            del self._ready_since[key]
            self._idle.clear()
            self._under_way[key] = begun = self._clock()
            delay_s, failed = await self._run(key)
            del self._under_way[key]
            if not self._under_way:
                self._idle.set()
            self._on_run(self._clock() - begun, failed)
            again = key in self._again
            self._again.discard(key)
            if again and not failed:
                self.add(key)
            elif delay_s is not None:
                self.add_after(key, delay_s)

    async def _run(self, key: Key) -> tuple[float | None, bool]:
        """Call the handler; when to call it again, and whether it failed."""
        task = asyncio.ensure_future(self._handle(key))
        try:
            await asyncio.wait({task}, timeout=HANDLER_TIMEOUT_S)
        finally:
            if not task.done():
                task.cancel()
        if not task.done():
            logger.error("%s: not done after %.0f s", self._name(key), HANDLER_TIMEOUT_S)
            await asyncio.wait({task}, timeout=CANCEL_S)
            return self._backoff(key), True
        error = asyncio.CancelledError("cancelled") if task.cancelled() else task.exception()
        if error is None:
            self._failures.pop(key, None)
            return task.result(), False
        if isinstance(error, NotLeadingError):
            return MAX_BACKOFF_S, True  # the process is about to end
        pause_s = self._backoff(key)
        if not isinstance(error, RetryError):
            logger.error("%s: failed", self._name(key), exc_info=error)
        elif error.within_s is not None:
            pause_s = min(pause_s, max(error.within_s, FIRST_BACKOFF_S))
        return pause_s, True

    def _backoff(self, key: Key) -> float:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause_s: float = min(FIRST_BACKOFF_S * 2.0 ** min(failures, 16), MAX_BACKOFF_S)
        return pause_s * random.uniform(0.8, 1.2)  # noqa: S311 -- spreads retries
