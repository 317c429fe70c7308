"""What a job and the platform may not say about pods, because it is what makes them a job's pods.

Found when a job is resolved, so that the user reads it in `Validated`, and not in a pod that never works.
Rendering sets the same things last, whatever a template says.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from trimtab.api import JobSpec, Problem
from trimtab_operator.builders.accelerator import resource_name
from trimtab_operator.builders.merge import MergeError, merge_template
from trimtab_operator.builders.roles import role_of
from trimtab_operator.constants import (
    CODE_MOUNT,
    GROUP,
    JOB_MOUNT,
    LABEL_MANAGED_BY,
    MAIN_CONTAINER,
    ROLES,
    RUN_MOUNT,
    TLS_MOUNT,
)
from trimtab_operator.model.resolved import Settings

RESERVED_ENV: Final = frozenset(
    f"TRIMTAB_{name}"
    for name in (
        "JOB", "ROLE", "REPLICA", "NODE", "INCARNATION", "COORDINATOR", "HOST", "TERMINATION_LOG", "TLS_DIR",
        "LOG_DIR", "LAUNCHER_PID", "RANK", "LOCAL_RANK", "WORLD_SIZE",
    )
)  # fmt: skip
"""Variables by which a pod's processes know who they are."""
VOLUME_PREFIX: Final = "trimtab-"
"""Begins the names of the volumes that the operator adds."""
REPLACEABLE_VOLUMES: Final = frozenset({"trimtab-tmp", "trimtab-shm"})
"""Volumes of the operator's whose kind or size a template may change."""
_MOUNTS: Final = (JOB_MOUNT, TLS_MOUNT, CODE_MOUNT, RUN_MOUNT)
_NEEDED: Final[dict[str, Any]] = {
    "spec": {
        "containers": [
            {"name": MAIN_CONTAINER, "volumeMounts": [{"mountPath": JOB_MOUNT}, {"mountPath": TLS_MOUNT}]}
        ],
        "volumes": [{"name": f"{VOLUME_PREFIX}job"}, {"name": f"{VOLUME_PREFIX}tls"}],
    }
}
"""What is left of it once a template is merged must be all of it."""
_POD_FIELDS: Final = {
    "restartPolicy": "the operator alone restarts pods",
    "hostname": "the others find the pod by it",
    "subdomain": "the others find the pod by it",
    "setHostnameAsFQDN": "the others find the pod by its host name",
    "activeDeadlineSeconds": "use spec.activeDeadlineSeconds",
}


def reserved_problems(spec: JobSpec, settings: Settings) -> Iterable[Problem]:
    """Every clash of a spec, or of the platform's settings, with what the operator sets itself."""
    yield from _volume_problems(spec)
    gpu = resource_name(spec)
    for name in ROLES:
        role = role_of(spec, settings, name)
        path = f"spec.roles.{name}"
        for env, where in ((role.spec.env, path), (role.defaults.env, f"settings.roles.{name}")):
            yield from _env_problems([variable.name for variable in env], f"{where}.env")
        resources = {"requests": role.spec.resources.requests, "limits": role.spec.resources.limits}
        yield from _resource_problems(resources, gpu, f"{path}.resources")
        for template, where in (
            (role.defaults.pod_template, f"settings.roles.{name}.podTemplate"),
            (role.spec.pod_template or {}, f"{path}.podTemplate"),
        ):
            try:
                merged = merge_template(_NEEDED, template)
            except MergeError as error:
                yield Problem(f"{where}.{error.path}".rstrip("."), error.value, error.message)
            else:
                yield from _template_problems(template, gpu, where)
                if not _contains(merged, _NEEDED):
                    message = f"removes the container {MAIN_CONTAINER}, or what the operator mounts there"
                    yield Problem(where, None, message)


def _volume_problems(spec: JobSpec) -> Iterable[Problem]:
    for index, volume in enumerate(spec.volumes):
        if volume.name.startswith(VOLUME_PREFIX):
            yield Problem(
                f"spec.volumes[{index}].name",
                volume.name,
                f"{volume.name!r} begins with {VOLUME_PREFIX}, as the operator's own volumes do",
            )
    yield from _mount_problems([mount.mount_path for mount in spec.volume_mounts], "spec.volumeMounts")


