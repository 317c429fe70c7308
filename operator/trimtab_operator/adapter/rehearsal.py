"""Whether the API server would take what a job is about to be started with: a dry run.

Pod templates, volumes, affinity and egress rules are objects that the CRD does not look into. What is wrong
in them is found here, before anything is made for the job, and said in `Validated`. Called by the observer,
once for each generation of a spec that may be started. Whatever else stands against the objects (a quota, a
webhook, a policy, a name that is taken) may pass: those are met, and told, when the objects are created.
"""

import asyncio
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from trimtab.api import JobError
from trimtab_operator.builders.network_policy import network_policy
from trimtab_operator.builders.pods import pod_manifest
from trimtab_operator.builders.resolve import resolve
from trimtab_operator.constants import COORDINATOR, ROLES
from trimtab_operator.kube.client import Client
from trimtab_operator.kube.errors import (
    AlreadyExistsError,
    ForbiddenError,
    InvalidError,
    JsonObject,
    RefusedError,
)
from trimtab_operator.kube.resources import NETWORK_POLICIES, PODS, Resource
from trimtab_operator.model.observed import Job
from trimtab_operator.model.plan import PodPlan
from trimtab_operator.model.resolved import Resolved, Settings
from trimtab_operator.reconcile.starting import attempt_of

_OF_THE_JOB: Final = ("affinity", "tolerations", "topologySpreadConstraints")
_PLAIN: Final[dict[Resource, JsonObject]] = {
    PODS: {"containers": [{"name": "trimtab", "image": "trimtab"}]},
    NETWORK_POLICIES: {"podSelector": {}},
}
"""Specs with nothing wrong in them."""


async def rehearse(client: Client, job: Job, settings: Settings) -> tuple[str, ...]:
    """What the API server finds wrong, a line for each role and for the policy; KubeError: ask again."""
    roles = tuple(roles_to_try(job.spec, settings))
    rules = bool(job.spec.get("networkPolicy") or settings.egress or settings.metrics_from)
    if not roles and not rules:
        return ()
    try:
        resolved = resolve(job, settings, attempt_of(job, job.status.starts + 1))
    except JobError:
        return ()  # `reconcile` finds and tells it
    tries = [_try(client, PODS, _pod(job, resolved, role), f"the pods of {role}") for role in roles]
    policy = network_policy(resolved) if rules else None
    if policy is not None:
        # A job whose policy is refused later would run without one.
        tries.append(_try(client, NETWORK_POLICIES, policy, "the NetworkPolicy"))
    return tuple(filter(None, await asyncio.gather(*tries)))


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


def _pod(job: Job, resolved: Resolved, role: str) -> JsonObject:
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
    return pod_manifest(plan, resolved)


async def _try(client: Client, resource: Resource, manifest: JsonObject, what: str) -> str:
    """What is wrong in the object, in words; empty: nothing."""
    found = await _refusal(client, resource, manifest)
    if found is None:
        return ""
    if found.code == HTTPStatus.BAD_REQUEST:
        # A webhook that knows no dry run refuses every one of them, as if the object were wrong.
        metadata = {name: manifest["metadata"][name] for name in ("name", "namespace")}
        plain = manifest | {"metadata": metadata, "spec": _PLAIN[resource]}
        if await _refusal(client, resource, plain) is not None:
            return ""
    return f"{what}: {found}"


async def _refusal(client: Client, resource: Resource, manifest: JsonObject) -> InvalidError | None:
    """What is wrong in the object itself; None: nothing, as far as the server says."""
    try:
        await client.create(resource, manifest["metadata"]["namespace"], manifest, dry_run=True)
    except InvalidError as error:
        return error
    except (RefusedError, ForbiddenError, AlreadyExistsError):
        return None
    return None
