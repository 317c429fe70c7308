"""A pod of a job, from its plan and the resolved spec. Called by the adapter, once per pod.

What the pods of one role share is built once per attempt (`_template`): the operator's own, over it the
platform's pod template, over that the job's. Each pod then gets its place: names, labels, host name and the
variables that tell its processes who they are, last, so that no template changes them.

A manifest shares its parts with those of other pods: it is read and sent, never changed.
"""

import math
from collections import OrderedDict
from typing import Any, Final

from trimtab_operator.builders.code import code_parts
from trimtab_operator.builders.container import main_container
from trimtab_operator.builders.env import identity_env
from trimtab_operator.builders.merge import merge_template
from trimtab_operator.builders.meta import Manifest, owner_references, pod_labels
from trimtab_operator.builders.reserved import RESERVED_ENV
from trimtab_operator.builders.roles import Role, resolved_role
from trimtab_operator.builders.scheduling import scheduling
from trimtab_operator.builders.security import pod_security_context
from trimtab_operator.builders.volumes import volumes
from trimtab_operator.constants import ACTOR, MAIN_CONTAINER
from trimtab_operator.model.plan import PodPlan
from trimtab_operator.model.resolved import Resolved

_GRACE_S: Final = 30
_LONGEST_GRACE_S: Final = 600
_KEPT_TEMPLATES: Final = 64

_templates: OrderedDict[tuple[str, str], tuple[Resolved, Manifest]] = OrderedDict()
"""The templates used last, by (resolved name, role), each with what it was made from."""


def pod_manifest(plan: PodPlan, resolved: Resolved) -> Manifest:
    """The pod."""
    template = _template(resolved, plan.role)
    metadata, spec = template.get("metadata", {}), template["spec"]
    identity = identity_env(plan, resolved)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": plan.name,
            "namespace": resolved.resolved_job.job.metadata.namespace,
            "labels": metadata.get("labels", {}) | pod_labels(plan),
            "annotations": metadata.get("annotations", {}),
            "ownerReferences": owner_references(job=plan.job, uid=plan.job_uid),
        },
        "spec": spec
        | {
            "hostname": plan.hostname,
            "containers": [
                container | {"env": identity + container["env"]}
                if container["name"] == MAIN_CONTAINER
                else container
                for container in spec["containers"]
            ],
        },
    }


def _template(resolved: Resolved, role: str) -> Manifest:
    key = (resolved.name, role)
    known = _templates.get(key)
    if known is not None and (known[0] is resolved or known[0] == resolved):
        _templates.move_to_end(key)
        return known[1]
    template = pod_template(resolved, role)
    _templates[key] = (resolved, template)
    if len(_templates) > _KEPT_TEMPLATES:
        _templates.popitem(last=False)
    return template


def pod_template(resolved: Resolved, role: str) -> Manifest:
    """What all pods of a role are made from: `metadata` and `spec`, the templates merged in."""
    one = resolved_role(resolved, role)
    template: Manifest = {
        "metadata": {"annotations": {"kubectl.kubernetes.io/default-container": MAIN_CONTAINER}},
        "spec": _pod_spec(resolved, one),
    }
    for further in (one.defaults.pod_template, one.spec.pod_template):
        if further:
            template = merge_template(template, further)
    spec = template["spec"]
    ours = {"restartPolicy": "Never", "subdomain": resolved.resolved_job.job.name}
    return template | {"spec": spec | ours | {"containers": _main_first(spec["containers"])}}


def _pod_spec(resolved: Resolved, role: Role) -> dict[str, Any]:
    code = code_parts(resolved, role)
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _grace_s(resolved, role),
        "securityContext": pod_security_context(resolved.settings),
        "containers": [main_container(resolved, role, code)],
        "volumes": [*volumes(resolved, role), *code.volumes],
        **scheduling(resolved, role),
    }
    if code.init_containers:
        spec["initContainers"] = list(code.init_containers)
    return spec


def _grace_s(resolved: Resolved, role: Role) -> int:
    """An actor that is asked to go finishes its step, or falls back, and writes a checkpoint."""
    if role.name != ACTOR:
        return _GRACE_S
    deadlines = resolved.resolved_job.job.spec.deadlines
    return min(_LONGEST_GRACE_S, math.ceil(deadlines.stop_grace_seconds + deadlines.checkpoint_seconds))


def _main_first(containers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The main container before the sidecars, without the variables that each pod gets of its own."""
    main = next(container for container in containers if container["name"] == MAIN_CONTAINER)
    env = [variable for variable in main.get("env", ()) if variable["name"] not in RESERVED_ENV]
    return [main | {"env": env}, *(container for container in containers if container is not main)]
