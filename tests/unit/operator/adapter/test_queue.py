import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from trimtab_operator.adapter import queue as module
from trimtab_operator.adapter.queue import KeyedQueue, RetryError


class Handler:
    """Records what it was called for; `gate` holds it up, `errors` are raised one a call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.under_way: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.errors: list[Exception] = []
        self.delays: list[float | None] = []

    async def __call__(self, key: str) -> float | None:
        assert key not in self.under_way, "one task a key at a time"
        self.calls.append(key)
        self.under_way.add(key)
        try:
            await self.gate.wait()
            if self.errors:
                raise self.errors.pop(0)
            return self.delays.pop(0) if self.delays else None
        finally:
            self.under_way.discard(key)


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
async def queue(handler: Handler) -> AsyncIterator[KeyedQueue[str]]:
    made = KeyedQueue(handler, workers=3)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 -- what is waited for raises no event
            await asyncio.sleep(0.001)


async def test_adds_before_the_handler_runs_are_one(queue, handler) -> None:
    for _ in range(5):
        queue.add("a")
    await _until(lambda: handler.calls)
    await asyncio.sleep(0.01)
    assert handler.calls == ["a"]


async def test_adds_while_the_key_is_under_way_are_one_more(queue, handler) -> None:
    handler.gate.clear()
    queue.add("a")
    await _until(lambda: handler.under_way)
    for _ in range(5):
        queue.add("a")
    handler.gate.set()
    await _until(lambda: len(handler.calls) == 2)
    await asyncio.sleep(0.01)
    assert handler.calls == ["a", "a"]


async def test_keys_run_side_by_side_as_far_as_there_are_workers(queue, handler) -> None:
    handler.gate.clear()
    for key in "abcde":
        queue.add(key)
    await _until(lambda: len(handler.under_way) == 3)
    assert len(queue) == 2
    handler.gate.set()
    await _until(lambda: sorted(handler.calls) == list("abcde"))


async def test_handler_names_when_it_wants_to_be_called_again(queue, handler) -> None:
    handler.delays = [0.02, None]
    queue.add("a")
    await _until(lambda: len(handler.calls) == 1 and queue.waiting == 1)
    await _until(lambda: len(handler.calls) == 2)
    await asyncio.sleep(0.05)
    assert len(handler.calls) == 2
    assert queue.waiting == 0


async def test_earlier_time_stands_and_an_add_comes_before_both(queue, handler) -> None:
    queue.add_after("a", 30)
    queue.add_after("a", 0.01)
    queue.add_after("a", 60)
    await _until(lambda: len(handler.calls) == 1)
    queue.add_after("b", 30)
    queue.add("b")
    await _until(lambda: handler.calls == ["a", "b"])
    assert queue.waiting == 0


async def test_error_is_tried_again_after_ever_longer_pauses(
    queue, handler, monkeypatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    backoff = queue._backoff
    monkeypatch.setattr(module, "FIRST_BACKOFF_S", 0.004)
    monkeypatch.setattr(queue, "_backoff", lambda key: pauses.append(backoff(key)) or pauses[-1])
    handler.errors = [KeyError("a bug"), RetryError("no server"), RetryError("no server")]
    with caplog.at_level(logging.ERROR):
        queue.add("a")
        await _until(lambda: len(handler.calls) == 4)
    assert pauses[0] < 0.005 < pauses[1] < pauses[2]
    assert [record.exc_info is not None for record in caplog.records] == [True], (
        "a RetryError has been logged"
    )
    handler.errors = [RetryError("no server")]
    queue.add("a")
    await _until(lambda: len(handler.calls) == 6)
    assert pauses[3] < 0.005, "a success starts the pauses over"


async def test_failed_key_is_looked_at_again_when_it_has_something_else_to_do(
    queue, handler, monkeypatch
) -> None:
    monkeypatch.setattr(module, "FIRST_BACKOFF_S", 0.001)
    monkeypatch.setattr(queue, "_backoff", lambda key: 60.0)
    handler.errors = [RetryError("a child is somebody else's", within_s=0.01)]
    queue.add("a")
    await _until(lambda: len(handler.calls) == 2)


async def test_one_failing_key_does_not_keep_others_back(queue, handler) -> None:
    handler.errors = [ValueError("bug")]
    queue.add("a")
    await _until(lambda: handler.calls == ["a"])
    queue.add("b")
    await _until(lambda: "b" in handler.calls)


async def test_handler_that_does_not_end_is_cancelled_and_tried_again(queue, handler, monkeypatch) -> None:
    monkeypatch.setattr(module, "HANDLER_TIMEOUT_S", 0.02)
    monkeypatch.setattr(module, "FIRST_BACKOFF_S", 0.001)
    handler.gate.clear()
    queue.add("a")
    await _until(lambda: len(handler.calls) >= 2)
    handler.gate.set()
    await _until(lambda: not handler.under_way)


async def test_oldest_work_shows_how_long_it_has_waited(handler) -> None:
    now = [100.0]
    made = KeyedQueue(handler, clock=lambda: now[0])
    assert made.oldest_s == 0
    made.add("a")
    now[0] = 130.0
    made.add("b")
    assert made.oldest_s == 30


async def test_runs_are_told_with_their_outcome(handler) -> None:
    told: list[bool] = []
    made = KeyedQueue(handler, on_run=lambda seconds, failed: told.append(failed))
    task = asyncio.create_task(made.run())
    handler.errors = [ValueError("bug")]
    made.add("a")
    await _until(lambda: told == [True])
    await _until(lambda: told == [True, False])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_drain_finishes_what_is_under_way_and_begins_nothing(queue, handler) -> None:
    handler.gate.clear()
    for key in "abcd":
        queue.add(key)
    await _until(lambda: len(handler.under_way) == 3)
    draining = asyncio.create_task(queue.drain(10))
    await asyncio.sleep(0.01)
    assert not draining.done()
    handler.gate.set()
    await draining
    await asyncio.sleep(0.01)
    assert sorted(handler.calls) == list("abc")
