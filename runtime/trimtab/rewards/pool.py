"""A pool of reward workers: responses in, scores or named errors out, whatever the functions do.

Used by the reward role on its event loop. A worker that failed is replaced in the background; the
response that it failed on is not tried again.
"""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from trimtab.errors import TrimtabError
from trimtab.rewards.calls import RewardCall, ScoreResult
from trimtab.rewards.process import RewardProcess

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
CGROUP_LIMIT_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_limit_per_worker(num_workers: int) -> int:
    """An equal share for each worker and one for the role: of the container's limit, or of the machine."""
    available: int = psutil.virtual_memory().total
    for file in CGROUP_LIMIT_FILES:
        try:
            text = Path(file).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            available = min(available, int(text))
    return available // (num_workers + 1)


class RewardPool:
    """`start`, then `score` from any number of tasks, then `close`."""

    def __init__(
        self,
        lists: Mapping[str, Sequence[RewardCall]],
        *,
        num_workers: int,
        code_paths: Sequence[str | os.PathLike[str]] = (),
        memory_limit_bytes: int | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """`memory_limit_bytes` is per worker; None: an equal share of what there is."""
        self._workers = [
            RewardProcess(
                lists,
                code_paths=[os.fspath(path) for path in code_paths],
                memory_limit_bytes=memory_limit_bytes or memory_limit_per_worker(num_workers),
                start_timeout_s=start_timeout_s,
            )
            for _ in range(num_workers)
        ]
        self._idle: asyncio.Queue[RewardProcess] = asyncio.Queue()
        self._restarts: set[asyncio.Task[None]] = set()
        self.num_restarts = 0
        """Workers replaced so far."""

    async def start(self) -> None:
        """Start every worker. Raises `UserError` naming each function that cannot be used."""
        outcomes = await asyncio.gather(*(w.start() for w in self._workers), return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            await self.close()
            raise failures[0]
        for worker in self._workers:
            self._idle.put_nowait(worker)

    async def score(
        self, list_name: str, *, prompt: str, response: str, fields: Mapping[str, Any]
    ) -> ScoreResult:
        """Score one response when a worker is free; bounded by the deadlines of those before it.

        Raises only where no worker can be started any more.
        """
        worker = await self._idle.get()
        try:
            if (
                not worker.alive
            ):  # idle, it died or could not be replaced: this time the error is the caller's
                await worker.start()
            return await worker.score(list_name, prompt=prompt, response=response, fields=fields)
        finally:
            self._return(worker)

    async def close(self) -> None:
        """Kill every worker. Tasks still in `score` get an error."""
        for task in self._restarts:
            task.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)
        await asyncio.gather(*(worker.kill() for worker in self._workers))

    def _return(self, worker: RewardProcess) -> None:
        if worker.alive:
            self._idle.put_nowait(worker)
            return
        task = asyncio.get_running_loop().create_task(self._restart(worker))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def _restart(self, worker: RewardProcess) -> None:
        self.num_restarts += 1
        try:
            await worker.start()
        except (TrimtabError, OSError) as error:
            logger.error("a reward worker could not be replaced: %s", error)
        finally:
            self._idle.put_nowait(worker)
