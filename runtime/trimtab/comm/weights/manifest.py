"""What a publication of weights contains, and how it is cut into buckets.

The sender (actor) builds the manifest once; the coordinator carries it to every receiver. Both sides
derive the same bucket plan from it, so no layout travels with the data. Pure functions, any thread.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from trimtab.errors import UserError
from trimtab.v1 import control_pb2 as pb

_DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_ALIGNMENT_BYTES = 64
"""Tensors start here within a bucket: a view of any dtype is aligned, and copies stay on cache lines."""
DEFAULT_BUCKET_BYTES = 64 << 20


@dataclass(frozen=True)
class Slot:
    """One tensor's place in its bucket."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    num_bytes: int

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        """The tensor inside the bucket's byte buffer; shares its memory."""
        return buffer[self.offset : self.offset + self.num_bytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class Bucket:
    """Tensors that travel in one broadcast, in manifest order."""

    slots: tuple[Slot, ...]
    num_bytes: int


def dtype_name(dtype: torch.dtype) -> str:
    """The manifest's word for a dtype; a dtype that cannot travel is an error that says which can."""
    for name, known in _DTYPES.items():
        if known is dtype:
            return name
    raise UserError(f"weights of dtype {dtype} cannot be published; use one of {', '.join(_DTYPES)}")


def dtype_of(name: str) -> torch.dtype:
    """Inverse of `dtype_name`."""
    if name not in _DTYPES:
        raise UserError(f"weight manifest names dtype {name!r}; known are {', '.join(_DTYPES)}")
    return _DTYPES[name]


def build_manifest(
    tensors: Iterable[tuple[str, tuple[int, ...]]],
    *,
    dtype: torch.dtype,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> pb.WeightManifest:
    """The manifest of tensors given by name and full shape, all of which travel as `dtype`."""
    name = dtype_name(dtype)
    metas = [pb.TensorMeta(name=key, dtype=name, shape=shape) for key, shape in tensors]
    return pb.WeightManifest(tensors=metas, kind="full", bucket_bytes=bucket_bytes)


def total_bytes(manifest: pb.WeightManifest) -> int:
    """Bytes of weights in a publication, without alignment."""
    return sum(_num_bytes(meta) for meta in manifest.tensors)


def plan_buckets(manifest: pb.WeightManifest) -> list[Bucket]:
    """Cut the manifest into buckets of at most `bucket_bytes`; a larger tensor gets one of its own."""
    limit = manifest.bucket_bytes or DEFAULT_BUCKET_BYTES
    buckets: list[Bucket] = []
    slots: list[Slot] = []
    used = 0
    for meta in manifest.tensors:
        num_bytes = _num_bytes(meta)
        if slots and used + num_bytes > limit:
            buckets.append(Bucket(tuple(slots), used))
            slots, used = [], 0
        slots.append(Slot(meta.name, dtype_of(meta.dtype), tuple(meta.shape), used, num_bytes))
        used += -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    if slots:
        buckets.append(Bucket(tuple(slots), used))
    return buckets


def manifest_digest(manifest: pb.WeightManifest) -> tuple[int, int]:
    """128 bits over names, dtypes, shapes, order and bucket size, as two signed 64-bit integers."""
    digest = hashlib.sha256(json.dumps(manifest_to_dict(manifest)).encode()).digest()
    return (
        int.from_bytes(digest[:8], "big", signed=True),
        int.from_bytes(digest[8:16], "big", signed=True),
    )


def manifest_to_dict(manifest: pb.WeightManifest) -> dict[str, Any]:
    """As JSON values: what crosses into the engine's process."""
    return {
        "kind": manifest.kind,
        "bucket_bytes": manifest.bucket_bytes or DEFAULT_BUCKET_BYTES,
        "tensors": [[meta.name, meta.dtype, list(meta.shape)] for meta in manifest.tensors],
    }


def manifest_from_dict(value: dict[str, Any]) -> pb.WeightManifest:
    """Inverse of `manifest_to_dict`."""
    metas = [pb.TensorMeta(name=name, dtype=dtype, shape=shape) for name, dtype, shape in value["tensors"]]
    return pb.WeightManifest(tensors=metas, kind=value["kind"], bucket_bytes=value["bucket_bytes"])


def _num_bytes(meta: pb.TensorMeta) -> int:
    count = 1
    for size in meta.shape:
        count *= size
    return count * dtype_of(meta.dtype).itemsize
