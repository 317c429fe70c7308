"""The reward role: responses arrive as text, scores go back, one replica being one such process.

Started by `trimtab.roles.worker`. The main thread runs the asyncio loop; the session has a thread of its
own; the functions run in the worker processes of `trimtab.rewards`. It takes no commands: its work comes
on the experience plane as `score` and goes back as `scores`, also to a coordinator that was started
again meanwhile. Imports neither torch nor transformers.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from trimtab.api import ResolvedJob
from trimtab.comm.control import WorkerSession
from trimtab.comm.experience import AsyncExperienceLink, Message
from trimtab.errors import TrimtabError
from trimtab.observability.prometheus import RoleGauges, start_metrics_server
from trimtab.rewards import RewardCall, RewardPool, ScoreResult
from trimtab.roles.environment import WorkerEnvironment
from trimtab.roles.registration import curve_of, new_session, registration, worker_key
from trimtab.v1 import control_pb2 as pb

logger = logging.getLogger(__name__)

SEND_TIMEOUT_S = 60.0


def run(env: WorkerEnvironment, job: ResolvedJob) -> int:
    """Score until the coordinator says to leave; returns the exit code it asked for."""
    return asyncio.run(_serve(env, job))


def reward_lists(job: ResolvedJob) -> dict[str, list[RewardCall]]:
    """The job's reward functions for training, and those for validation where they differ."""
    spec = job.job.spec
    lists = {"train": RewardCall.from_specs(spec.rewards, path="spec.rewards")}
    lists["validation"] = lists["train"]
    if spec.validation is not None and spec.validation.rewards is not None:
        lists["validation"] = RewardCall.from_specs(spec.validation.rewards, path="spec.validation.rewards")
    return lists


async def _serve(env: WorkerEnvironment, job: ResolvedJob) -> int:
    spec = job.job.spec
    num_workers = spec.roles.reward.workers_per_replica
    code = spec.code.path if spec.code is not None else None
    pool = RewardPool(
        reward_lists(job),
        num_workers=num_workers,
        code_paths=[] if code is None else [Path(job.base_dir) / code],
    )
    problem: TrimtabError | None = None
    try:
        await pool.start()
    except TrimtabError as error:
        problem = error
    # A worker takes one response at a time: more would wait here, while the coordinator's deadline runs.
    register = registration(
        env, job, capacity=num_workers, metrics_port=start_metrics_server(address=env.host)
    )
    link: AsyncExperienceLink | None = None

    def follow(welcome: pb.Welcome) -> None:
        if link is not None:
            link.set_address(welcome.experience_address)

    session = new_session(env, job, register, on_new_coordinator=follow)
    try:
        with session:
            welcome = await asyncio.to_thread(session.start)
            if problem is not None:  # raised here, so that the coordinator is told
                raise problem
            link = AsyncExperienceLink(str(worker_key(env)), welcome.experience_address, curve_of(env))
            try:
                gauges = RoleGauges(env.role, replica=env.replica, rank=env.rank)
                await _RewardServer(pool, session, link, gauges).run()
            finally:
                link.close()
            shutdown = session.shutdown
            return 0 if shutdown is None else shutdown.exit_code
    finally:
        await pool.close()


class _RewardServer:
    """Takes responses from the link until the session ends."""

    def __init__(
        self, pool: RewardPool, session: WorkerSession, link: AsyncExperienceLink, gauges: RoleGauges
    ) -> None:
        self._pool = pool
        self._session = session
        self._link = link
        self._gauges = gauges
        self._running: dict[str, asyncio.Task[None]] = {}
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._num_scored = 0
        self._num_failed = 0

    async def run(self) -> None:
        """Until Shutdown; raises where the coordinator is gone for good or no worker can be started."""
        receiver = asyncio.create_task(self._receive(), name="score-requests")
        commands = asyncio.create_task(self._refuse_commands(), name="commands")
        try:
            done, _ = await asyncio.wait(
                [receiver, commands, self._failure], return_when=asyncio.FIRST_COMPLETED
            )
            for ended in done:
                ended.result()
        finally:
            left = [receiver, commands, *self._running.values()]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._failure.cancel()

    async def _receive(self) -> None:
        while True:
            message = await self._link.recv()
            if message.kind != "score":
                logger.error("a %r message does not belong to the reward role; ignored", message.kind)
                continue
            episode_id = str(message.meta["episode_id"])
            if episode_id in self._running:  # asked for again, by a coordinator that does not know
                continue
            task = asyncio.create_task(self._score(episode_id, message.meta), name=f"score {episode_id}")
            self._running[episode_id] = task
            task.add_done_callback(partial(self._ended, episode_id))

    async def _score(self, episode_id: str, meta: Mapping[str, Any]) -> None:
        started = time.monotonic()
        result = await self._pool.score(
            meta["rewards"], prompt=meta["prompt"], response=meta["response"], fields=meta["fields"]
        )
        for error in result.errors:
            logger.warning("%s has no score: %s %s: %s", episode_id, error.name, error.kind, error.error)
        answer = {
            "episode_id": episode_id,
            "scores": [asdict(score) for score in result.scores],
            "errors": [asdict(error) for error in result.errors],
            "latency_s": time.monotonic() - started,
        }
        await self._link.send(Message("scores", answer), timeout_s=SEND_TIMEOUT_S)
        self._count(result)

    def _ended(self, episode_id: str, task: "asyncio.Task[None]") -> None:
        del self._running[episode_id]
        if not task.cancelled() and (error := task.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _count(self, result: ScoreResult) -> None:
        self._num_scored += 1
        self._num_failed += bool(result.errors)
        running = len(self._running) - 1  # this one is done
        gauges = {
            "worker/running": float(running),
            "worker/scored": float(self._num_scored),
            "worker/failed": float(self._num_failed),
            "worker/replaced": float(self._pool.num_restarts),
        }
        self._gauges.set_all(gauges)
        activity = f"scoring {running} responses" if running else "idle"
        self._session.update_state(activity=activity, gauges=gauges)

    async def _refuse_commands(self) -> None:
        async for command in self._session.commands_async():
            body = command.WhichOneof("body")
            self._session.reply(
                pb.CommandResult(
                    key=command.key,
                    ok=False,
                    error=f"{self._session.worker}: the reward role takes no command such as {body}",
                    error_kind="internal",
                )
            )
