"""What a job's attempt has beside pods: applied when something about it has changed, and every RESYNC_S.

Server-side apply without force: an object of that name that somebody else made, with other values, is a
conflict and stays as it is. A claim holds a user's data and goes with the job that owns it, so it is created
by POST; one that is this job's already is changed only to be larger, as somebody may have enlarged it.
"""

import asyncio
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from trimtab.api.base import quantity_value
from trimtab.api.conditions import ConditionType
from trimtab.api.status import JobStatus
from trimtab_operator.adapter.memory import Memories
from trimtab_operator.builders.children import child_manifests
from trimtab_operator.certs import JobCredentials
from trimtab_operator.constants import REWARD, ROLLOUT
from trimtab_operator.kube.client import Client
from trimtab_operator.kube.errors import AlreadyExistsError, ConflictError, JsonObject, KubeError
from trimtab_operator.kube.resources import CLAIMS, resource_of
from trimtab_operator.model.actions import EnsureChildren
from trimtab_operator.model.observed import Job
from trimtab_operator.reconcile.units import split_name

RESYNC_S: Final = 3600.0
"""A child that somebody removed comes back within this; a thousand jobs' are 5,000 requests."""


class ForeignObjectError(KubeError):
    """An object of a name that the job needs is there, and is not the job's."""


class Children:
    """One for all jobs."""

    def __init__(
        self,
        client: Client,
        *,
        memories: Memories,
        credentials: Callable[[Job], JobCredentials],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._memories = memories
        self._credentials = credentials
        self._clock = clock
        self._now = now

    async def ensure(self, job: Job, action: EnsureChildren) -> None:
        """Make the children what they should be; those that were applied lately for the same are skipped."""
        memory = self._memories.of(job.uid)
        credentials, now = self._credentials(job), self._now()
        wanted = (
            action.resolved.name,
            action.rollout_replicas,
            action.min_rollout_replicas,
            action.reward_replicas,
            action.min_reward_replicas,
            credentials.not_after(now),
        )
        begun = self._clock()
        if memory.children is None and _everybody_registered(job.status):
            # An operator before this one has made them: a thousand jobs are not all applied again at once.
            memory.children, memory.children_at = wanted, begun - random.uniform(0.0, RESYNC_S)  # noqa: S311
        if memory.children == wanted and begun - memory.children_at < RESYNC_S:
            return
        manifests = child_manifests(
            action, secret_data=credentials.secret_data(now), scaled=_scaled(job.status)
        )
        results = await asyncio.gather(
            *(self._apply(job, manifest) for manifest in manifests), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise errors[0]
        memory.children, memory.children_at = wanted, begun

    async def _apply(self, job: Job, manifest: JsonObject) -> None:
        what = f"{manifest['kind']} {manifest['metadata']['name']}"
        resource = resource_of(manifest)
        try:
            if resource == CLAIMS and not await self._may_grow(job, manifest, what):
                return
            await self._client.apply(resource, job.namespace, manifest, force=resource == CLAIMS)
        except ConflictError as error:
            raise ForeignObjectError(f"{what} is not the job's own: {error}") from error

    async def _may_grow(self, job: Job, manifest: JsonObject, what: str) -> bool:
        """Create a claim; True where it is there, this job's and smaller than it should be."""
        try:
            await self._client.create(CLAIMS, job.namespace, manifest)
        except AlreadyExistsError:
            stored = await self._client.get(CLAIMS, job.namespace, manifest["metadata"]["name"])
            check_owner(stored, job, what)
            return _is_smaller(stored, manifest)
        return False


def _scaled(status: JobStatus) -> set[str]:
    """Roles that may have had several replicas, in this start of the job or in one before it."""
    if status.starts > 1:
        return {ROLLOUT, REWARD}
    names = (split_name(unit.name) for unit in status.units)
    return {role for role, replica in names if replica > 0}


def _is_smaller(stored: JsonObject, wanted: JsonObject) -> bool:
    """Whether a claim asks for less than it should; one in units that a job cannot name is large enough."""
    size, enough = (claim["spec"]["resources"]["requests"]["storage"] for claim in (stored, wanted))
    try:
        return quantity_value(size) < quantity_value(enough)
    except (KeyError, ArithmeticError):
        return False


def _everybody_registered(status: JobStatus) -> bool:
    return any(
        item.type == ConditionType.WORKERS_READY and item.status == "True" for item in status.conditions
    )


def check_owner(raw: JsonObject, job: Job, what: str) -> None:
    """ForeignObjectError where the job does not own the object."""
    owners = raw["metadata"].get("ownerReferences") or ()
    if not any(owner.get("uid") == job.uid for owner in owners):
        raise ForeignObjectError(f"there is a {what} which is not the job's")
