"""Puts together what `reconcile` looks at: from the caches, and from the few things that are read on demand.

Read on demand are the resolved spec of the attempt (once per attempt and life of the operator), the access
modes of the claims that a spec names, before a start, and the job's pods, where `reconcile` does not trust
the cache with what it is about to decide. Also decides which coordinator is polled: the one of the newest
incarnation, while it runs.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from trimtab.api.conditions import Phase
from trimtab_operator.adapter.final_word import read_final_word
from trimtab_operator.adapter.memory import JobMemory, Memories
from trimtab_operator.adapter.pods import PodCache
from trimtab_operator.adapter.progress import Coordinators
from trimtab_operator.adapter.rehearsal import rehearse
from trimtab_operator.adapter.trim import KnownPod, version_number
from trimtab_operator.builders.config_map import load_resolved
from trimtab_operator.certs import JobCredentials
from trimtab_operator.constants import COORDINATOR, LABEL_JOB_UID
from trimtab_operator.kube.client import Client
from trimtab_operator.kube.errors import NotFoundError
from trimtab_operator.kube.resources import CLAIMS, CONFIG_MAPS, PODS
from trimtab_operator.model.observed import Job, Observed, Progress
from trimtab_operator.model.resolved import Resolved, Settings
from trimtab_operator.reconcile.finishing import is_finished
from trimtab_operator.reconcile.spec import is_ours, read_spec
from trimtab_operator.reconcile.units import has_ended

CLAIMS_S: Final = 50.0
"""Access modes that were looked up longer ago are looked up again: a claim is replaced by one of its name."""


class Observer:
    """One for all jobs."""

    def __init__(
        self,
        client: Client,
        *,
        pods: PodCache,
        coordinators: Coordinators,
        memories: Memories,
        settings: Settings,
        credentials: Callable[[Job], JobCredentials],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._pods = pods
        self._coordinators = coordinators
        self._memories = memories
        self._settings = settings
        self._credentials = credentials
        self._now = now
        self._clock = clock

    async def look(self, job: Job, *, pods_listed: bool = False) -> Observed:
        """Everything about one job, as of now; `pods_listed`: after `list_pods`."""
        memory = self._memories.of(job.uid)
        # A pod of another namespace that claims to be of this job is somebody's attempt to be believed.
        pods = [known for known in self._pods.of_job(job.uid) if known.namespace == job.namespace]
        return Observed(
            job=job,
            pods=tuple(known.pod for known in pods),
            pods_listed=pods_listed,
            progress=self._progress(job, pods),
            resolved=await self._resolved(job, memory),
            claims=await self._claims(job, memory),
            rehearsal=await self._rehearsal(job, memory),
            settings=self._settings,
            refused=memory.refused,
        )

    async def list_pods(self, job: Job) -> None:
        """Bring the cache up to what the API server has of the job's pods at this moment."""
        seen: set[str] = set()
        version = ""
        selector = f"{LABEL_JOB_UID}={job.uid}"
        async for page in self._client.pages(PODS, job.namespace, label_selector=selector):
            version = page.resource_version
            for raw in page.items:
                known = self._pods.put(raw)
                if known is not None:
                    seen.add(known.pod.uid)
        self._pods.keep_only(seen, namespace=job.namespace, version=version_number(version), job_uid=job.uid)

    def _progress(self, job: Job, pods: Iterable[KnownPod]) -> Progress | None:
        attempt = job.status.attempt
        mine = [known for known in pods if known.pod.role == COORDINATOR and known.pod.attempt == attempt]
        if not mine or is_finished(job.status):
            self._coordinators.drop(job.uid)
            return None
        newest = max(mine, key=lambda known: known.pod.incarnation)
        if has_ended(newest.pod):
            self._coordinators.rest(job.uid)
        elif newest.address and newest.pod.phase == "Running":
            self._coordinators.follow(job.uid, newest, lambda: self._credentials(job))
        words = {known.pod.uid: read_final_word(known.pod, self._now()) for known in mine}
        complete = next((word for word in words.values() if word and word.phase == Phase.COMPLETE), None)
        return complete or words[newest.pod.uid] or self._coordinators.latest(job.uid)

    async def _resolved(self, job: Job, memory: JobMemory) -> Resolved | None:
        state = job.status.resolved
        if state is None or is_finished(job.status):
            memory.resolved = None
        elif memory.resolved is None or memory.resolved.name != state.name:
            try:
                stored = await self._client.get(CONFIG_MAPS, job.namespace, state.name)
            except NotFoundError:
                memory.resolved = None
            else:
                memory.resolved = load_resolved(stored)
        return memory.resolved

    async def _claims(self, job: Job, memory: JobMemory) -> Mapping[str, tuple[str, ...]] | None:
        """Looked up anew for each generation that the job is about to start from, and after a while."""
        now = self._clock()
        if not _is_about_to_start(job):
            return None
        old = memory.claims_generation != job.generation or now - memory.claims_at >= CLAIMS_S
        if memory.claims is None or old:
            found: dict[str, tuple[str, ...]] = {}
            for name in read_spec(job).claims:
                try:
                    claim = await self._client.get(CLAIMS, job.namespace, name)
                except NotFoundError:
                    continue
                found[name] = tuple(claim.get("spec", {}).get("accessModes") or ())
            memory.claims, memory.claims_generation, memory.claims_at = found, job.generation, now
        return memory.claims

    async def _rehearsal(self, job: Job, memory: JobMemory) -> tuple[str, ...]:
        """Asked anew for each generation that the job is about to start from."""
        if not _is_about_to_start(job):
            return ()
        if memory.rehearsed_generation != job.generation:
            memory.rehearsal = await rehearse(self._client, job, self._settings)
            memory.rehearsed_generation = job.generation
        return memory.rehearsal


def _is_about_to_start(job: Job) -> bool:
    """For the first time, or after it was held."""
    status = job.status
    if job.deleted is not None or is_finished(status) or job.spec.get("suspend") or not is_ours(job.spec):
        return False
    return status.starts == 0 or status.stop is not None
