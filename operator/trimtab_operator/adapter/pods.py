"""The pods of all jobs: an own paged, trimmed list and watch, and an index by the job's uid.

    list in pages --> watch from there --(410: too old)--> list again
                      ^        |--(broken, silent, or ended by the server)--> watch on from where it stood
                      |________|

One `PodWatch` per namespace (or one for all) feeds one `PodCache`; both run on the operator's loop. The
answers to our own creates and deletes go into the cache as well, so that a decision made before the watch
has caught up does not create a pod twice. Versions keep the newest state of a pod; pods that are gone are
remembered for a while, so that a late answer does not bring one back.
"""

import asyncio
import logging
import random
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from trimtab_operator.adapter.trim import KnownPod, trim_pod, version_number
from trimtab_operator.constants import LABEL_MANAGED_BY, MANAGED_BY
from trimtab_operator.kube.client import Client
from trimtab_operator.kube.errors import GoneError, JsonObject, KubeError
from trimtab_operator.kube.resources import PODS

logger = logging.getLogger(__name__)

SELECTOR: Final = f"{LABEL_MANAGED_BY}={MANAGED_BY}"
REMEMBERED_GONE: Final = 20_000
RETRY_S: Final = 0.2
MAX_RETRY_S: Final = 10.0
RELIST_AFTER: Final = 3


class PodCache:
    """What is known of the pods. `changed(old, new)` is told each change; one of the two may be None."""

    def __init__(self, changed: Callable[[KnownPod | None, KnownPod | None], None]) -> None:
        self._changed = changed
        self._by_job: dict[str, dict[str, KnownPod]] = defaultdict(dict)
        self._gone: OrderedDict[str, None] = OrderedDict()

    def of_job(self, job_uid: str) -> list[KnownPod]:
        """The pods of a job, those being deleted included."""
        return list(self._by_job.get(job_uid, {}).values())

    def all(self) -> Iterable[KnownPod]:
        """Every pod."""
        for pods in self._by_job.values():
            yield from pods.values()

    def put(self, raw: JsonObject) -> KnownPod | None:
        """Take the newest state of a pod; older news are ignored. The pod, where it is one of ours."""
        new = trim_pod(raw)
        if new is None or new.pod.uid in self._gone:
            return new
        pods = self._by_job[new.job_uid]
        old = pods.get(new.pod.uid)
        if old is None or old.version < new.version:
            pods[new.pod.uid] = new
            if old is None or old.pod != new.pod or old.address != new.address:
                self._changed(old, new)
        return new

    def remove(self, raw: JsonObject) -> None:
        """A pod is gone; its last state is in `raw`."""
        last = trim_pod(raw)
        if last is not None:
            self.remove_known(last.job_uid, last.pod.uid)

    def remove_known(self, job_uid: str, uid: str) -> None:
        """A pod is gone."""
        self._gone[uid] = None
        if len(self._gone) > REMEMBERED_GONE:
            self._gone.popitem(last=False)
        pods = self._by_job.get(job_uid)
        old = pods.pop(uid, None) if pods is not None else None
        if pods is not None and not pods:
            del self._by_job[job_uid]
        if old is not None:
            self._changed(old, None)

    def keep_only(
        self, seen: set[str], *, namespace: str | None, version: int, job_uid: str | None = None
    ) -> None:
        """After a list of a namespace (None: all): pods that were not in it, and are not newer, are gone.

        `job_uid`: the list was of that job's pods alone.
        """
        missing = [
            known
            for known in (self.all() if job_uid is None else self.of_job(job_uid))
            if known.pod.uid not in seen and known.version <= version and namespace in (None, known.namespace)
        ]
        for known in missing:
            self.remove_known(known.job_uid, known.pod.uid)


class PodWatch:
    """Keeps the cache up to date for one namespace, or all."""

    def __init__(
        self,
        client: Client,
        cache: PodCache,
        namespace: str | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._cache = cache
        self._namespace = namespace
        self._clock = clock
        self._heard_at = clock()
        self.synced = asyncio.Event()
        """The first list is complete."""

    @property
    def silent_s(self) -> float:
        """How long nothing was heard of the server."""
        return self._clock() - self._heard_at

    async def run(self) -> None:
        """List and watch until cancelled."""
        pause_s, failures = RETRY_S, 0
        version = ""
        while True:
            try:
                if not version:
                    version = await self._list()
                    self.synced.set()
                async for event in self._client.watch(
                    PODS, self._namespace, since=version, label_selector=SELECTOR
                ):
                    self._heard_at = self._clock()
                    pause_s, failures = RETRY_S, 0
                    version = str(event.object.get("metadata", {}).get("resourceVersion") or version)
                    if event.type in ("ADDED", "MODIFIED"):
                        self._cache.put(event.object)
                    elif event.type == "DELETED":
                        self._cache.remove(event.object)
            except GoneError:
                logger.info("the watch of pods is too old; listing them again")
                version = ""
            except KubeError as error:
                logger.warning("watching pods: %s", error)
                failures += 1
                if failures >= RELIST_AFTER:
                    version = ""  # one that the server does not have would be waited for in silence
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))  # noqa: S311 -- spreads retries
            pause_s = min(pause_s * 2, MAX_RETRY_S)

    async def _list(self) -> str:
        seen: set[str] = set()
        version = ""
        async for page in self._client.pages(PODS, self._namespace, label_selector=SELECTOR):
            self._heard_at = self._clock()
            version = page.resource_version
            for raw in page.items:
                known = self._cache.put(raw)
                if known is not None:
                    seen.add(known.pod.uid)
        self._cache.keep_only(seen, namespace=self._namespace, version=version_number(version))
        return version
