"""Kubernetes events about jobs: best effort, the same one counted up instead of posted again.

`publish` never waits and never fails; one task sends. A job may have a few events at once and then one
every few seconds, so that a job that goes round in circles does not fill etcd; what does not fit is dropped
and counted. Events are for people: no decision reads them.
"""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from trimtab_operator.constants import API_VERSION, KIND, LABEL_MANAGED_BY, MANAGED_BY, MANAGER
from trimtab_operator.kube.client import Client
from trimtab_operator.kube.errors import JsonObject, KubeError, NotFoundError
from trimtab_operator.kube.resources import EVENTS
from trimtab_operator.model.actions import Event
from trimtab_operator.model.observed import Job

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000
MAX_SERIES: Final = 10_000
"""Events that are remembered, to be counted up."""
SERIES_S: Final = 600.0
"""An event that comes again within this time is counted up."""
BURST: Final = 25
REFILL_S: Final = 10.0
"""A job may publish one more event each time this passes."""
TOTAL_BURST: Final = 50
TOTAL_REFILL_S: Final = 0.05
"""The same for all jobs together: a thousand new jobs need the API server for other things first."""
MAX_NOTE: Final = 1000
ACTION: Final = "Reconcile"


@dataclass
class _Series:
    name: str
    count: int
    last: float


class _Allowance:
    """A token bucket."""

    def __init__(self, burst: int, refill_s: float, now: float) -> None:
        self._burst = burst
        self._refill_s = refill_s
        self._left = float(burst)
        self._at = now

    def wait_s(self, now: float) -> float:
        """Take one, or say how long there is none."""
        self._left = min(self._burst, self._left + (now - self._at) / self._refill_s)
        self._at = now
        if self._left < 1:
            return (1 - self._left) * self._refill_s
        self._left -= 1
        return 0.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An event to send: what it needs of the job, and not the job, of which thousands may wait here."""

    namespace: str
    name: str
    uid: str
    event: Event
    at: datetime


class EventSink:
    """Posts events; `identity` is the operator's own name."""

    def __init__(
        self,
        client: Client,
        *,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._identity = identity[:128]
        self._clock = clock
        self._now = now
        self._waiting: deque[_Waiting] = deque()
        self._series: OrderedDict[str, _Series] = OrderedDict()
        self._allowances: dict[str, _Allowance] = {}
        self._total = _Allowance(TOTAL_BURST, TOTAL_REFILL_S, clock())
        self._wake = asyncio.Event()
        self.dropped = 0

    def publish(self, job: Job, event: Event) -> None:
        """Send it some time, if there is room."""
        if len(self._waiting) >= MAX_WAITING or not self._allow(job.uid):
            self.dropped += 1
            return
        self._waiting.append(_Waiting(job.namespace, job.name, job.uid, event, self._now()))
        self._wake.set()

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._allowances.pop(uid, None)

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            if wait_s := self._total.wait_s(self._clock()):
                await asyncio.sleep(wait_s)
                continue
            item = self._waiting.popleft()
            try:
                await self._send(item)
            except KubeError as error:
                self.dropped += 1
                logger.debug("an event of %s/%s was not posted: %s", item.namespace, item.name, error)

    async def _send(self, item: _Waiting) -> None:
        key = f"{item.uid}/{item.event.type}/{item.event.reason}/{item.event.message}"
        series = self._series.pop(key, None)
        now = self._clock()
        if series is not None and now - series.last < SERIES_S:
            count = series.count + 1
            observed = {"series": {"count": count, "lastObservedTime": _micro_time(item.at)}}
            try:
                await self._client.merge(EVENTS, item.namespace, series.name, observed)
            except NotFoundError:
                series = None
            else:
                self._remember(key, _Series(series.name, count, now))
                return
        manifest = self._manifest(item, key)
        await self._client.create(EVENTS, item.namespace, manifest)
        self._remember(key, _Series(manifest["metadata"]["name"], 1, now))

    def _remember(self, key: str, series: _Series) -> None:
        self._series[key] = series
        if len(self._series) > MAX_SERIES:
            self._series.popitem(last=False)

    def _allow(self, uid: str) -> bool:
        now = self._clock()
        allowance = self._allowances.setdefault(uid, _Allowance(BURST, REFILL_S, now))
        return allowance.wait_s(now) == 0

    def _manifest(self, item: _Waiting, key: str) -> JsonObject:
        unique = hashlib.sha256(f"{key}/{item.at.isoformat()}/{self._identity}".encode()).hexdigest()[:16]
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {
                "name": f"{item.name}.{unique}",
                "namespace": item.namespace,
                "labels": {LABEL_MANAGED_BY: MANAGED_BY},
            },
            "eventTime": _micro_time(item.at),
            "reportingController": MANAGER,
            "reportingInstance": self._identity,
            "action": ACTION,
            "type": item.event.type,
            "reason": item.event.reason,
            "note": item.event.message[:MAX_NOTE],
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "namespace": item.namespace,
                "name": item.name,
                "uid": item.uid,
            },
        }


def _micro_time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
