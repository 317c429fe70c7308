"""Security contexts: the restricted Pod Security Standard, in every namespace."""

from typing import Any

from trimtab_operator.model.resolved import Settings


def pod_security_context(settings: Settings) -> dict[str, Any]:
    """For all containers of a pod, sidecars included."""
    context: dict[str, Any] = {
        "runAsNonRoot": True,
        "runAsUser": settings.run_as_user,
        "runAsGroup": settings.run_as_group,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if settings.fs_group is not None:
        # OnRootMismatch: a checkpoint volume with millions of files is not gone through at each start.
        context |= {"fsGroup": settings.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
    return context


def container_security_context(*, lock_memory: bool = False) -> dict[str, Any]:
    """For the containers that the operator makes; `lock_memory` adds IPC_LOCK, which restricted refuses."""
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    if lock_memory:
        capabilities["add"] = ["IPC_LOCK"]
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": capabilities,
    }


def secret_mode(settings: Settings) -> int:
    """Mode of mounted secrets: the group's where there is one, as the files belong to root."""
    return 0o440 if settings.fs_group is not None else 0o444
