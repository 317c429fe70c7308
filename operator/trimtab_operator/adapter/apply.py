"""Carries out what `reconcile` has decided: the status first, then the actions, in parallel.

The status goes with the resourceVersion that was observed, so that of two operators that decided on the same
state one is refused and looks again. The resolved spec is stored before all that refers to it; the rest has
no order. Every action is safe to repeat, and what failed is repeated by deciding again.

A pod is created within ACT_WITHIN_S of the status write that it follows, or not at all: `reconcile` counts
on a pod that is not there after that time being created by nobody.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from trimtab.api.status import JobStatus
from trimtab_operator.adapter.children import Children, ForeignObjectError, check_owner
from trimtab_operator.adapter.jobs import JobCache
from trimtab_operator.adapter.memory import Memories
from trimtab_operator.adapter.pods import PodCache
from trimtab_operator.adapter.progress import Coordinators
from trimtab_operator.adapter.trim import trim_pod
from trimtab_operator.builders.config_map import load_resolved, resolved_manifest
from trimtab_operator.builders.pods import pod_manifest
from trimtab_operator.constants import LABEL_JOB_UID, LABEL_REPLICA, LABEL_ROLE
from trimtab_operator.kube.client import Client
from trimtab_operator.kube.election import boot_clock
from trimtab_operator.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    JsonObject,
    KubeError,
    NotFoundError,
    NotLeadingError,
    RefusedError,
    TransportError,
)
from trimtab_operator.kube.resources import CONFIG_MAPS, JOBS, PODS
from trimtab_operator.model.actions import (
    ACT_WITHIN_S,
    Action,
    CreatePod,
    CreateResolved,
    DeleteJob,
    DeletePod,
    EnsureChildren,
    Resize,
    StopTraining,
)
from trimtab_operator.model.observed import Job
from trimtab_operator.reconcile.units import has_ended

logger = logging.getLogger(__name__)

AGAIN_S: Final = 0.3
"""Before a create that got no answer is sent again, within its time."""


@dataclass
class Outcome:
    """What came of the actions."""

    failed: list[str] = field(default_factory=list)
    """What did not succeed, in words; all of it is decided anew."""
    refused: str = ""
    """The API server's words where it refused a pod; `reconcile` says when to ask again."""
    refused_child: str = ""
    """The same for another object; that one is asked for again like whatever failed."""
    told: list[str] = field(default_factory=list)
    """What of all that the job's people can do something about."""
    look_again: bool = False
    """Whether something was found out that the decision did not know."""


