"""The Kubernetes objects that a job embeds. Locally only `env` has an effect."""

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from trimtab.api.base import (
    DnsLabel,
    Format,
    JsonObject,
    KubernetesObject,
    Name,
    ObjectName,
    PathText,
    Quantity,
    Text,
)

Labels = Annotated[dict[Name, Annotated[str, StringConstraints(max_length=4096)]], Field(max_length=64)]
Resources = Annotated[dict[Name, Quantity], Field(max_length=32)]


class Metadata(KubernetesObject):
    """The object's metadata, as in every Kubernetes object."""

    name: Annotated[
        DnsLabel,
        Field(max_length=40),
        Format(
            "a DNS label: at most 40 lower-case letters, digits and dashes, a letter or digit at each end"
        ),
    ]
    """Name of the job: a DNS label of at most 40 characters, because pod names are made from it."""
    namespace: DnsLabel | None = None
    """Namespace of the job; None: the client's. Has no meaning locally."""
    labels: Labels = Field(default_factory=dict)
    """Labels of the job, such as the queue that Kueue admits it through. Empty by default: none is needed."""
    annotations: Labels = Field(default_factory=dict)
    """Annotations of the job. Empty by default: none is needed."""


class EnvVar(KubernetesObject):
    """One environment variable."""

    name: Annotated[
        str,
        StringConstraints(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$"),
        Format("the name of an environment variable: letters, digits, `_`, `.` and `-`, no digit first"),
    ]
    """Name of the variable."""
    value: Text | None = None
    """Its value; None: taken from `valueFrom`."""
    value_from: JsonObject | None = None
    """Where Kubernetes takes the value from (secretKeyRef and so on); None: from `value`. Refused locally."""


class ResourceRequirements(KubernetesObject):
    """What each pod asks of its node beside the GPUs, which follow from `gpusPerNode`."""

    requests: Resources = Field(default_factory=dict)
    """What the scheduler sets aside per pod, such as cpu and memory. Empty by default: the platform's
    defaults."""
    limits: Resources = Field(default_factory=dict)
    """What a pod may use at most. Empty by default: the platform's defaults."""


class Volume(KubernetesObject):
    """A volume of the pods; every kind that Kubernetes knows is allowed beside the name."""

    name: DnsLabel
    """Name that `volumeMounts` refers to."""


class VolumeMount(KubernetesObject):
    """Where a volume appears in the containers."""

    name: DnsLabel
    """Name of the volume."""
    mount_path: PathText
    """Folder in the container."""
    sub_path: PathText | None = None
    """Folder inside the volume; None: its root."""
    read_only: bool = False
    """Whether the containers may only read it. Off by default: checkpoints are written."""


class Toleration(KubernetesObject):
    """A taint that the pods accept, as in Kubernetes."""

    key: Name | None = None
    """The taint's key; None: every taint."""
    operator: Name | None = None
    """`Exists` or `Equal`; None: `Equal`, as Kubernetes has it."""
    value: Name | None = None
    """The taint's value; None where the operator is `Exists`."""
    effect: Name | None = None
    """`NoSchedule`, `PreferNoSchedule` or `NoExecute`; None: every effect."""


class Scheduling(KubernetesObject):
    """Where and in which order Kubernetes places the job's pods. Has no meaning locally."""

    model_config = ConfigDict(extra="forbid")

    priority_class_name: ObjectName | None = None
    """PriorityClass of all pods; None: the cluster's default."""
    scheduler_name: ObjectName | None = None
    """Scheduler of all pods; None: the cluster's default."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of all pods; None: the cluster's default."""
    node_selector: Labels = Field(default_factory=dict)
    """Labels that a node must have. Empty by default: any node."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = ()
    """Taints that the pods accept. Empty by default: none."""
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(max_length=16)] = ()
    """Secrets for pulling images. Empty by default: the service account's."""
