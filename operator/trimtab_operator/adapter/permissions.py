"""Every right that the operator needs, as data: the chart's roles and the tests are held against it.

What is not here is not needed: above all, no Secret is read, no pod log, no node. The last entries are
granted to every service account by Kubernetes itself (`system:basic-user`).
"""

from dataclasses import dataclass
from typing import Final

from trimtab_operator.kube.resources import (
    ACCESS_REVIEWS,
    CLAIM_TEMPLATES,
    CLAIMS,
    CONFIG_MAPS,
    DISRUPTION_BUDGETS,
    EVENTS,
    JOBS,
    LEASES,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)


@dataclass(frozen=True, order=True)
class Permission:
    """One verb on one resource."""

    group: str
    resource: str
    """With its subresource: `rltrainingjobs/status`."""
    verb: str


def _on(resource: Resource, *verbs: str, subresource: str = "") -> frozenset[Permission]:
    name = f"{resource.plural}/{subresource}" if subresource else resource.plural
    return frozenset(Permission(resource.group, name, verb) for verb in verbs)


IN_JOB_NAMESPACES: Final = (
    _on(JOBS, "get", "list", "watch", "delete")
    | _on(JOBS, "update", subresource="status")
    | _on(PODS, "get", "list", "watch", "create", "delete")
    | _on(CONFIG_MAPS, "get", "create")
    | _on(SERVICES, "create", "patch")
    | _on(SECRETS, "create", "patch")
    | _on(CLAIMS, "get", "create", "patch")
    | _on(NETWORK_POLICIES, "create", "patch")
    | _on(DISRUPTION_BUDGETS, "create", "patch")
    | _on(CLAIM_TEMPLATES, "create", "patch")
    | _on(EVENTS, "create", "patch")
)
"""In every namespace whose jobs are served."""

IN_OWN_NAMESPACE: Final = _on(LEASES, "get", "create", "update") | _on(SECRETS, "create")
"""In the operator's own namespace: the lease, and the Secret with the master key."""

OF_EVERYBODY: Final = _on(ACCESS_REVIEWS, "create")
"""Granted to every account by Kubernetes."""
