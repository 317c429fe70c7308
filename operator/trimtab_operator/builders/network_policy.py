"""The NetworkPolicy of a job: who reaches its pods, and, by choice, what they reach."""

from typing import Any

from trimtab_operator.builders.accelerator import on_host_network
from trimtab_operator.builders.meta import Manifest, child, selector
from trimtab_operator.builders.roles import resolved_role
from trimtab_operator.constants import CONTROL_PORT, LAST_METRICS_PORT, METRICS_PORT, ROLES
from trimtab_operator.model.resolved import Resolved

_DNS = {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}


def network_policy(resolved: Resolved) -> Manifest | None:
    """Ingress from the job's own pods, and from the operator's to the control port; None: none is wanted.

    Whom the platform names beside them (Prometheus) reaches the ports of the gauges and no others.

    With pods on the node's network (RDMA) ingress is open: such pods have their node's address, by which no
    policy knows them, and they must reach the others. TLS and CURVE still keep strangers out.
    """
    if not resolved.settings.network_policy:
        return None
    spec: dict[str, Any] = {
        "podSelector": selector(resolved),
        "policyTypes": ["Ingress"],
        "ingress": [{}] if _on_host_network(resolved) else _ingress(resolved),
    }
    egress = _egress(resolved)
    if egress is not None:
        spec["policyTypes"].append("Egress")
        # The given ones first: what is wrong in one is said with its own number.
        spec["egress"] = [*egress, {"to": [{"podSelector": selector(resolved)}]}, _DNS]
    name = resolved.resolved_job.job.name
    return child(resolved, api_version="networking.k8s.io/v1", kind="NetworkPolicy", name=name) | {
        "spec": spec
    }


def _ingress(resolved: Resolved) -> list[dict[str, Any]]:
    settings = resolved.settings
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.operator_namespace}},
        "podSelector": {"matchLabels": settings.operator_labels},
    }
    rules: list[dict[str, Any]] = [
        {"from": [{"podSelector": selector(resolved)}]},
        {"from": [operator], "ports": [{"protocol": "TCP", "port": CONTROL_PORT}]},
    ]
    if settings.metrics_from:
        gauges = {"protocol": "TCP", "port": METRICS_PORT, "endPort": LAST_METRICS_PORT}
        rules.append({"from": list(settings.metrics_from), "ports": [gauges]})
    return rules


def _egress(resolved: Resolved) -> list[Any] | None:
    """The job's rules, else the platform's; None: not restricted."""
    policy = resolved.resolved_job.job.spec.network_policy
    rules = resolved.settings.egress if policy is None else policy.egress
    return None if rules is None else list(rules)


def _on_host_network(resolved: Resolved) -> bool:
    spec = resolved.resolved_job.job.spec
    return any(on_host_network(spec, resolved_role(resolved, name)) for name in ROLES)
