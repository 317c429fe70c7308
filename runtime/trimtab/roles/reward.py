"""The reward role: responses arrive as text, scores go back, one replica being one such process.

Started by `trimtab.roles.worker`. The main thread runs the asyncio loop; the session has a thread of its
own; the functions run in the worker processes of `trimtab.rewards`. It takes no commands: its work comes
on the experience plane as `score` and goes back as `scores`, also to a coordinator that was started
again meanwhile. Imports neither torch nor transformers.
"""

import asyncio
import logging
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from trimtab.api import ResolvedJob
from trimtab.comm.control import WorkerSession
from trimtab.comm.experience import AsyncExperienceLink, Message
from trimtab.errors import TrimtabError
from trimtab.observability.prometheus import RoleGauges, start_metrics_server
from trimtab.rewards import RewardCall, RewardPool, ScoreResult
from trimtab.roles.environment import WorkerEnvironment
from trimtab.roles.registration import registration
from trimtab.roles.serving import RequestServer, serve
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
        env, job, capacity=num_workers, metrics_port=start_metrics_server(env.metrics_port, address=env.host)
    )
    try:
        return await serve(env, job, register, partial(_RewardServer, pool), problem=problem)
    finally:
        await pool.close()


class _RewardServer(RequestServer):
    """Scores responses."""

    request_kind = "score"

    def __init__(
        self, pool: RewardPool, session: WorkerSession, link: AsyncExperienceLink, gauges: RoleGauges
    ) -> None:
        super().__init__(session, link, gauges)
        self._pool = pool
        self._num_scored = 0
        self._num_failed = 0

    async def answer(self, episode_id: str, message: Message) -> None:
        """Score one response; raises where no worker can be started."""
        started, meta = time.monotonic(), message.meta
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
        await self.link.send(Message("scores", answer), timeout_s=SEND_TIMEOUT_S)
        self._count(result)

    def _count(self, result: ScoreResult) -> None:
        self._num_scored += 1
        self._num_failed += bool(result.errors)
        running = len(self.requests) - 1  # this one is done
        gauges = {
            "worker/running": float(running),
            "worker/scored": float(self._num_scored),
            "worker/failed": float(self._num_failed),
            "worker/replaced": float(self._pool.num_restarts),
        }
        self.gauges.set_all(gauges)
        activity = f"scoring {running} responses" if running else "idle"
        self.session.update_state(activity=activity, gauges=gauges)

    async def obey(self, command: pb.Command) -> None:
        """There is none for this role."""
        body = command.WhichOneof("body")
        self.session.reply(
            pb.CommandResult(
                key=command.key,
                ok=False,
                error=f"{self.session.worker}: the reward role takes no command such as {body}",
                error_kind="internal",
            )
        )
