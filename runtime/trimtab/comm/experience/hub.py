"""ExperienceHub: the coordinator's end of the experience plane. Runs on the coordinator's asyncio loop."""

import asyncio
import logging
from typing import Any, Final

import zmq
import zmq.asyncio

from trimtab.comm.experience.frames import FrameError, Message, decode, encode
from trimtab.comm.experience.guard import Guard
from trimtab.comm.experience.sockets import buffers, configure, take_family
from trimtab.comm.tls import CurveServer
from trimtab.errors import DeadlineError, UserError, WorkerLostError

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.02


class ExperienceHub:
    """A ROUTER socket: sends to a worker by its name (`str(WorkerKey)`), receives from all.

    A worker that connects under a name that is in use takes it over (a restarted process comes before
    the old connection is known to be dead). What it can lose, and why nothing is doubled or reordered,
    is said in the package's docstring. One task receives; any number may send. With `curve` (and on a
    running loop) only workers with the job's key get in, and what they say is encrypted; without it,
    everything is plain.
    """

    def __init__(self, curve: CurveServer | None = None) -> None:
        self._context = zmq.asyncio.Context()
        self._socket: Any = self._context.socket(zmq.ROUTER)
        configure(self._socket)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an unknown or full peer is an error, not a drop
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._guard = None if curve is None else Guard(self._context, self._socket, curve)
        self.num_refused = 0
        """Messages thrown away because they were not messages of this version."""

    def bind(self, address: str) -> str:
        """Listen on `tcp://host:port` (port *: any free one), return the endpoint. UserError if taken."""
        take_family(self._socket, address)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            raise UserError(
                f"the experience plane cannot listen on {address}: {error.strerror}; end the process that "
                "uses the port or choose another"
            ) from error
        endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return endpoint

    async def send(self, worker: str, message: Message, timeout_s: float) -> None:
        """Queue a message for a worker; returns once ZeroMQ has taken it, not when it has arrived.

        The arrays must not change afterwards. Waits while the worker has not connected yet, or has as
        many messages queued as the high-water mark allows: past the deadline WorkerLostError in the
        first case, DeadlineError in the second.
        """
        frames = [worker.encode(), *encode(message)]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            # A ROUTER is writable as soon as any peer is, so waiting for that would spin; and
            # pyzmq's own queue would hold up every other worker behind a slow one.
            try:
                await self._socket.send_multipart(frames, flags=zmq.NOBLOCK, copy=False)
                return
            except zmq.Again as error:
                if loop.time() >= deadline:
                    raise DeadlineError(
                        f"{worker} did not take a {message.kind!r} message within {timeout_s:g} s: "
                        "its queue is full"
                    ) from error
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                if loop.time() >= deadline:
                    raise WorkerLostError(
                        f"{worker} has no connection to the experience plane ({message.kind!r} message "
                        f"not sent within {timeout_s:g} s)"
                    ) from error
            await asyncio.sleep(min(pause_s, max(0.0, deadline - loop.time())))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def recv(self) -> tuple[str, Message]:
        """The next message and who sent it. Malformed ones are logged, counted and skipped.

        Waits without a deadline: it is the receive loop of the coordinator, who keeps the deadlines of
        what it waits for. Cancelling it loses nothing.
        """
        while True:
            try:
                identity, *frames = await self._socket.recv_multipart(flags=zmq.NOBLOCK, copy=False)
            except zmq.Again:
                await self._socket.poll(None, zmq.POLLIN)
                continue
            name = bytes(identity.buffer)
            try:
                return name.decode(), decode(buffers(frames))
            except (FrameError, UnicodeDecodeError) as error:
                self.num_refused += 1
                logger.error("refused a message from %r: %s", name, error)

    def close(self) -> None:
        """Close at once; what is still queued is dropped."""
        if self._guard is not None:
            self._guard.close()
        self._socket.close()
        self._context.term()
