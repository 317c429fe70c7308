"""A worker's end of the experience plane: `ExperienceLink` blocks, `AsyncExperienceLink` awaits.

Both are a DEALER socket whose identity is the worker's name. Not thread-safe: one thread (or loop)
makes, uses and closes a link; only `set_address` may be called from another.
"""

import asyncio
import logging
import time
from typing import Any, Final

import zmq
import zmq.asyncio

from trimtab.comm.experience.frames import FrameError, Message, decode, encode
from trimtab.comm.experience.guard import connect_with
from trimtab.comm.experience.sockets import buffers, configure, take_family
from trimtab.comm.tls import CurveClient
from trimtab.errors import DeadlineError

logger = logging.getLogger(__name__)

_SLICE_S: Final = 0.25
"""A blocked link looks this often whether the coordinator has moved to another address."""
_FLUSH_S: Final = 5.0


class _Dealer:
    """What the two links share: the socket, its peer, and moving to another one."""

    def __init__(
        self, context: "zmq.Context[Any]", identity: str, address: str, curve: CurveClient | None
    ) -> None:
        self.identity = identity
        self._context = context
        self._socket: Any = context.socket(zmq.DEALER)
        configure(self._socket)
        self._socket.setsockopt(zmq.IDENTITY, identity.encode())
        if curve is not None:
            connect_with(self._socket, curve)
        self._wanted = address
        self._connected = address
        take_family(self._socket, address)
        self._socket.connect(address)
        self.num_refused = 0
        """Messages thrown away because they were not messages of this version."""

    def set_address(self, address: str) -> None:
        """Move to the hub's new address, within a moment; what was still queued for the old is dropped.

        Given to `WorkerSession(on_new_coordinator=...)`; the same address changes nothing, as the
        connection comes back by itself.
        """
        self._wanted = address

    def close(self) -> None:
        """Close; what was sent gets a few seconds to leave."""
        self._socket.close(linger=int(_FLUSH_S * 1000))
        self._context.term()

    def _follow(self) -> None:
        wanted = self._wanted
        if wanted != self._connected:
            logger.info("%s follows the coordinator from %s to %s", self.identity, self._connected, wanted)
            self._socket.disconnect(self._connected)
            take_family(self._socket, wanted)
            self._socket.connect(wanted)
            self._connected = wanted

    def _decoded(self, frames: list[zmq.Frame]) -> Message | None:
        try:
            return decode(buffers(frames))
        except FrameError as error:
            self.num_refused += 1
            logger.error("%s refused a message from the coordinator: %s", self.identity, error)
            return None

    def _late(self, what: str, timeout_s: float) -> DeadlineError:
        return DeadlineError(
            f"{self.identity} {what} within {timeout_s:g} s (coordinator's experience plane at "
            f"{self._connected})"
        )


class ExperienceLink(_Dealer):
    """The blocking link, for roles whose main thread computes (actor).

    It follows the hub to another address when it sends or receives; one that does neither has to be told
    (`follow`), or the hub will look for it in vain.
    """

    def __init__(self, identity: str, address: str, curve: CurveClient | None = None) -> None:
        super().__init__(zmq.Context(), identity, address, curve)

    def follow(self) -> None:
        """Move to the address that was set last, where it is another; on the thread that uses the link."""
        self._follow()

    def send(self, message: Message, timeout_s: float) -> None:
        """Queue a message, whose arrays must not change afterwards; DeadlineError if the queue stays full."""
        frames = encode(message)
        deadline = time.monotonic() + timeout_s
        while True:
            self._follow()
            try:
                self._socket.send_multipart(frames, flags=zmq.NOBLOCK, copy=False)
                return
            except zmq.Again as error:
                if time.monotonic() >= deadline:
                    raise self._late(f"could not send a {message.kind!r} message", timeout_s) from error
            self._wait(zmq.POLLOUT, deadline)

    def recv(self, timeout_s: float) -> Message:
        """The next message; DeadlineError where none comes. Malformed ones are logged, counted, skipped."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._follow()
            try:
                message = self._decoded(self._socket.recv_multipart(flags=zmq.NOBLOCK, copy=False))
            except zmq.Again as error:
                if time.monotonic() >= deadline:
                    raise self._late("got no message", timeout_s) from error
                self._wait(zmq.POLLIN, deadline)
                continue
            if message is not None:
                return message

    def _wait(self, event: int, deadline: float) -> None:
        wait_s = min(_SLICE_S, max(0.0, deadline - time.monotonic()))
        self._socket.poll(int(wait_s * 1000) + 1, event)


class AsyncExperienceLink(_Dealer):
    """The link of asyncio roles (rollout, reward). One task receives; any number may send."""

    def __init__(self, identity: str, address: str, curve: CurveClient | None = None) -> None:
        super().__init__(zmq.asyncio.Context(), identity, address, curve)

    async def send(self, message: Message, timeout_s: float) -> None:
        """As `ExperienceLink.send`."""
        frames = encode(message)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            self._follow()
            try:
                await self._socket.send_multipart(frames, flags=zmq.NOBLOCK, copy=False)
                return
            except zmq.Again as error:
                if asyncio.get_running_loop().time() >= deadline:
                    raise self._late(f"could not send a {message.kind!r} message", timeout_s) from error
            await self._wait(zmq.POLLOUT, deadline)

    async def recv(self, timeout_s: float | None = None) -> Message:
        """As `ExperienceLink.recv`; None waits until cancelled, for a role's receive loop."""
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        while True:
            self._follow()
            try:
                message = self._decoded(await self._socket.recv_multipart(flags=zmq.NOBLOCK, copy=False))
            except zmq.Again as error:
                if deadline is not None and asyncio.get_running_loop().time() >= deadline:
                    raise self._late("got no message", timeout_s or 0.0) from error
                await self._wait(zmq.POLLIN, deadline)
                continue
            if message is not None:
                return message

    async def _wait(self, event: int, deadline: float | None) -> None:
        wait_s = _SLICE_S
        if deadline is not None:
            wait_s = min(wait_s, max(0.0, deadline - asyncio.get_running_loop().time()))
        await self._socket.poll(int(wait_s * 1000) + 1, event)
