"""The main container of a role's pods, without what differs from pod to pod."""

from typing import Any

from trimtab_operator.builders.accelerator import on_host_network, uses_rdma
from trimtab_operator.builders.code import CodeParts
from trimtab_operator.builders.env import TERMINATION_LOG, role_env
from trimtab_operator.builders.resources import container_resources
from trimtab_operator.builders.roles import Role
from trimtab_operator.builders.security import container_security_context
from trimtab_operator.builders.volumes import mounts
from trimtab_operator.constants import CONTROL_PORT, COORDINATOR, MAIN_CONTAINER, METRICS_PORT
from trimtab_operator.model.resolved import Resolved


def main_container(resolved: Resolved, role: Role, code: CodeParts) -> dict[str, Any]:
    """The agent. No probes: a process that stands still is found by heartbeats, and a restart is ours."""
    spec = resolved.resolved_job.job.spec
    container: dict[str, Any] = {
        "name": MAIN_CONTAINER,
        "image": role.image,
        "command": ["trimtab", "agent"],
        "env": role_env(resolved, role, python_path=code.python_path),
        "resources": container_resources(spec, role),
        "securityContext": container_security_context(lock_memory=uses_rdma(spec, role)),
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*mounts(resolved), *code.mounts],
    }
    if role.defaults.image_pull_policy:
        container["imagePullPolicy"] = role.defaults.image_pull_policy
    ports = {"control": CONTROL_PORT} if role.name == COORDINATOR else {}
    if not on_host_network(spec, role):
        ports["metrics"] = METRICS_PORT
    if ports:
        container["ports"] = [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()
        ]
    return container
