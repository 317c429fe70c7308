"""The platform's settings, and a job resolved with them: fixed for one attempt.

`Resolved` is kept in an immutable ConfigMap; every pod of the attempt is rendered from it, by whatever
version of the operator runs, so that an upgrade never changes a running job.
"""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from trimtab.api import ResolvedJob
from trimtab.api.base import Model, Quantity
from trimtab.api.kubernetes import EnvVar

SCHEMA_VERSION = 1


class PlatformModel(Model):
    """Base: what a newer chart or operator wrote beside is ignored."""

    model_config = ConfigDict(extra="ignore")


class RoleDefaults(PlatformModel):
    """What the platform team sets for the pods of one role, where a job does not say otherwise."""

    image: str = ""
    """Container image."""
    image_pull_policy: str = ""
    """Always, IfNotPresent or Never; empty: Kubernetes decides by the tag."""
    resources: dict[str, dict[str, Quantity]] = Field(default_factory=dict)
    """requests and limits."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()
    affinity: dict[str, Any] = Field(default_factory=dict)
    topology_spread_constraints: tuple[dict[str, Any], ...] = ()
    env: tuple[EnvVar, ...] = ()
    pod_template: dict[str, Any] = Field(default_factory=dict)
    """Merged into the pods before the job's own template."""


class Proxy(PlatformModel):
    """How pods reach the world outside."""

    http: str = ""
    https: str = ""
    no_proxy: str = ""


class Settings(PlatformModel):
    """The operator's configuration: `values.yaml` of the chart, mounted as JSON."""

    operator_version: str = "0"
    roles: dict[str, RoleDefaults] = Field(default_factory=dict)
    """By role: coordinator, actor, rollout, reward."""
    image_pull_secrets: tuple[str, ...] = ()
    priority_class_name: str = ""
    runtime_class_name: str = ""
    scheduler_name: str = ""
    proxy: Proxy = Field(default_factory=Proxy)
    ca_bundle_config_map: str = ""
    """ConfigMap (key ca.crt) in the job's namespace with the certificate authorities that pods trust in
    place of the image's (so public ones included, as trust-manager writes them); empty: the image's."""
    run_as_user: Annotated[int, Field(ge=1)] = 65532
    run_as_group: Annotated[int, Field(ge=1)] = 65532
    fs_group: Annotated[int, Field(ge=1)] | None = 65532
    operator_namespace: str = "trimtab-system"
    operator_labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the operator's pods, for NetworkPolicies."""
    cluster_domain: str = "cluster.local"
    network_policy: bool = True
    egress: tuple[dict[str, Any], ...] | None = None
    """Egress rules of the jobs' NetworkPolicy; None: egress is not restricted."""
    metrics_from: tuple[dict[str, Any], ...] = ()
    """NetworkPolicy peers (Prometheus) that reach the gauges of the jobs' pods."""
    image_pull_deadline_s: Annotated[int, Field(ge=1)] = 600
    """How long an image may fail to be pulled before the job fails."""
    terminating_deadline_s: Annotated[int, Field(ge=1)] = 120
    """How long after its grace a pod may be Terminating before it is deleted by force."""
    backoff_s: Annotated[int, Field(ge=0)] = 5
    """Pause before the first restart that counts; doubled with each further one."""
    max_backoff_s: Annotated[int, Field(ge=0)] = 300


class Resolved(PlatformModel):
    """One attempt of a job, everything decided. Written once, never changed."""

    schema_version: int = SCHEMA_VERSION
    name: str
    """Of the ConfigMap."""
    job_uid: str
    """Of the job that it belongs to: owner of all that is made from it."""
    generation: int
    """Of the spec that was resolved."""
    resolved_job: ResolvedJob
    """What the pods read."""
    settings: Settings
    """The platform's defaults at that time, images included."""

    @property
    def attempt(self) -> int:
        """The attempt that it is for."""
        return self.resolved_job.attempt
