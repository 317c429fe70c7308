"""Environment variables of a role's main container.

`identity_env` tells the processes who they are and is set last, whatever a template says; `role_env` has the
rest, where a later source wins: built in, the platform's, the job's.
"""

from collections.abc import Iterable
from typing import Any, Final

from trimtab.api.base import quantity_value
from trimtab_operator.builders.accelerator import on_host_network
from trimtab_operator.builders.resources import container_resources
from trimtab_operator.builders.roles import Role
from trimtab_operator.builders.service import service_domain
from trimtab_operator.constants import (
    ACTOR,
    CONTROL_PORT,
    COORDINATOR,
    JOB_FILE,
    JOB_MOUNT,
    METRICS_PORT,
    TLS_MOUNT,
)
from trimtab_operator.model.plan import PodPlan
from trimtab_operator.model.resolved import Proxy, Resolved

EnvVar = dict[str, Any]

CA_MOUNT: Final = "/etc/trimtab/ca"
CA_FILE: Final = "ca.crt"
TERMINATION_LOG: Final = "/dev/termination-log"

_HOME: Final = "/tmp"  # noqa: S108 - an emptyDir of the pod's own: the only folder that is writable
_WRITABLE: Final = {
    "HOME": _HOME,
    "USER": "trimtab",  # getpass.getuser() would look for the uid in /etc/passwd
    "HF_HOME": f"{_HOME}/huggingface",
    "VLLM_CACHE_ROOT": f"{_HOME}/vllm",
    "TRITON_CACHE_DIR": f"{_HOME}/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{_HOME}/torchinductor",
}
_CA_VARIABLES: Final = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")


def identity_env(plan: PodPlan, resolved: Resolved) -> list[EnvVar]:
    """What `trimtab.roles.environment.PodEnvironment` reads, and where the keys are."""
    coordinator = f"{COORDINATOR}-0-0.{service_domain(resolved)}:{CONTROL_PORT}"
    return [
        *_values(
            {
                "TRIMTAB_JOB": f"{JOB_MOUNT}/{JOB_FILE}",
                "TRIMTAB_ROLE": plan.role,
                "TRIMTAB_REPLICA": str(plan.replica),
                "TRIMTAB_NODE": str(plan.node),
                "TRIMTAB_INCARNATION": str(plan.incarnation),
                "TRIMTAB_COORDINATOR": coordinator,
            }
        ),
        {"name": "TRIMTAB_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        *_values({"TRIMTAB_TERMINATION_LOG": TERMINATION_LOG, "TRIMTAB_TLS_DIR": TLS_MOUNT}),
    ]


def role_env(resolved: Resolved, role: Role, *, python_path: str | None) -> list[EnvVar]:
    """All other variables, each name once."""
    built_in = _WRITABLE | {"PYTHONUNBUFFERED": "1"} | _devices(role)
    if not on_host_network(resolved.resolved_job.job.spec, role):
        built_in["TRIMTAB_METRICS_PORT"] = str(METRICS_PORT)
    threads = _threads(resolved, role)
    if threads is not None:
        built_in["OMP_NUM_THREADS"] = str(threads)
    given = [
        variable.model_dump(mode="json", by_alias=True, exclude_none=True)
        for variable in (*role.defaults.env, *role.spec.env)
    ]
    merged = _by_name([*_values(built_in), *network_env(resolved), *given])
    return merged if python_path is None else _with_python_path(merged, python_path)


def network_env(resolved: Resolved) -> list[EnvVar]:
    """Proxy and certificate authorities, as whatever goes out of the cluster needs them."""
    values = _proxy_values(resolved.settings.proxy, resolved)
    if resolved.settings.ca_bundle_config_map:
        values |= dict.fromkeys(_CA_VARIABLES, f"{CA_MOUNT}/{CA_FILE}")
    return _values(values)


def _proxy_values(proxy: Proxy, resolved: Resolved) -> dict[str, str]:
    """In both cases, as programs differ; never for the job's own pods, which gRPC would send there too."""
    if not (proxy.http or proxy.https):
        return {}
    own = ["localhost", "127.0.0.1", "::1", f".{service_domain(resolved)}", ".svc"]
    own.append(f".{resolved.settings.cluster_domain}")
    values = {
        "http_proxy": proxy.http,
        "https_proxy": proxy.https,
        "no_proxy": ",".join(filter(None, [*own, proxy.no_proxy])),
    }
    return {name: value for key, value in values.items() if value for name in (key.upper(), key)}


def _devices(role: Role) -> dict[str, str]:
    if role.gpus_per_node:
        return {"NCCL_DEBUG": "WARN"}
    # Where NVIDIA's runtime is the default one, a CUDA image would see all GPUs of its node.
    return {"NVIDIA_VISIBLE_DEVICES": "void"}


def _threads(resolved: Resolved, role: Role) -> int | None:
    """Threads of each rank: its share of the pod's CPUs; None where nothing says how many those are.

    PyTorch would start one for every CPU of the node, which the pod's quota then holds up.
    """
    resources = container_resources(resolved.resolved_job.job.spec, role)
    cpus = resources.get("limits", {}).get("cpu") or resources.get("requests", {}).get("cpu")
    if cpus is None:
        return None
    ranks = max(1, role.gpus_per_node) if role.name == ACTOR else 1
    return max(1, int(quantity_value(cpus) / ranks))


def _with_python_path(env: list[EnvVar], folder: str) -> list[EnvVar]:
    """The folder before what the job or the platform have on PYTHONPATH."""
    before = next((variable for variable in env if variable["name"] == "PYTHONPATH"), None)
    if before is None:
        return [*env, {"name": "PYTHONPATH", "value": folder}]
    if "value" not in before:
        return env
    joined = {"name": "PYTHONPATH", "value": f"{folder}:{before['value']}"}
    return [joined if variable is before else variable for variable in env]


def _by_name(variables: Iterable[EnvVar]) -> list[EnvVar]:
    """Each name once, with the last value, where it first stood."""
    return list({variable["name"]: variable for variable in variables}.values())


def _values(values: dict[str, str]) -> list[EnvVar]:
    return [{"name": name, "value": value} for name, value in values.items()]
