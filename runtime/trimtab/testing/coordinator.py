"""A coordinator's ends of the control and the experience plane, for tests and benchmarks of one worker.

The caller plays the coordinator: it starts `PlayedCoordinator`, starts the worker's process with
`start_worker`, waits for it in `joined`, and sends and receives on `hub` and `server` as it likes. Runs on
the caller's asyncio loop; nothing of the protocol is replaced.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from trimtab.api import ResolvedJob
from trimtab.comm.control import ControlServer, WorkerKey
from trimtab.comm.experience import ExperienceHub
from trimtab.roles.environment import WorkerEnvironment
from trimtab.v1 import control_pb2 as pb
from trimtab.v1 import job_control_pb2 as jc


class _NoJobControl:
    """Nobody asks a played coordinator for the job's state."""

    async def get_status(self) -> jc.JobStatus:
        raise NotImplementedError

    def watch(self) -> AsyncIterator[jc.JobStatus]:
        raise NotImplementedError

    async def checkpoint(self, request: jc.CheckpointRequest) -> jc.CheckpointResponse:
        raise NotImplementedError

    async def update_rollout(self, request: jc.UpdateRolloutRequest) -> jc.UpdateRolloutResponse:
        raise NotImplementedError

    async def stop(self, request: jc.StopRequest) -> jc.StopResponse:
        raise NotImplementedError

    async def resize(self, request: jc.ResizeRequest) -> jc.ResizeResponse:
        raise NotImplementedError


class PlayedCoordinator:
    """One instance of a coordinator; may be followed by another one on the same control port."""

    def __init__(self, job: ResolvedJob, *, instance: str = "first") -> None:
        self._job = job
        self._instance = instance
        self.hub = ExperienceHub()
        self.joined: asyncio.Queue[tuple[WorkerKey, pb.Register]] = asyncio.Queue()
        self.failed: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        """Message and kind of each worker that said it cannot go on."""
        self.port = 0

    async def start(self, port: int = 0) -> int:
        """Listen; returns the control port."""
        self.server = ControlServer(
            training_identity=self._job.training_identity,
            attempt=self._job.attempt,
            heartbeat_interval_s=0.2,
            heartbeat_timeout_s=60.0,
            experience_address=self.hub.bind("tcp://127.0.0.1:*"),
            coordinator_instance=self._instance,
            admit=lambda register: None,
            on_join=lambda worker, register: self.joined.put_nowait((worker, register)),
            on_leave=lambda worker, reason: None,
            on_failed=lambda worker, message, kind: self.failed.put_nowait((message, kind)),
            job_control=_NoJobControl(),
        )
        self.port = await self.server.start(f"127.0.0.1:{port}")
        return self.port

    async def close(self) -> None:
        """Let the worker go on its own, and stop listening."""
        await self.server.close("the played coordinator ends")
        self.hub.close()


def start_worker(
    role: str, job_path: Path, port: int, *, environ: dict[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """The role's first replica as a process, as the agent starts it."""
    env = WorkerEnvironment(
        job_path=job_path,
        role=role,
        replica=0,
        node=0,
        incarnation=1,
        coordinator=f"127.0.0.1:{port}",
        rank=0,
        local_rank=0,
        world_size=1,
    )
    command = [sys.executable, "-m", "trimtab.roles.worker"]
    return subprocess.Popen(command, env={**os.environ, **env.to_environ(), **(environ or {})})  # noqa: S603
