"""Prometheus gauges of one process and the endpoint that serves them.

Each role's main makes one `RoleGauges`, starts the endpoint, registers its port with the coordinator and
sets gauges as its numbers change. The endpoint runs on a daemon thread of the official client; setting a
gauge is safe from any thread. The default registry adds the process's own CPU and memory.
"""

import errno
import logging
from collections.abc import Mapping

from prometheus_client import REGISTRY, CollectorRegistry, Gauge, start_http_server

from trimtab.errors import UserError
from trimtab.observability.registry import lookup, prometheus_name

logger = logging.getLogger(__name__)

LABELS = ("role", "replica", "rank")


class RoleGauges:
    """Gauges by metric name, labelled with the worker's place; one per process and registry."""

    def __init__(
        self, role: str, *, replica: int = 0, rank: int = 0, registry: CollectorRegistry = REGISTRY
    ) -> None:
        self._labels = (role, str(replica), str(rank))
        self._registry = registry
        self._gauges: dict[str, Gauge] = {}

    def set(self, name: str, value: float) -> None:
        """Set one metric, named as in the metric registry; NaN is a value that Prometheus can take."""
        exposed = prometheus_name(name)
        gauge = self._gauges.get(exposed)
        if gauge is None:
            gauge = Gauge(exposed, help_text(name), LABELS, registry=self._registry)
            self._gauges[exposed] = gauge
        gauge.labels(*self._labels).set(value)

    def set_all(self, metrics: Mapping[str, float]) -> None:
        """`set` for each."""
        for name, value in metrics.items():
            self.set(name, value)


def help_text(name: str) -> str:
    """The HELP line of a metric: its meaning, unit and name in the files."""
    metric = lookup(name)
    if metric is None:
        return f"{name}."
    unit = f" In {metric.unit}." if metric.unit else ""
    return f"{metric.description}{unit} ({name})"


def start_metrics_server(
    port: int = 0, *, address: str = "127.0.0.1", registry: CollectorRegistry = REGISTRY
) -> int:
    """Serve the registry at /metrics until the process ends, and log where; return the port.

    Port 0 asks for a free one.
    """
    try:
        server, _ = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise UserError(
            f"metrics port {port}: in use on {address}; choose another, or 0 for a free one"
        ) from error
    logger.info("metrics at http://%s:%d/metrics", address, server.server_port)
    return server.server_port
