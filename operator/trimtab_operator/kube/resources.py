"""The kinds of objects that the operator touches, and their paths in the API."""

from dataclasses import dataclass
from typing import Final

from trimtab_operator.constants import GROUP, KIND, PLURAL, VERSION
from trimtab_operator.kube.errors import JsonObject


@dataclass(frozen=True)
class Resource:
    """A namespaced kind."""

    group: str
    """Empty for the core group."""
    version: str
    kind: str
    plural: str

    @property
    def api_version(self) -> str:
        """`apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Path of the collection (`namespace` None: of all namespaces), an object, or its subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace is not None else ""
        return "/".join(part for part in (f"{root}{scope}/{self.plural}", name, subresource) if part)


JOBS: Final = Resource(GROUP, VERSION, KIND, PLURAL)
PODS: Final = Resource("", "v1", "Pod", "pods")
CONFIG_MAPS: Final = Resource("", "v1", "ConfigMap", "configmaps")
SERVICES: Final = Resource("", "v1", "Service", "services")
SECRETS: Final = Resource("", "v1", "Secret", "secrets")
CLAIMS: Final = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
NETWORK_POLICIES: Final = Resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
DISRUPTION_BUDGETS: Final = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
CLAIM_TEMPLATES: Final = Resource("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates")
EVENTS: Final = Resource("events.k8s.io", "v1", "Event", "events")
LEASES: Final = Resource("coordination.k8s.io", "v1", "Lease", "leases")
ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews"
)

_BY_KIND: Final = {
    (resource.api_version, resource.kind): resource
    for resource in (
        JOBS,
        PODS,
        CONFIG_MAPS,
        SERVICES,
        SECRETS,
        CLAIMS,
        NETWORK_POLICIES,
        DISRUPTION_BUDGETS,
        CLAIM_TEMPLATES,
    )
}


def resource_of(manifest: JsonObject) -> Resource:
    """The resource that a manifest of ours belongs to."""
    return _BY_KIND[manifest["apiVersion"], manifest["kind"]]
