"""`spec.storage`: where a job in a cluster keeps its run folder, which must outlive every pod."""

from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.base import Bytes, DnsLabel, ItemKeys, Model, ObjectName, OneOf, PathText

AccessMode = Literal["ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"]


class ClaimStorage(Model):
    """A PersistentVolumeClaim that the operator makes and that goes with the job."""

    size: Annotated[Bytes, Field(ge=1_048_576, le=2**60)]
    """Size to ask for, such as 100Gi: room for `checkpoint.keep` checkpoints and one more."""
    storage_class_name: ObjectName | None = None
    """StorageClass; None: the cluster's default."""
    access_modes: Annotated[tuple[AccessMode, ...], Field(min_length=1, max_length=3), ItemKeys()] = (
        "ReadWriteMany",
    )
    """How nodes may mount it. ReadWriteMany by default, as pods on several nodes write checkpoints;
    ReadWriteOnce is accepted only where all roles are held on one node."""


class VolumeStorage(Model):
    """One of `spec.volumes`, which stays when the job is deleted."""

    name: DnsLabel
    """Name of the volume."""
    sub_path: PathText | None = None
    """Folder inside the volume; None: its root."""


class StorageSpec(OneOf):
    """Where the run folder is: journal, checkpoints, metrics and exports."""

    claim: ClaimStorage | None = None
    """A claim made for this job."""
    volume: VolumeStorage | None = None
    """One of `spec.volumes`."""
