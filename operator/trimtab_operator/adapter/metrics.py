"""The operator's metrics, in one place; `docs/reference/operator.md` lists them from here.

Counters and histograms are fed as things happen; how many jobs and pods there are is counted when somebody
asks, from the caches.
"""

from collections import Counter as CounterOf
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from trimtab_operator.kube.client import Call

PREFIX: Final = "trimtab_operator"
LABELS: Final = {
    f"{PREFIX}_api_calls": ("verb", "group", "resource", "code"),
    f"{PREFIX}_api_seconds": ("verb",),
    f"{PREFIX}_coordinator_polls": ("code",),
    f"{PREFIX}_jobs": ("namespace", "phase"),
    f"{PREFIX}_pods": ("role", "phase"),
}
"""Labels of the metrics that have some."""
_RECONCILE_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60)
_CREATED_BUCKETS: Final = (0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60, 120, 300)


class OperatorMetrics:
    """All metrics of one operator."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.reconcile_seconds = Histogram(
            f"{PREFIX}_reconcile_seconds",
            "Duration of one look at a job, its API calls included.",
            buckets=_RECONCILE_BUCKETS,
            registry=self.registry,
        )
        self.reconcile_errors = Counter(
            f"{PREFIX}_reconcile_errors",
            "Looks at a job that failed and are tried again.",
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            f"{PREFIX}_queue_depth", "Jobs that are due and wait for a worker.", registry=self.registry
        )
        self.queue_waiting = Gauge(
            f"{PREFIX}_queue_waiting", "Jobs that are looked at again later.", registry=self.registry
        )
        self.pods_created_seconds = Histogram(
            f"{PREFIX}_pods_created_seconds",
            "Time from the moment a job was first seen until its pods were created.",
            buckets=_CREATED_BUCKETS,
            registry=self.registry,
        )
        self.api_calls = Counter(
            f"{PREFIX}_api_calls",
            "Calls to the API server, by RBAC verb, API group, resource and HTTP code (0: no answer); kopf's "
            "list and watch of jobs are not among them.",
            LABELS[f"{PREFIX}_api_calls"],
            registry=self.registry,
        )
        self.api_seconds = Histogram(
            f"{PREFIX}_api_seconds",
            "Duration of calls to the API server.",
            LABELS[f"{PREFIX}_api_seconds"],
            registry=self.registry,
        )
        self.polls = Counter(
            f"{PREFIX}_coordinator_polls",
            "Questions to coordinators, by gRPC status code.",
            LABELS[f"{PREFIX}_coordinator_polls"],
            registry=self.registry,
        )
        self.events_dropped = Gauge(
            f"{PREFIX}_events_dropped", "Events that were not posted.", registry=self.registry
        )
        self.leading = Gauge(f"{PREFIX}_leading", "1 while this operator leads.", registry=self.registry)

    def note_call(self, call: Call) -> None:
        """Count a call to the API server."""
        name = call.resource.plural + (f"/{call.subresource}" if call.subresource else "")
        self.api_calls.labels(call.verb, call.resource.group, name, str(call.code)).inc()
        if call.verb != "watch":
            self.api_seconds.labels(call.verb).observe(call.seconds)

    def note_run(self, seconds: float, failed: bool) -> None:
        """Count a look at a job."""
        self.reconcile_seconds.observe(seconds)
        if failed:
            self.reconcile_errors.inc()

    def count_from(
        self, jobs: Callable[[], Iterable[tuple[str, str]]], pods: Callable[[], Iterable[tuple[str, str]]]
    ) -> None:
        """Count (namespace, phase) of jobs and (role, phase) of pods whenever the metrics are asked for."""
        self.registry.register(_Census(jobs, pods))

    def render(self) -> bytes:
        """The exposition."""
        return generate_latest(self.registry)


class _Census(Collector):
    def __init__(
        self, jobs: Callable[[], Iterable[tuple[str, str]]], pods: Callable[[], Iterable[tuple[str, str]]]
    ) -> None:
        self._jobs = jobs
        self._pods = pods

    def collect(self) -> Iterator[Metric]:
        """Count now."""
        yield _family(f"{PREFIX}_jobs", "Jobs by namespace and phase.", self._jobs())
        yield _family(f"{PREFIX}_pods", "Pods of jobs by role and phase.", self._pods())


def _family(name: str, text: str, items: Iterable[tuple[str, str]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=LABELS[name])
    for key, count in sorted(CounterOf(items).items()):
        family.add_metric(key, count)
    return family