def _template_problems(template: Mapping[str, Any], gpu: str | None, where: str) -> Iterable[Problem]:
    for key in template.keys() - {"metadata", "spec"}:
        yield Problem(f"{where}.{key}", template[key], "a pod template has `metadata` and `spec` alone")
    metadata = template.get("metadata") or {}
    for key in metadata.keys() - {"labels", "annotations"}:
        yield Problem(f"{where}.metadata.{key}", metadata[key], "allowed are labels and annotations")
    for label, value in (metadata.get("labels") or {}).items():
        if label == LABEL_MANAGED_BY or label.partition("/")[0] == GROUP:
            yield Problem(f"{where}.metadata.labels['{label}']", value, "is the operator's own label")
    spec = template.get("spec") or {}
    for field, why in _POD_FIELDS.items():
        if field in spec:
            yield Problem(f"{where}.spec.{field}", spec[field], f"is set by the operator: {why}")
    for index, volume in enumerate(spec.get("volumes") or ()):
        name = str(volume.get("name"))
        if name.startswith(VOLUME_PREFIX) and name not in REPLACEABLE_VOLUMES:
            yield Problem(f"{where}.spec.volumes[{index}].name", name, f"{name!r} is the operator's own")
    for index, container in enumerate(spec.get("containers") or ()):
        if container.get("name") == MAIN_CONTAINER:
            yield from _main_problems(container, gpu, f"{where}.spec.containers[{index}]")


def _main_problems(container: Mapping[str, Any], gpu: str | None, where: str) -> Iterable[Problem]:
    for field in ("terminationMessagePath", "terminationMessagePolicy"):
        if field in container:
            yield Problem(f"{where}.{field}", container[field], "is set by the operator, which reads it")
    for field in ("restartPolicy", "restartPolicyRules"):
        if field in container:
            message = f"is set by the operator: {_POD_FIELDS['restartPolicy']}"
            yield Problem(f"{where}.{field}", container[field], message)
    yield from _env_problems([v.get("name", "") for v in container.get("env") or ()], f"{where}.env")
    folders = [str(mount.get("mountPath")) for mount in container.get("volumeMounts") or ()]
    yield from _mount_problems(folders, f"{where}.volumeMounts")
    yield from _resource_problems(container.get("resources") or {}, gpu, f"{where}.resources")


def _env_problems(names: Sequence[str], where: str) -> Iterable[Problem]:
    for index, name in enumerate(names):
        if name in RESERVED_ENV:
            message = f"{name} tells the pod's processes who they are: the operator sets it"
            yield Problem(f"{where}[{index}].name", name, message)


def _mount_problems(folders: Sequence[str], where: str) -> Iterable[Problem]:
    for index, path in enumerate(folders):
        folder = PurePosixPath(path)
        for ours in _MOUNTS:
            if folder.is_relative_to(ours) or PurePosixPath(ours).is_relative_to(folder):
                message = f"hides {ours}, where the operator mounts what the pod needs: choose another folder"
                yield Problem(f"{where}[{index}].mountPath", path, message)
                break


def _resource_problems(resources: Mapping[str, Any], gpu: str | None, where: str) -> Iterable[Problem]:
    for kind in ("requests", "limits"):
        values = resources.get(kind)
        if gpu is not None and isinstance(values, Mapping) and gpu in values:
            yield Problem(f"{where}.{kind}['{gpu}']", values[gpu], "GPUs are asked for with gpusPerNode")


def _contains(merged: Any, needed: Any) -> bool:
    """Whether everything in `needed` is in `merged` too, whatever else is."""
    if isinstance(needed, dict):
        return isinstance(merged, Mapping) and all(
            name in merged and _contains(merged[name], value) for name, value in needed.items()
        )
    if isinstance(needed, list):
        return isinstance(merged, list) and all(
            any(_contains(item, value) for item in merged) for value in needed
        )
    return bool(merged == needed)
