"""The operator's HTTP endpoint: /healthz, /readyz and /metrics. Plain http, no rights, nothing secret.

/healthz fails where only a new process would help: the watch of pods or of jobs is dead, or work has been
in the queue for too long. /readyz holds for an operator that leads and has seen everything once, and for one
that stands by: otherwise the rollout of a new version would wait for the old one to give up the lease.
"""

import logging
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from trimtab.errors import UserError
from trimtab_operator.adapter.metrics import OperatorMetrics

logger = logging.getLogger(__name__)

PODS_SILENT_S: Final = 200.0
"""Longer than a watch may say nothing, plus the time to open another one."""
JOBS_MISSED_S: Final = 200.0
QUEUE_STUCK_S: Final = 300.0


@dataclass(frozen=True)
class Check:
    """One thing that is checked: `problem()` says what is wrong, or is empty."""

    name: str
    problem: Callable[[], str]


def limit_check(name: str, seconds: Callable[[], float], limit_s: float, text: str) -> Check:
    """A check that fails when a duration is above its limit; `text` has a place for it."""

    def problem() -> str:
        value = seconds()
        return text.format(f"{value:.0f}") if value > limit_s else ""

    return Check(name, problem)


def _listen(port: int) -> socket.socket:
    """One socket for IPv4 and IPv6, where the machine has both."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


class HealthServer:
    """Serves until it is closed. The checks may be added to while it serves."""

    def __init__(self, metrics: OperatorMetrics, *, ready: Callable[[], str]) -> None:
        self.checks: list[Check] = []
        self._metrics = metrics
        self._ready = ready
        self._runner: web.AppRunner | None = None

    async def start(self, port: int) -> int:
        """Listen on a port (0: any that is free); which one it is."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._serve_metrics),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            listener = _listen(port)
        except OSError as error:
            raise UserError(f"--health-port {port}: {error.strerror or error}") from error
        await web.SockSite(self._runner, listener).start()
        return int(listener.getsockname()[1])

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    def problems(self) -> Iterable[str]:
        """What is wrong, one line each."""
        for check in self.checks:
            problem = check.problem()
            if problem:
                yield f"{check.name}: {problem}"

    async def _healthz(self, _: web.Request) -> web.Response:
        problems = list(self.problems())
        if problems:
            logger.error("not healthy: %s", "; ".join(problems))
            return web.Response(status=500, text="\n".join(problems) + "\n")
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._ready()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ok'}\n")

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), content_type="text/plain", charset="utf-8")
