"""What only the leading operator has: caches, their watches, the queue and the controller, wired together.

    kopf (jobs), PodWatch (pods), Coordinators (progress) --change--> queue --> Controller.look(job)

The pods of all jobs are listed before kopf delivers the first job, so that no decision is made on a job whose
pods are not known yet.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from trimtab_operator.adapter.apply import Hands
from trimtab_operator.adapter.children import Children
from trimtab_operator.adapter.controller import Controller
from trimtab_operator.adapter.events import EventSink
from trimtab_operator.adapter.health import (
    JOBS_MISSED_S,
    PODS_SILENT_S,
    QUEUE_STUCK_S,
    HealthServer,
    limit_check,
)
from trimtab_operator.adapter.jobs import JobAudit, JobCache
from trimtab_operator.adapter.kopf_watch import KopfWatch
from trimtab_operator.adapter.memory import Memories
from trimtab_operator.adapter.metrics import OperatorMetrics
from trimtab_operator.adapter.observe import Observer
from trimtab_operator.adapter.pods import PodCache, PodWatch
from trimtab_operator.adapter.progress import Coordinators
from trimtab_operator.adapter.queue import KeyedQueue
from trimtab_operator.adapter.settings import Options
from trimtab_operator.adapter.trim import KnownPod
from trimtab_operator.certs import JobCredentials, MasterKey
from trimtab_operator.kube.client import Client
from trimtab_operator.kube.config import ClusterConfig
from trimtab_operator.kube.errors import JsonObject, KubeError
from trimtab_operator.model.observed import Job
from trimtab_operator.reconcile.units import has_ended

PODS_SETTLE_S: Final = 0.4
"""Pods are placed and started several at a time: one look is enough. One that ends is looked at at once."""
LISTED_WITHIN_S: Final = 300.0
DRAIN_S: Final = 3.0


class PartEndedError(KubeError):
    """A part of the operator that runs for ever has ended."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What the process has, leading or not."""

    options: Options
    config: ClusterConfig
    identity: str
    metrics: OperatorMetrics
    health: HealthServer

    @property
    def namespaces(self) -> tuple[str | None, ...]:
        """What is listed and watched: each namespace that is served, or None for all at once."""
        return self.options.namespaces or (None,)


class Leader:
    """The parts that only a leader has, wired together."""

    def __init__(self, frame: Frame, client: Client, key: MasterKey) -> None:
        options, metrics = frame.options, frame.metrics
        self._frame = frame
        self._client = client
        self._key = key
        self._settings = options.settings
        self._queue: KeyedQueue[str] = KeyedQueue(self._look, on_run=metrics.note_run, name=self._name)
        self._jobs = JobCache(self._queue.add)
        self._pods = PodCache(self._pod_changed)
        self._pod_watches = [PodWatch(client, self._pods, namespace) for namespace in frame.namespaces]
        self._audit = JobAudit(client, self._jobs, frame.namespaces)
        self._coordinators = Coordinators(
            changed=self._queue.add, on_poll=lambda code: metrics.polls.labels(code).inc()
        )
        self._events = EventSink(client, identity=frame.identity)
        self._kopf = KopfWatch(frame.config, namespaces=options.namespaces, deliver=self._deliver)
        self._controller = self._make_controller()
        self._expose()

    def _make_controller(self) -> Controller:
        memories = Memories()
        observer = Observer(
            self._client,
            pods=self._pods,
            coordinators=self._coordinators,
            memories=memories,
            settings=self._settings,
            credentials=self._credentials,
        )
        hands = Hands(
            self._client,
            jobs=self._jobs,
            pods=self._pods,
            children=Children(self._client, memories=memories, credentials=self._credentials),
            coordinators=self._coordinators,
            memories=memories,
        )
        return Controller(
            self._client,
            jobs=self._jobs,
            observer=observer,
            hands=hands,
            coordinators=self._coordinators,
            events=self._events,
            memories=memories,
            on_pods_created=self._frame.metrics.pods_created_seconds.observe,
        )

    def start(self, start: Callable[[str, Coroutine[Any, Any, Any]], object]) -> None:
        """Start every part; each runs until it is cancelled."""
        for watch in self._pod_watches:
            start("the watch of pods", watch.run())
        start("the audit of jobs", self._audit.run())
        start("the sending of events", self._events.run())
        start("the queue", self._work())

    @property
    def not_ready(self) -> str:
        """What it still waits for; empty: nothing."""
        if not all(watch.synced.is_set() for watch in self._pod_watches):
            return "the pods are not listed yet"
        return "" if self._kopf.started.is_set() else "the watch of jobs has not begun"

    async def _work(self) -> None:
        try:
            async with asyncio.timeout(LISTED_WITHIN_S):
                for watch in self._pod_watches:
                    await watch.synced.wait()
        except TimeoutError:
            raise PartEndedError(f"the pods were not listed within {LISTED_WITHIN_S:.0f} s") from None
        self._kopf.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run())
            group.create_task(self._kopf_ended())

    async def _kopf_ended(self) -> None:
        raise PartEndedError(f"the watch of jobs has ended: {await self._kopf.wait()}")

    async def finish(self) -> None:
        """Begin nothing more, and let what is under way come to its end."""
        with suppress(TimeoutError):
            await self._queue.drain(DRAIN_S)

    async def close(self) -> None:
        """End what the cancelling of tasks does not."""
        await asyncio.gather(self._kopf.stop(), self._coordinators.close())

    async def _look(self, uid: str) -> float | None:
        return await self._controller.look(uid)

    def _name(self, uid: str) -> str:
        job = self._jobs.get(uid)
        return uid if job is None else f"{job.namespace}/{job.name}"

    def _credentials(self, job: Job) -> JobCredentials:
        return JobCredentials(
            self._key,
            job_uid=job.uid,
            namespace=job.namespace,
            job_name=job.name,
            cluster_domain=self._settings.cluster_domain,
        )

    def _deliver(self, kind: str | None, raw: JsonObject) -> None:
        if kind == "DELETED":
            self._jobs.remove(raw["metadata"]["uid"])
        else:
            self._jobs.put(raw)

    def _pod_changed(self, old: KnownPod | None, new: KnownPod | None) -> None:
        known = new or old
        assert known is not None, "a change has a state before or after"
        uid = known.job_uid
        if self._jobs.get(uid) is None:
            return
        self._coordinators.ask_soon(uid)
        if new is None or has_ended(new.pod):
            self._queue.add(uid)
        else:
            self._queue.add_after(uid, PODS_SETTLE_S)

    def _expose(self) -> None:
        metrics, health = self._frame.metrics, self._frame.health
        metrics.queue_depth.set_function(lambda: len(self._queue))
        metrics.queue_waiting.set_function(lambda: self._queue.waiting)
        metrics.events_dropped.set_function(lambda: self._events.dropped)
        metrics.count_from(
            lambda: [(job.namespace, job.status.phase or "New") for job in self._jobs.all()],
            lambda: [(known.pod.role, known.pod.phase) for known in self._pods.all()],
        )
        health.checks += [
            limit_check(
                "pods",
                lambda: max(watch.silent_s for watch in self._pod_watches),
                PODS_SILENT_S,
                "nothing was heard of them for {} s",
            ),
            limit_check(
                "jobs",
                lambda: self._audit.missing_s,
                JOBS_MISSED_S,
                "their watch has missed changes for {} s",
            ),
            limit_check(
                "queue", lambda: self._queue.oldest_s, QUEUE_STUCK_S, "a job has been in it for {} s"
            ),
        ]
