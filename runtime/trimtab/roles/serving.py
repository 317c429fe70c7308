"""What the rollout and the reward role have in common: requests over the experience plane, until Shutdown.

A role's main calls `serve` once it knows its registration; `RequestServer` then takes messages from the link
and commands from the session, each as a task of its own. Runs on the role's asyncio loop; the session has a
thread of its own, so heartbeats continue while the role computes.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from trimtab.api import ResolvedJob
from trimtab.comm.control import WorkerSession
from trimtab.comm.experience import AsyncExperienceLink, Message
from trimtab.errors import TrimtabError
from trimtab.observability.prometheus import RoleGauges
from trimtab.roles.environment import WorkerEnvironment
from trimtab.roles.registration import curve_of, new_session, worker_key
from trimtab.v1 import control_pb2 as pb

logger = logging.getLogger(__name__)


class RequestServer(ABC):
    """Takes requests and commands until the session ends. A request is done once while it is running."""

    request_kind: ClassVar[str]
    """Of the messages that ask for something; they name it by `episode_id`."""

    def __init__(self, session: WorkerSession, link: AsyncExperienceLink, gauges: RoleGauges) -> None:
        self.session = session
        self.link = link
        self.gauges = gauges
        self.requests: dict[str, asyncio.Task[None]] = {}
        self._commands: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @abstractmethod
    async def answer(self, episode_id: str, message: Message) -> None:
        """Do what a request asks for and send the answer. What it raises ends the role."""

    @abstractmethod
    async def obey(self, command: pb.Command) -> None:
        """Carry out a command and reply. What it raises ends the role."""

    async def watch(self) -> None:
        """Look after what serves the requests; ends only by raising."""
        await asyncio.Event().wait()

    def follow(self, welcome: pb.Welcome) -> None:
        """Another coordinator is there."""
        self.link.set_address(welcome.experience_address)

    async def run(self) -> None:
        """Until Shutdown; raises where the coordinator, or what serves the requests, is gone for good."""
        permanent = [
            asyncio.create_task(self._take_requests(), name="requests"),
            asyncio.create_task(self._take_commands(), name="commands"),
            asyncio.create_task(self.watch(), name="watch"),
        ]
        try:
            done, _ = await asyncio.wait([*permanent, self._failure], return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
        finally:
            left = [*permanent, *self.requests.values(), *self._commands]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._failure.cancel()

    async def _take_requests(self) -> None:
        while True:
            message = await self.link.recv()
            if message.kind != self.request_kind:
                logger.error("a %r message where %r is expected; ignored", message.kind, self.request_kind)
                continue
            episode_id = str(message.meta["episode_id"])
            if episode_id in self.requests:  # asked for again, by a coordinator that does not know
                continue
            task = asyncio.create_task(self.answer(episode_id, message), name=f"answer {episode_id}")
            self.requests[episode_id] = task
            task.add_done_callback(partial(self._request_ended, episode_id))

    async def _take_commands(self) -> None:
        async for command in self.session.commands_async():
            task = asyncio.create_task(self.obey(command), name=command.key)
            self._commands.add(task)
            task.add_done_callback(self._commands.discard)
            task.add_done_callback(self._note_failure)

    def _request_ended(self, episode_id: str, task: asyncio.Task[None]) -> None:
        if self.requests.get(episode_id) is task:
            del self.requests[episode_id]
        self._note_failure(task)

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self._failure.done():
            self._failure.set_exception(error)


async def serve(
    env: WorkerEnvironment,
    job: ResolvedJob,
    register: pb.Register,
    make: Callable[[WorkerSession, AsyncExperienceLink, RoleGauges], RequestServer],
    *,
    problem: TrimtabError | None,
) -> int:
    """Register and serve until the coordinator says to leave; returns the exit code it asked for.

    `problem` is why this process cannot serve: it is raised once the coordinator can be told.
    """
    loop = asyncio.get_running_loop()
    server: RequestServer | None = None

    def follow(welcome: pb.Welcome) -> None:  # on the session's thread
        if server is not None:
            loop.call_soon_threadsafe(server.follow, welcome)

    session = new_session(env, job, register, on_new_coordinator=follow)
    with session:
        welcome = await asyncio.to_thread(session.start)
        if problem is not None:
            raise problem
        link = AsyncExperienceLink(str(worker_key(env)), welcome.experience_address, curve_of(env))
        try:
            server = make(session, link, RoleGauges(env.role, replica=env.replica, rank=env.rank))
            await server.run()
        finally:
            link.close()
        shutdown = session.shutdown
        return 0 if shutdown is None else shutdown.exit_code
