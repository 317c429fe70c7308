"""The Kubernetes objects that a job embeds. Locally only `env` has an effect."""

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, StringConstraints

from trimtab.api.base import (
    DnsLabel,
    Format,
    ItemKeys,
    JsonObject,
    KubernetesObject,
    Model,
    Name,
    ObjectName,
    OneOf,
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

    passed_on: ClassVar[tuple[str, ...]] = (
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "hostPath", "image", "iscsi", "nfs"),
        *("persistentVolumeClaim", "projected", "secret"),
    )

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


class TopologySpreadConstraint(KubernetesObject):
    """How far the pods may be uneven over zones, racks or nodes, with every field that Kubernetes has.

    Without a `labelSelector` it counts the job's pods of the same role.
    """

    max_skew: Annotated[int, Field(ge=1, le=10_000)]
    """Largest difference in pods between two places."""
    topology_key: Name
    """Label of the nodes that names the place, such as `topology.kubernetes.io/zone`."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """Whether a pod waits where the difference would be larger, or only prefers another place."""


class ResourceAccelerator(Model):
    """GPUs of a device plugin: a resource that nodes count."""

    name: Name = "nvidia.com/gpu"
    """Name of the resource; a pod asks for `gpusPerNode` of it."""


class DeviceClassAccelerator(Model):
    """GPUs by dynamic resource allocation (`resource.k8s.io/v1`): a claim per pod."""

    name: ObjectName
    """DeviceClass; a pod claims `gpusPerNode` devices of it."""


class AcceleratorSpec(OneOf):
    """What a GPU is called in the cluster; how many a pod gets is always `gpusPerNode`."""

    resource: ResourceAccelerator | None = None
    """A resource of a device plugin."""
    device_class: DeviceClassAccelerator | None = None
    """A DeviceClass."""


class RdmaSpec(Model):
    """RDMA (InfiniBand, RoCE) for the pods with GPUs.

    They may then lock memory (IPC_LOCK), which the restricted Pod Security Standard refuses: the namespace
    has to allow it.
    """

    resources: Resources = Field(default_factory=dict)
    """Devices that each such pod asks for, such as `rdma/hca: 1`. Empty by default: none are counted."""
    host_network: bool = False
    """Whether these pods use the node's network. Off by default: NetworkPolicies do not hold there."""


class NetworkPolicySpec(Model):
    """Where the job's pods may connect to, beside each other, the operator and the cluster's DNS."""

    egress: Annotated[tuple[JsonObject, ...], Field(max_length=64)] = ()
    """Egress rules of a Kubernetes NetworkPolicy, such as those to a model hub. Empty by default: nowhere
    else."""


class Scheduling(KubernetesObject):
    """Where and in which order Kubernetes places the job's pods. Has no meaning locally."""

    model_config = ConfigDict(extra="forbid")

    accelerator: AcceleratorSpec = Field(
        default_factory=lambda: AcceleratorSpec(resource=ResourceAccelerator())
    )
    """What a GPU is called in the cluster. `nvidia.com/gpu` of the device plugin by default."""

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
    affinity: JsonObject | None = None
    """Affinity of all pods to nodes and other pods, as in Kubernetes; None: none."""
    topology_spread_constraints: Annotated[
        tuple[TopologySpreadConstraint, ...],
        Field(max_length=16),
        ItemKeys("topology_key", "when_unsatisfiable"),
    ] = ()
    """How pods spread over zones, racks or nodes. Empty by default: as the scheduler likes."""
    rdma: RdmaSpec | None = None
    """RDMA between the pods with GPUs; None: not used."""
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(max_length=16), ItemKeys()] = ()
    """Secrets for pulling images. Empty by default: the service account's."""
