"""One look at one job: observe, decide, write, act. The queue's handler.

    look (caches, a read where something is not known) -> reconcile (pure) -> status PUT -> actions, events
      ^-- the job's pods listed and its coordinator asked, --|              |-- conflict: read, decide again
          to be sure of what cannot be taken back                           |-- the job is gone: forget it

Comes back by itself when `reconcile` asks for it, at the latest after RESYNC_S, whatever happens.
"""

import logging
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from trimtab.api.conditions import Phase, Reason
from trimtab.errors import TrimtabError
from trimtab_operator.adapter.apply import Hands, Outcome
from trimtab_operator.adapter.events import EventSink
from trimtab_operator.adapter.jobs import JobCache
from trimtab_operator.adapter.logs import about
from trimtab_operator.adapter.memory import Memories
from trimtab_operator.adapter.observe import Observer
from trimtab_operator.adapter.progress import Coordinators
from trimtab_operator.adapter.queue import RetryError
from trimtab_operator.kube.client import Client
from trimtab_operator.kube.election import boot_clock
from trimtab_operator.kube.errors import ConflictError, NotFoundError, NotLeadingError
from trimtab_operator.kube.resources import JOBS
from trimtab_operator.model.actions import CreatePod, CreateResolved, Decision, EnsureChildren, Event
from trimtab_operator.model.observed import Job
from trimtab_operator.reconcile import reconcile

logger = logging.getLogger(__name__)

RESYNC_S: Final = 1800.0


class Controller:
    """See above."""

    def __init__(
        self,
        client: Client,
        *,
        jobs: JobCache,
        observer: Observer,
        hands: Hands,
        coordinators: Coordinators,
        events: EventSink,
        memories: Memories,
        on_pods_created: Callable[[float], None] = lambda seconds: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._observer = observer
        self._hands = hands
        self._coordinators = coordinators
        self._events = events
        self._memories = memories
        self._on_pods_created = on_pods_created
        self._now = now

    async def look(self, uid: str) -> float | None:
        """Bring one job forward; after how many seconds to look again, None where the job is gone."""
        job = self._jobs.get(uid)
        if job is None:
            self._forget(uid)
            return None
        with about(f"{job.namespace}/{job.name}"):
            try:
                return await self._bring_forward(job)
            except (NotLeadingError, RetryError):
                raise
            except TrimtabError as error:
                logger.warning("%s", error)
                raise RetryError(str(error)) from error

    async def _bring_forward(self, job: Job) -> float | None:
        observed = await self._observer.look(job)
        decided_at = boot_clock()
        decision = reconcile(observed, self._now())
        if decision.list_pods or _weighs(job, decision):
            await self._observer.list_pods(job)
            await self._coordinators.ask_now(job.uid)
            observed = await self._observer.look(job, pods_listed=True)
            decided_at = boot_clock()
            decision = reconcile(observed, self._now())
        if decision.status != job.status:
            try:
                await self._hands.write_status(job, decision.status)
            except ConflictError:
                return await self._read_again(job)
            except NotFoundError:
                self._jobs.remove(job.uid)
                return None
        for event in decision.events:
            self._events.publish(job, event)
        outcome = await self._hands.carry_out(job, decision.actions, decided_at=decided_at)
        for text in outcome.told:
            self._events.publish(job, Event(type="Warning", reason=Reason.OBJECT_NOT_MADE, message=text))
        self._remember(job, decision, outcome)
        if outcome.failed:
            raise RetryError(outcome.failed[0], within_s=decision.requeue_after_s)
        if outcome.look_again or self._memories.of(job.uid).refused != observed.refused:
            return 0.0
        resync_s = RESYNC_S * random.uniform(0.9, 1.1)  # noqa: S311 -- spreads the resyncs
        return min(resync_s, resync_s if decision.requeue_after_s is None else decision.requeue_after_s)

    async def _read_again(self, job: Job) -> float | None:
        """Somebody changed the job after it was observed, and the watch has not said so yet."""
        try:
            raw = await self._client.get(JOBS, job.namespace, job.name)
        except NotFoundError:
            self._jobs.remove(job.uid)
            return None
        if raw["metadata"]["uid"] != job.uid:
            self._jobs.remove(job.uid)
        self._jobs.put(raw)
        return 0.0

    def _remember(self, job: Job, decision: Decision, outcome: Outcome) -> None:
        memory = self._memories.of(job.uid)
        creates = [action for action in decision.actions if isinstance(action, CreatePod)]
        if creates:
            memory.refused_pod = outcome.refused
        if any(isinstance(action, EnsureChildren | CreateResolved) for action in decision.actions):
            memory.refused_child = outcome.refused_child
        whole = bool(creates) and not outcome.failed and not outcome.refused
        if whole and not memory.pods_measured and decision.status.starts == 1:
            memory.pods_measured = True
            self._on_pods_created(time.monotonic() - memory.first_seen)

    def _forget(self, uid: str) -> None:
        self._coordinators.drop(uid)
        self._events.forget(uid)
        self._memories.forget(uid)


def _weighs(job: Job, decision: Decision) -> bool:
    """Whether a restart is counted, or the job given up: that depends on how far it has come by now."""
    before, after = job.status, decision.status
    gives_up = after.phase == Phase.FAILED and before.phase != Phase.FAILED
    return gives_up or after.restarts > before.restarts
