"""Who may connect to the coordinator's experience plane in a cluster: the job's workers, by their CURVE key.

Used by `ExperienceHub`, on the coordinator's loop. libzmq asks for every handshake (ZAP, RFC 27) over an
inproc socket that has to be bound before the hub's socket listens: where nobody answers there, libzmq lets
everybody in. Peers that never get that far (another server key, plain text) show as events of the socket's
monitor. Both are logged, at most once in a while each, as anybody who reaches the port can cause them.
"""

import asyncio
import logging
import time
from typing import Any, Final

import zmq
import zmq.asyncio
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from trimtab.comm.tls import CurveClient, CurveServer

logger = logging.getLogger(__name__)

_ZAP_ADDRESS: Final = "inproc://zeromq.zap.01"
_ZAP_DOMAIN: Final = b"trimtab"
_ZAP_VERSION: Final = b"1.0"
_FAILED: Final = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_LOGGED_EVERY_S: Final = 10.0


def connect_with(socket: "zmq.Socket[Any]", curve: CurveClient) -> None:
    """Make a worker's socket prove that it belongs to the job, and demand the same of the coordinator."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, curve.server)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, curve.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, curve.secret)


class Guard:
    """Made before the hub's socket listens; `close` comes before the context's end."""

    def __init__(self, context: "zmq.asyncio.Context", socket: Any, curve: CurveServer) -> None:
        self._allowed = z85.decode(curve.allowed)
        self._refused = _Counted("refused %d connection(s) to the experience plane, the last from %s: %s")
        self._zap: Any = context.socket(zmq.REP)
        self._zap.bind(_ZAP_ADDRESS)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, curve.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, curve.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, _ZAP_DOMAIN)
        self._socket = socket
        self._events: Any = socket.get_monitor_socket(_FAILED)
        self._tasks = [
            asyncio.create_task(self._answer(), name="experience-guard"),
            asyncio.create_task(self._watch(), name="experience-handshakes"),
        ]

    def close(self) -> None:
        """Stop answering; nobody gets in any more."""
        for task in self._tasks:
            task.cancel()
        self._socket.disable_monitor()
        self._events.close(linger=0)
        self._zap.close(linger=0)

    async def _answer(self) -> None:
        while True:
            request = await self._zap.recv_multipart()
            known = len(request) == 7 and request[5] == b"CURVE" and request[6] == self._allowed
            if not known:
                address = request[3].decode("ascii", "replace") if len(request) > 3 else "?"
                self._refused.note(address, "its key is not that of this job's workers")
            code, text = (b"200", b"OK") if known else (b"400", b"not a worker of this job")
            number = request[1] if len(request) > 1 else b""
            await self._zap.send_multipart([_ZAP_VERSION, number, code, text, b"", b""])

    async def _watch(self) -> None:
        while True:
            event = parse_monitor_message(await self._events.recv_multipart())
            if event["event"] == zmq.EVENT_MONITOR_STOPPED:
                return
            self._refused.note("somebody", "it speaks plain text or expects another coordinator")


class _Counted:
    """Logs the first of its kind at once and sums up those that follow soon."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._count = 0
        self._next_s = 0.0

    def note(self, *details: object) -> None:
        self._count += 1
        now = time.monotonic()
        if now >= self._next_s:
            logger.warning(self._text, self._count, *details)
            self._count, self._next_s = 0, now + _LOGGED_EVERY_S
