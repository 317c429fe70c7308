"""The jobs as the operator knows them, and the audit that finds what the watch has missed.

kopf delivers changes (`kopf_watch`); the answers to our own status writes come in here as well, so that the
next decision builds on them, and the echo of such a write is recognised by its version and costs nothing.

kopf says nothing of jobs that vanished while its watch was broken. The audit lists all jobs once a minute
by their metadata alone; a difference that is still there at the next audit is made good with a read of that
job, and counted: a watch that keeps missing changes is dead, and `/healthz` says so.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from trimtab_operator.adapter.trim import StatusError, trim_job, version_number
from trimtab_operator.kube.client import Client
from trimtab_operator.kube.errors import JsonObject, KubeError, NotFoundError
from trimtab_operator.kube.resources import JOBS
from trimtab_operator.model.observed import Job

logger = logging.getLogger(__name__)

AUDIT_S: Final = 60.0


class JobCache:
    """Jobs by uid. `changed(uid)` is called where the newest state is not one that we wrote ourselves."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._jobs: dict[str, Job] = {}
        self._unread: dict[str, str] = {}
        """uid -> version of jobs whose status cannot be read."""
        self._writing: set[str] = set()
        self._parked: dict[str, JsonObject] = {}
        """What came in of a job while it was being written."""

    def get(self, uid: str) -> Job | None:
        """A job; None: it is gone, or cannot be read."""
        return self._jobs.get(uid)

    def all(self) -> Iterable[Job]:
        """Every job that can be read."""
        return self._jobs.values()

    def put(self, raw: JsonObject) -> None:
        """Take the newest state of a job; an older one, or the echo of our own write, changes nothing."""
        metadata = raw["metadata"]
        if metadata["uid"] in self._writing:
            self._parked[metadata["uid"]] = raw
            return
        if not self._is_news(metadata["uid"], metadata["resourceVersion"]):
            return
        try:
            job = trim_job(raw)
        except StatusError as error:
            logger.error("%s; the job is left alone", error)
            self.remove(metadata["uid"])
            self._unread[metadata["uid"]] = metadata["resourceVersion"]
            return
        self._unread.pop(job.uid, None)
        self._keep(job)
        self._changed(job.uid)

    @contextlib.contextmanager
    def writing(self, uid: str) -> Iterator[None]:
        """While a job is written: the echo may be here before the answer is, and is to be known as such."""
        self._writing.add(uid)
        try:
            yield
        finally:
            self._writing.discard(uid)
            parked = self._parked.pop(uid, None)
            if parked is not None:
                self.put(parked)

    def put_own(self, raw: JsonObject) -> None:
        """Take the answer to our own write. One that comes after the job's end does not bring it back."""
        metadata = raw["metadata"]
        if metadata["uid"] in self._jobs and self._is_news(metadata["uid"], metadata["resourceVersion"]):
            self._keep(trim_job(raw))

    def remove(self, uid: str) -> None:
        """The job is gone."""
        self._unread.pop(uid, None)
        self._parked.pop(uid, None)
        if self._jobs.pop(uid, None) is not None:
            self._changed(uid)

    def versions(self) -> dict[str, str]:
        """Of everything that was delivered: uid -> version."""
        return {uid: job.resource_version for uid, job in self._jobs.items()} | self._unread

    def _keep(self, job: Job) -> None:
        """One copy of a spec for each job, its texts shared with all others: specs take much memory."""
        old = self._jobs.get(job.uid)
        same = old is not None and old.generation == job.generation and old.spec == job.spec
        self._jobs[job.uid] = replace(job, spec=old.spec if old is not None and same else _shared(job.spec))

    def _is_news(self, uid: str, version: str) -> bool:
        known = self._jobs.get(uid)
        return known is None or version_number(known.resource_version) < version_number(version)


def _shared(value: Any) -> Any:
    """The same JSON, with every text in it held once in this process."""
    match value:
        case dict():
            return {sys.intern(name): _shared(member) for name, member in value.items()}
        case list():
            return [_shared(item) for item in value]
        case str():
            return sys.intern(value)
        case _:
            return value


@dataclass(frozen=True)
class _Listed:
    namespace: str
    name: str
    version: int


class JobAudit:
    """Compares the cache with a list of the API server's, once a minute."""

    def __init__(
        self,
        client: Client,
        cache: JobCache,
        namespaces: Iterable[str | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._cache = cache
        self._namespaces = tuple(namespaces)
        self._clock = clock
        self._listed: dict[str, int] = {}
        """uid -> version, at the audit before."""
        self._vanished: set[str] = set()
        """uids that the watch still had and the audit before did not."""
        self._missing_since: float | None = None

    @property
    def missing_s(self) -> float:
        """For how long every audit has found changes that the watch had missed."""
        return 0.0 if self._missing_since is None else self._clock() - self._missing_since

    async def run(self) -> None:
        """Audit until cancelled."""
        while True:
            await asyncio.sleep(AUDIT_S)
            try:
                await self.audit()
            except KubeError as error:
                logger.warning("listing jobs: %s", error)

    async def audit(self) -> int:
        """Compare once; how many changes had been missed since the audit before."""
        delivered = {uid: version_number(text) for uid, text in self._cache.versions().items()}
        listed = await self._list()
        before, self._listed = self._listed, {uid: item.version for uid, item in listed.items()}
        missed = [uid for uid, version in before.items() if uid in listed and delivered.get(uid, 0) < version]
        missed += [uid for uid in delivered if uid not in listed and uid in self._vanished]
        self._vanished = {uid for uid in delivered if uid not in listed}
        for uid in missed:
            await self._make_good(uid, listed.get(uid))
        if missed:
            logger.warning("the watch of jobs has missed %d changes", len(missed))
            self._missing_since = self._clock() if self._missing_since is None else self._missing_since
        else:
            self._missing_since = None
        return len(missed)

    async def _make_good(self, uid: str, item: _Listed | None) -> None:
        if item is None:
            self._cache.remove(uid)
            return
        try:
            raw = await self._client.get(JOBS, item.namespace, item.name)
        except NotFoundError:
            self._cache.remove(uid)
            return
        if raw["metadata"]["uid"] != uid:
            self._cache.remove(uid)
        self._cache.put(raw)

    async def _list(self) -> dict[str, _Listed]:
        listed = {}
        for namespace in self._namespaces:
            async for page in self._client.pages(JOBS, namespace, metadata_only=True):
                for raw in page.items:
                    metadata = raw["metadata"]
                    listed[metadata["uid"]] = _Listed(
                        metadata["namespace"], metadata["name"], version_number(metadata["resourceVersion"])
                    )
        return listed
