"""Awaits the coordinator's work unless something else decides: on the coordinator's loop, for `Coordinator`.

The watchers here have no deadline of their own: they end with the work that they stand beside.
"""

import asyncio
import math
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from trimtab.errors import OutOfMemoryError, UserError
from trimtab.roles.coordinator.actors import ActorLostError
from trimtab.roles.coordinator.membership import Members

T = TypeVar("T")


async def guarded(
    work: Coroutine[Any, Any, T],
    *,
    watchers: Iterable[Coroutine[Any, Any, None]],
    background: Iterable["asyncio.Task[None]"],
) -> T:
    """The result of `work`, or the error of whichever watcher or background task ends first.

    What is still under way of the work and the watchers is cancelled and over when this returns.
    """
    task = asyncio.ensure_future(work)
    beside = [asyncio.create_task(watcher) for watcher in watchers]
    try:
        done, _ = await asyncio.wait({task, *beside, *background}, return_when=asyncio.FIRST_COMPLETED)
        if task not in done:
            for other in done:
                other.result()
        return task.result()
    finally:
        leftovers = [t for t in (task, *beside) if not t.done()]
        for other in leftovers:
            other.cancel()
        await asyncio.gather(*leftovers, return_exceptions=True)


async def watch_failure(members: Members) -> None:
    """Raise UserError or OutOfMemoryError once a worker says that it cannot go on."""
    await members.wait_until(lambda: members.failure is not None, timeout_s=math.inf, what="nothing")
    assert members.failure is not None
    message, kind = members.failure
    raise UserError(message) if kind == "user" else OutOfMemoryError(message)


async def watch_actor(members: Members) -> None:
    """Raise ActorLostError once a rank is lost."""
    await members.actor_lost.wait()
    raise ActorLostError(members.actor_lost_reason)
