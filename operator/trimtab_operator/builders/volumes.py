"""Volumes of a role's pods and where they are mounted: the operator's own and the job's, code apart."""

from pathlib import PurePosixPath
from typing import Any, Final

from trimtab.api import JobSpec
from trimtab.api.base import format_bytes
from trimtab_operator.builders.env import CA_FILE, CA_MOUNT
from trimtab_operator.builders.meta import claim_name, tls_name
from trimtab_operator.builders.roles import Role
from trimtab_operator.builders.secret import mounted_keys
from trimtab_operator.builders.security import secret_mode
from trimtab_operator.constants import JOB_FILE, JOB_MOUNT, RUN_MOUNT, TLS_MOUNT
from trimtab_operator.model.resolved import Resolved

JOB: Final = "trimtab-job"
TLS: Final = "trimtab-tls"
TMP: Final = "trimtab-tmp"
SHM: Final = "trimtab-shm"
RUN: Final = "trimtab-run"
CA: Final = "trimtab-ca"
TMP_MOUNT: Final = "/tmp"  # noqa: S108 - an emptyDir of the pod's own
SHM_MOUNT: Final = "/dev/shm"  # noqa: S108 - a memory emptyDir of the pod's own

_SHARED_MEMORY_CPU = "1Gi"
_SHARED_MEMORY_GPU = "16Gi"
"""NCCL and vLLM exchange buffers there; what is not used costs nothing."""


def volumes(resolved: Resolved, role: Role) -> list[dict[str, Any]]:
    """Of the pod."""
    spec, job = resolved.resolved_job.job.spec, resolved.resolved_job.job.name
    items = [{"key": key, "path": key} for key in mounted_keys(role.name)]
    mode = secret_mode(resolved.settings)
    all_volumes: list[dict[str, Any]] = [
        {"name": JOB, "configMap": {"name": resolved.name, "items": [{"key": JOB_FILE, "path": JOB_FILE}]}},
        {"name": TLS, "secret": {"secretName": tls_name(job), "items": items, "defaultMode": mode}},
    ]
    mounted = _users_mounts(spec)
    if TMP_MOUNT not in mounted:
        all_volumes.append({"name": TMP, "emptyDir": {}})
    if SHM_MOUNT not in mounted:
        all_volumes.append({"name": SHM, "emptyDir": {"medium": "Memory", "sizeLimit": _shared_memory(role)}})
    if spec.storage is not None and spec.storage.claim is not None:
        all_volumes.append({"name": RUN, "persistentVolumeClaim": {"claimName": claim_name(job)}})
    if resolved.settings.ca_bundle_config_map:
        all_volumes.append(
            {
                "name": CA,
                "configMap": {
                    "name": resolved.settings.ca_bundle_config_map,
                    "items": [{"key": CA_FILE, "path": CA_FILE}],
                },
            }
        )
    return all_volumes + [volume.model_dump(mode="json", by_alias=True) for volume in spec.volumes]


def mounts(resolved: Resolved) -> list[dict[str, Any]]:
    """In the main container."""
    spec = resolved.resolved_job.job.spec
    mounted = _users_mounts(spec)
    all_mounts: list[dict[str, Any]] = [
        {"name": JOB, "mountPath": JOB_MOUNT, "readOnly": True},
        {"name": TLS, "mountPath": TLS_MOUNT, "readOnly": True},
    ]
    if SHM_MOUNT not in mounted:
        all_mounts.append({"name": SHM, "mountPath": SHM_MOUNT})
    return all_mounts + _run_mounts(spec) + outward_mounts(resolved)


def outward_mounts(resolved: Resolved) -> list[dict[str, Any]]:
    """What also a container that only fetches something needs: /tmp, authorities, the job's volumes."""
    spec = resolved.resolved_job.job.spec
    all_mounts: list[dict[str, Any]] = []
    if TMP_MOUNT not in _users_mounts(spec):
        all_mounts.append({"name": TMP, "mountPath": TMP_MOUNT})
    if resolved.settings.ca_bundle_config_map:
        all_mounts.append({"name": CA, "mountPath": CA_MOUNT, "readOnly": True})
    job = (mount.model_dump(mode="json", by_alias=True, exclude_none=True) for mount in spec.volume_mounts)
    return [*all_mounts, *job]


def _run_mounts(spec: JobSpec) -> list[dict[str, Any]]:
    if spec.storage is None:
        return []
    volume = spec.storage.volume
    if volume is None:
        return [{"name": RUN, "mountPath": RUN_MOUNT}]
    mount = {"name": volume.name, "mountPath": RUN_MOUNT}
    return [mount if volume.sub_path is None else mount | {"subPath": volume.sub_path}]


def _users_mounts(spec: JobSpec) -> set[str]:
    """Folders that the job mounts something of its own at, in place of the operator's."""
    return {str(PurePosixPath(mount.mount_path)) for mount in spec.volume_mounts}


def _shared_memory(role: Role) -> str:
    if role.spec.shared_memory is not None:
        return format_bytes(role.spec.shared_memory)
    return _SHARED_MEMORY_GPU if role.gpus_per_node else _SHARED_MEMORY_CPU
