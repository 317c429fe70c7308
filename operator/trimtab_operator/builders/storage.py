"""Where a job's run folder is in its pods, and whether a volume can hold it.

The coordinator's journal and the checkpoints must outlive every pod and be seen by several: `run_folder`
and `storage_problems` say so from the spec alone, `storage_problem` from the claims' access modes, which
the adapter looks up.
"""

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from trimtab.api import JobSpec, Problem
from trimtab.api.kubernetes import Volume
from trimtab.api.uris import folder_of
from trimtab_operator.constants import ROLES, RUN_MOUNT

_SHARED = "ReadWriteMany"
_ONE_POD = "ReadWriteOncePod"
_READ_MANY = "ReadOnlyMany"
_PASSING = frozenset({"emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image"})
"""Kinds of volume that go with the pod, or cannot be written."""
_HOSTNAME = "kubernetes.io/hostname"
_REMEDY = (
    "use a ReadWriteMany claim (NFS, CephFS, a cloud's file service), or hold every role on one node:"
    f" scheduling.nodeSelector with {_HOSTNAME}"
)


def run_folder(spec: JobSpec, *, job: str, uid: str) -> str:
    """Absolute folder in every pod for all that the run writes; `storage_problems` comes first."""
    if spec.storage is not None:
        return f"{RUN_MOUNT}/{job}-{uid[:8]}"
    assert spec.checkpoint.uri is not None, "storage_problems comes first"
    return f"{folder_of(spec.checkpoint.uri).rstrip('/')}/run"


def storage_problems(spec: JobSpec) -> Iterable[Problem]:
    """What the spec itself has wrong about where the run is kept."""
    if spec.storage is None and spec.checkpoint.uri is None:
        yield Problem(
            "spec.storage",
            None,
            "is required in a cluster, where the journal and the checkpoints must outlive every pod:"
            " storage: {claim: {size: 100Gi}} makes a claim, storage: {volume: {name: ...}} takes one of"
            " spec.volumes; or set checkpoint.uri to a folder below one of spec.volumeMounts",
        )
    if spec.storage is not None and spec.storage.volume is not None:
        yield from _passing(spec, spec.storage.volume.name, "spec.storage.volume.name")
    if spec.checkpoint.uri is not None:
        yield from _checkpoint_problems(spec, spec.checkpoint.uri)


def _checkpoint_problems(spec: JobSpec, uri: str) -> Iterable[Problem]:
    path = "spec.checkpoint.uri"
    folder = PurePosixPath(folder_of(uri))
    if not folder.is_absolute() or ".." in folder.parts:
        yield Problem(path, uri, f"{uri!r} is not an absolute folder without `..`, as a pod needs it")
        return
    if spec.storage is not None and folder.is_relative_to(RUN_MOUNT):
        return
    mounts = [m for m in spec.volume_mounts if folder.is_relative_to(m.mount_path)]
    if not mounts:
        allowed = [m.mount_path for m in spec.volume_mounts] + ([RUN_MOUNT] if spec.storage else [])
        yield Problem(
            path,
            uri,
            f"{uri!r} is on no volume and would go with the pod; allowed are folders below"
            f" {', '.join(allowed) or 'one of spec.volumeMounts, which is empty'}",
        )
        return
    mount = max(mounts, key=lambda m: len(m.mount_path.rstrip("/")))
    if mount.read_only:
        yield Problem(path, uri, f"{uri!r} is below {mount.mount_path}, which is mounted readOnly")
    yield from _passing(spec, mount.name, path)


def _passing(spec: JobSpec, name: str, path: str) -> Iterable[Problem]:
    source = _source(_volume(spec, name))
    kinds = sorted(_PASSING & source.keys()) if source else ["emptyDir"]  # as Kubernetes fills it in
    if kinds:
        yield Problem(
            path,
            name,
            f"the volume {name!r} is of kind {kinds[0]}, which does not keep what a pod writes:"
            " use a persistentVolumeClaim",
        )


def claim_names(spec: JobSpec) -> tuple[str, ...]:
    """The PersistentVolumeClaims that the job's volumes name, for the adapter to look up."""
    names = (_claim_of(volume) for volume in spec.volumes)
    return tuple(dict.fromkeys(name for name in names if name))


def storage_problem(spec: JobSpec, claims: Mapping[str, tuple[str, ...]] | None) -> str | None:
    """Why the job's claims cannot be mounted by all its pods (reason StorageNotShared); None: they can.

    `claims`: access modes of the claims that exist, by name; None: not looked up. A claim that is not there
    yet is no problem: the pods wait for it.
    """
    pinned = _pinned(spec)
    if spec.storage is not None and spec.storage.claim is not None:
        modes = spec.storage.claim.access_modes
        if not _fits(modes, pinned=pinned):
            return (
                f"spec.storage.claim.accessModes is {', '.join(modes)}: the job's pods run on several nodes"
                f" and all write there; {_REMEDY}"
            )
    written = _written_volume(spec)
    for index, volume in enumerate(spec.volumes):
        name = _claim_of(volume)
        allowed = (claims or {}).get(name, ())
        if not name or not allowed:
            continue
        where = f"spec.volumes[{index}] ({volume.name}): the claim {name} allows {', '.join(allowed)}"
        if volume.name == written and not any(mode.startswith("ReadWrite") for mode in allowed):
            return f"{where}, and the job writes its checkpoints there; use a ReadWriteMany claim"
        if volume.name != written and _READ_MANY in allowed and _reads_only(volume):
            continue
        if not _fits(allowed, pinned=pinned):
            return f"{where}, and the job's pods, which run on several nodes, all mount it; {_REMEDY}"
    return None


def _fits(modes: tuple[str, ...], *, pinned: bool) -> bool:
    """Whether all pods of a job can mount it at once."""
    if _SHARED in modes:
        return True
    usable = [mode for mode in modes if mode != _ONE_POD]
    return bool(usable) and (pinned or usable == [_READ_MANY])


def _written_volume(spec: JobSpec) -> str | None:
    """Name of the volume that the run is written to; None: a claim of the operator's."""
    if spec.storage is not None:
        return spec.storage.volume.name if spec.storage.volume is not None else None
    folder = PurePosixPath(folder_of(spec.checkpoint.uri or "/"))
    mounts = [m for m in spec.volume_mounts if folder.is_relative_to(m.mount_path)]
    return max(mounts, key=lambda m: len(m.mount_path.rstrip("/"))).name if mounts else None


def _pinned(spec: JobSpec) -> bool:
    """Whether every role's pods must run on the same one node."""
    hosts = {
        _selector(getattr(spec.roles, name).pod_template).get(
            _HOSTNAME, spec.scheduling.node_selector.get(_HOSTNAME)
        )
        for name in ROLES
    }
    return len(hosts) == 1 and None not in hosts


def _selector(template: Mapping[str, Any] | None) -> Mapping[str, Any]:
    pod_spec = (template or {}).get("spec")
    selector = pod_spec.get("nodeSelector") if isinstance(pod_spec, dict) else None
    return selector if isinstance(selector, dict) else {}


def _volume(spec: JobSpec, name: str) -> Volume:
    return next(volume for volume in spec.volumes if volume.name == name)


def _source(volume: Volume) -> Mapping[str, Any]:
    return volume.model_extra or {}


def _claim_of(volume: Volume) -> str:
    source = _source(volume).get("persistentVolumeClaim")
    return str(source.get("claimName", "")) if isinstance(source, dict) else ""


def _reads_only(volume: Volume) -> bool:
    source = _source(volume).get("persistentVolumeClaim")
    return isinstance(source, dict) and source.get("readOnly") is True
