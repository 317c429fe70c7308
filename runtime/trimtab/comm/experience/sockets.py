"""Socket settings that hub and links share."""

from collections.abc import Sequence
from typing import Any, Final

import zmq

from trimtab.comm.experience.frames import MAX_ARRAY_BYTES

HIGH_WATER_MARK: Final = 256
"""Messages queued per peer and direction before a send waits. A prompt is a few hundred bytes and a
response a few KiB, so this is small in memory; a batch is large, but there is one at a time."""

_HEARTBEAT_INTERVAL_MS: Final = 5_000
_HEARTBEAT_TIMEOUT_MS: Final = 30_000
_HANDSHAKE_MS: Final = 10_000
"""A peer that connects and says nothing is let go after this."""


def configure(socket: "zmq.Socket[Any]") -> None:
    """Bound queues and frames, and find out about peers whose machine vanished."""
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_ARRAY_BYTES)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_INTERVAL_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)


def take_family(socket: "zmq.Socket[Any]", address: str) -> None:
    """Let the socket speak IPv6 where its address is one. Not always: it would then write IPv4 as IPv6."""
    socket.setsockopt(zmq.IPV6, int("[" in address))


def buffers(frames: Sequence[zmq.Frame]) -> list[memoryview]:
    """The frames' memory, uncopied; it lives as long as any array made of it."""
    return [frame.buffer for frame in frames]
