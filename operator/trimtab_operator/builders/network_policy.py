"""The NetworkPolicy of a job: who reaches its pods, and, by choice, what they reach."""

from typing import Any

from trimtab_operator.builders.meta import Manifest, child, selector
from trimtab_operator.model.resolved import Resolved

_DNS = {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}


def network_policy(resolved: Resolved) -> Manifest | None:
    """Ingress from the job's own pods and the operator's alone, on all ports; None: the platform wants none.

    With pods on the node's network (RDMA) ingress is open: such pods have their node's address, by which no
    policy knows them, and they must reach the others. TLS and CURVE still keep strangers out.
    """
    settings = resolved.settings
    if not settings.network_policy:
        return None
    peers: list[dict[str, Any]] = [
        {"podSelector": selector(resolved)},
        {
            "namespaceSelector": {
                "matchLabels": {"kubernetes.io/metadata.name": settings.operator_namespace}
            },
            "podSelector": {"matchLabels": settings.operator_labels},
        },
        *settings.metrics_from,
    ]
    spec: dict[str, Any] = {
        "podSelector": selector(resolved),
        "policyTypes": ["Ingress"],
        "ingress": [{}] if _on_host_network(resolved) else [{"from": peers}],
    }
    egress = _egress(resolved)
    if egress is not None:
        spec["policyTypes"].append("Egress")
        spec["egress"] = [{"to": [{"podSelector": selector(resolved)}]}, _DNS, *egress]
    name = resolved.resolved_job.job.name
    return child(resolved, api_version="networking.k8s.io/v1", kind="NetworkPolicy", name=name) | {
        "spec": spec
    }


def _egress(resolved: Resolved) -> list[Any] | None:
    """The job's rules, else the platform's; None: not restricted."""
    policy = resolved.resolved_job.job.spec.network_policy
    rules = resolved.settings.egress if policy is None else policy.egress
    return None if rules is None else list(rules)


def _on_host_network(resolved: Resolved) -> bool:
    rdma = resolved.resolved_job.job.spec.scheduling.rdma
    return rdma is not None and rdma.host_network