class Hands:
    """One for all jobs."""

    def __init__(
        self,
        client: Client,
        *,
        jobs: JobCache,
        pods: PodCache,
        children: Children,
        coordinators: Coordinators,
        memories: Memories,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._pods = pods
        self._children = children
        self._coordinators = coordinators
        self._memories = memories
        self._clock = clock

    async def write_status(self, job: Job, status: JobStatus) -> None:
        """PUT the status; ConflictError where the job has changed since it was observed."""
        with self._jobs.writing(job.uid):
            raw = await self._client.replace(
                JOBS,
                job.namespace,
                {
                    "apiVersion": JOBS.api_version,
                    "kind": JOBS.kind,
                    "metadata": {
                        "name": job.name,
                        "namespace": job.namespace,
                        "uid": job.uid,
                        "resourceVersion": job.resource_version,
                    },
                    "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
                },
                subresource="status",
            )
            self._jobs.put_own(raw)

    async def carry_out(self, job: Job, actions: Iterable[Action], *, decided_at: float) -> Outcome:
        """Do all of it; what fails does not keep the rest from being done."""
        outcome = Outcome()
        first = [action for action in actions if isinstance(action, CreateResolved)]
        rest = [action for action in actions if not isinstance(action, CreateResolved)]
        for action in first:
            await self._attempt(outcome, "resolved spec", self._create_resolved(job, action, outcome))
        if outcome.failed or outcome.look_again:
            return outcome
        deadline = decided_at + ACT_WITHIN_S
        await asyncio.gather(*(self._one(job, action, outcome, deadline) for action in rest))
        return outcome

    def _one(self, job: Job, action: Action, outcome: Outcome, deadline: float) -> Awaitable[None]:
        match action:
            case CreatePod():
                doing = self._create_pod(job, action, outcome, deadline)
                return self._attempt(outcome, f"pod {action.plan.name}", doing, pod=True)
            case DeletePod():
                return self._attempt(outcome, f"deletion of pod {action.name}", self._delete_pod(job, action))
            case EnsureChildren():
                return self._attempt(outcome, "children", self._children.ensure(job, action))
            case StopTraining():
                stop = self._coordinators.stop(job.uid, reason=action.reason, grace_s=action.grace_s)
                return self._attempt(outcome, "stop", stop)
            case Resize():
                return self._attempt(outcome, "resize", self._resize(job, action))
            case DeleteJob():
                return self._attempt(outcome, "deletion of the job", self._delete_job(job, action))
            case CreateResolved():
                raise AssertionError("done before")

    async def _attempt(
        self, outcome: Outcome, what: str, doing: Awaitable[None], *, pod: bool = False
    ) -> None:
        try:
            await doing
        except NotLeadingError:
            raise
        except RefusedError as error:
            logger.warning("%s: refused: %s", what, error)
            if pod:
                outcome.refused = str(error)
            else:
                outcome.refused_child = f"{what}: {error}"
                outcome.failed.append(outcome.refused_child)
                outcome.told.append(outcome.refused_child)
        except KubeError as error:
            outcome.failed.append(f"{what}: {error}")
            logger.warning("%s: %s", what, error)
            if isinstance(error, ForeignObjectError):
                outcome.told.append(f"{what}: {error}")

    async def _create_resolved(self, job: Job, action: CreateResolved, outcome: Outcome) -> None:
        manifest = resolved_manifest(action.resolved)
        memory = self._memories.of(job.uid)
        try:
            await self._client.create(CONFIG_MAPS, job.namespace, manifest)
            memory.resolved = action.resolved
        except AlreadyExistsError:
            stored = await self._client.get(CONFIG_MAPS, job.namespace, action.resolved.name)
            check_owner(stored, job, f"ConfigMap {action.resolved.name}")
            memory.resolved = load_resolved(stored)
            outcome.look_again = memory.resolved != action.resolved

    async def _create_pod(self, job: Job, action: CreatePod, outcome: Outcome, deadline: float) -> None:
        if action.exclusive and await self._another_runs(job, action):
            outcome.look_again = True
            return
        manifest = pod_manifest(action.plan, action.resolved)
        while True:
            left_s = deadline - self._clock()
            if left_s <= 0:
                raise TransportError("not created in time")
            try:
                async with asyncio.timeout(left_s):
                    raw = await self._client.create(PODS, job.namespace, manifest)
            except AlreadyExistsError:
                raw = await self._client.get(PODS, job.namespace, action.plan.name)
                known = trim_pod(raw)
                if known is None or known.job_uid != job.uid:
                    raise ForeignObjectError("there is a pod of that name which is not the job's") from None
            except TimeoutError:
                raise TransportError("not created in time") from None
            except TransportError as error:
                logger.info("pod %s: %s; trying again", action.plan.name, error)
                await asyncio.sleep(AGAIN_S)
                continue
            else:
                logger.info("created pod %s", action.plan.name, extra={"role": action.plan.role})
            self._pods.put(raw)
            return

    async def _another_runs(self, job: Job, action: CreatePod) -> bool:
        """Whether a pod of another incarnation or attempt of the unit may still run: asked of the server."""
        plan = action.plan
        labels = {LABEL_JOB_UID: job.uid, LABEL_ROLE: plan.role, LABEL_REPLICA: str(plan.replica)}
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        found = False
        async for page in self._client.pages(PODS, job.namespace, label_selector=selector):
            for raw in page.items:
                self._pods.put(raw)
                known = trim_pod(raw)
                same = known is not None and (known.pod.incarnation, known.pod.attempt) == (
                    plan.incarnation,
                    plan.attempt,
                )
                found = found or (known is not None and not same and not has_ended(known.pod))
        return found

    async def _delete_pod(self, job: Job, action: DeletePod) -> None:
        logger.info("deleting pod %s: %s", action.name, action.why)
        try:
            raw: JsonObject = await self._client.delete(
                PODS, job.namespace, action.name, uid=action.uid, grace_s=action.grace_s
            )
        except (NotFoundError, ConflictError):
            self._pods.remove_known(job.uid, action.uid)
            return
        if raw.get("kind") == PODS.kind:
            self._pods.put(raw)

    async def _resize(self, job: Job, action: Resize) -> None:
        await self._coordinators.resize(
            job.uid,
            rollouts=action.rollout_replicas,
            min_rollouts=action.min_rollout_replicas,
            rewards=action.reward_replicas,
            min_rewards=action.min_reward_replicas,
        )
        self._coordinators.ask_soon(job.uid)

    async def _delete_job(self, job: Job, action: DeleteJob) -> None:
        try:
            await self._client.delete(JOBS, job.namespace, job.name, uid=action.uid)
        except (NotFoundError, ConflictError):
            self._jobs.remove(job.uid)
