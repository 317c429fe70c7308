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
        env = [{"name": variable.name} for variable in role.spec.env]
        yield from _env_problems(env, f"{path}.env")
        yield from _env_problems(role.defaults.env, f"settings.roles.{name}.env")
        resources = {"requests": role.spec.resources.requests, "limits": role.spec.resources.limits}
        yield from _resource_problems(resources, gpu, f"{path}.resources")
        for template, where in (
            (role.defaults.pod_template, f"settings.roles.{name}.podTemplate"),
            (role.spec.pod_template or {}, f"{path}.podTemplate"),
        ):
            try:
                merge_template({}, template)
            except MergeError as error:
                yield Problem(f"{where}.{error.path}".rstrip("."), error.value, error.message)
            else:
                yield from _template_problems(template, gpu, where)


def _volume_problems(spec: JobSpec) -> Iterable[Problem]:
    for index, volume in enumerate(spec.volumes):
        if volume.name.startswith(VOLUME_PREFIX):
            yield Problem(
                f"spec.volumes[{index}].name",
                volume.name,
                f"{volume.name!r} begins with {VOLUME_PREFIX}, as the operator's own volumes do",
            )
    mounts = [{"mountPath": mount.mount_path} for mount in spec.volume_mounts]
    yield from _mount_problems(mounts, "spec.volumeMounts")


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
        name = str(volume["name"])
        if name.startswith(VOLUME_PREFIX) and name not in REPLACEABLE_VOLUMES:
            yield Problem(f"{where}.spec.volumes[{index}].name", name, f"{name!r} is the operator's own")
    for index, container in enumerate(spec.get("containers") or ()):
        if container["name"] == MAIN_CONTAINER:
            yield from _main_problems(container, gpu, f"{where}.spec.containers[{index}]")


def _main_problems(container: Mapping[str, Any], gpu: str | None, where: str) -> Iterable[Problem]:
    for field in ("terminationMessagePath", "terminationMessagePolicy"):
        if field in container:
            yield Problem(f"{where}.{field}", container[field], "is set by the operator, which reads it")
    yield from _env_problems(container.get("env") or (), f"{where}.env")
    yield from _mount_problems(container.get("volumeMounts") or (), f"{where}.volumeMounts")
    yield from _resource_problems(container.get("resources") or {}, gpu, f"{where}.resources")


def _env_problems(env: Sequence[Mapping[str, Any]], where: str) -> Iterable[Problem]:
    for index, variable in enumerate(env):
        if variable.get("name") in RESERVED_ENV:
            message = f"{variable['name']} tells the pod's processes who they are: the operator sets it"
            yield Problem(f"{where}[{index}].name", variable["name"], message)


def _mount_problems(mounts: Sequence[Mapping[str, Any]], where: str) -> Iterable[Problem]:
    for index, mount in enumerate(mounts):
        folder = PurePosixPath(str(mount.get("mountPath")))
        for ours in _MOUNTS:
            if folder.is_relative_to(ours) or PurePosixPath(ours).is_relative_to(folder):
                message = f"hides {ours}, where the operator mounts what the pod needs: choose another folder"
                yield Problem(f"{where}[{index}].mountPath", str(folder), message)
                break


def _resource_problems(resources: Mapping[str, Any], gpu: str | None, where: str) -> Iterable[Problem]:
    for kind in ("requests", "limits"):
        values = resources.get(kind)
        if gpu is not None and isinstance(values, Mapping) and gpu in values:
            yield Problem(f"{where}.{kind}['{gpu}']", values[gpu], "GPUs are asked for with gpusPerNode")
