"""Whether the API server would take the pods that a job is about to be started with: a dry run of one a role.

Pod templates, volumes and affinity are objects that the CRD does not look into. What is wrong in them is
found here, before anything is made for the job, and said in `Validated`. Called by the observer, once for
each generation of a spec that may be started. Whatever else stands against the pods (a quota, a webhook, a
policy, a name that is taken) may pass: those are met, and told, when the pods are created.
"""

import asyncio
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from trimtab.api import JobError
from trimtab_operator.builders.pods import pod_manifest
from trimtab_operator.builders.resolve import resolve
from trimtab_operator.constants import COORDINATOR, ROLES
from trimtab_operator.kube.client import Client
from trimtab_operator.kube.errors import ApiError, ForbiddenError, InvalidError, JsonObject, RefusedError
from trimtab_operator.kube.resources import PODS
from trimtab_operator.model.observed import Job
from trimtab_operator.model.plan import PodPlan
from trimtab_operator.model.resolved import Resolved, Settings
from trimtab_operator.reconcile.starting import attempt_of

_OF_THE_JOB: Final = ("affinity", "tolerations", "topologySpreadConstraints")


async def pod_problems(client: Client, job: Job, settings: Settings) -> tuple[str, ...]:
    """What the API server finds wrong in the job's pods, a line for each role; KubeError: ask again."""
    roles = tuple(roles_to_try(job.spec, settings))
    if not roles:
        return ()
    try:
        resolved = resolve(job, settings, attempt_of(job, job.status.starts + 1))
    except JobError:
        return ()  # `reconcile` finds and tells it
    answers = await asyncio.gather(*(_try(client, job, resolved, role) for role in roles))
    return tuple(answer for answer in answers if answer)


def roles_to_try(spec: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Those whose pods have something that nobody has looked into yet."""
    of_roles, scheduling = spec.get("roles") or {}, spec.get("scheduling") or {}
    everywhere = bool(spec.get("volumes")) or any(scheduling.get(name) for name in _OF_THE_JOB)
    for role in ROLES:
        mine, platform = of_roles.get(role) or {}, settings.roles.get(role)
        from_elsewhere = any("valueFrom" in variable for variable in mine.get("env") or ())
        templates = mine.get("podTemplate") or (platform and platform.pod_template)
        if templates or from_elsewhere or (everywhere and role == COORDINATOR):
            yield role


async def _try(client: Client, job: Job, resolved: Resolved, role: str) -> str:
    plan = PodPlan(
        job=job.name,
        job_uid=job.uid,
        group=role,
        role=role,
        replica=0,
        node=0,
        incarnation=1,
        attempt=resolved.attempt,
    )
    pod = pod_manifest(plan, resolved)
    found = await _refusal(client, job, pod)
    if found is None or (found.code == HTTPStatus.BAD_REQUEST and not await _takes_any(client, job, pod)):
        return ""
    return f"the pods of {role}: {found}"


async def _refusal(client: Client, job: Job, pod: JsonObject) -> InvalidError | None:
    """What is wrong in the pod itself; None: nothing, as far as the server says."""
    try:
        await client.create(PODS, job.namespace, pod, dry_run=True)
    except InvalidError as error:
        return error
    except ApiError as error:
        if isinstance(error, RefusedError | ForbiddenError) or error.code == HTTPStatus.CONFLICT:
            return None
        raise
    return None


async def _takes_any(client: Client, job: Job, pod: JsonObject) -> bool:
    """Whether dry runs work here at all: a webhook that knows none refuses every one, as if it were wrong."""
    plain = {"name": "trimtab", "image": "trimtab"}
    metadata = {"name": pod["metadata"]["name"], "namespace": job.namespace}
    return await _refusal(client, job, pod | {"metadata": metadata, "spec": {"containers": [plain]}}) is None
