"""Sending and receiving one publication of weights over a `WeightGroup`.

`WeightSender.send` runs on the actor's sending rank, `receive` in every inference worker, at the same
time, each on its process's main thread. The order on the wire, the same for all members:

    header (version, manifest digest)  ->  agreement (a code per member)
    -> bucket 0 .. bucket n-1          ->  confirmation (a code per member)

Nobody sends a byte of weights before every member has said that it expects this version and this
manifest; nobody returns before every member has said that it has loaded all of it. Either side's
failure reaches the others: by code where it can still speak, by a closed socket or the deadline where
it cannot. After any failure the group is aborted, and a new one must be joined.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trimtab.comm.weights.group import WeightGroup
from trimtab.comm.weights.manifest import Bucket, manifest_digest, plan_buckets, total_bytes
from trimtab.errors import TrimtabError, UserError
from trimtab.v1 import control_pb2 as pb

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Work

_OK, _WRONG_VERSION, _WRONG_MANIFEST, _LOAD_FAILED = range(4)
_REFUSALS = {
    _WRONG_VERSION: "expects another version",
    _WRONG_MANIFEST: "expects another manifest (names, dtypes, shapes or bucket size differ)",
    _LOAD_FAILED: "could not load the weights",
}

Load = Callable[[list[tuple[str, torch.Tensor]]], None]


class TransferError(TrimtabError):
    """The members do not agree, or one of them failed; the message names it and why."""


@dataclass(frozen=True)
class Received:
    """What a receiver got."""

    version: int
    num_bytes: int
    seconds: float


class WeightSender:
    """The publishing side: rank 0 of a group."""

    def __init__(self, group: WeightGroup) -> None:
        assert group.rank == 0, "rank 0 of a weight group sends"
        self._group = group

    def send(
        self,
        version: int,
        tensors: Iterable[tuple[str, torch.Tensor]],
        manifest: pb.WeightManifest,
        bucket_bytes: int,
        timeout_s: float,
    ) -> int:
        """Publish; returns the bytes sent once every receiver has confirmed that it loaded them.

        `tensors` yields the manifest's tensors in its order, full and on any device; while a bucket is
        on the wire the next one is drawn from it and cast to the manifest's dtypes. It is always drawn
        to its end, also after a failure: producing a tensor is a collective among the actor's ranks,
        and a sender that stopped early would leave the others hanging in it.
        """
        source = iter(tensors)
        deadline = time.monotonic() + timeout_s
        agreed = pb.WeightManifest(tensors=manifest.tensors, kind=manifest.kind, bucket_bytes=bucket_bytes)
        sent = 0
        try:
            sent = self._send(version, source, agreed, deadline)
        finally:
            if not sent:
                self._group.abort()
            for _ in source:
                pass
        return sent

    def _send(
        self,
        version: int,
        source: Iterator[tuple[str, torch.Tensor]],
        manifest: pb.WeightManifest,
        deadline: float,
    ) -> int:
        group = self._group
        doing = f"sending version {version}"
        _agree(group, version, manifest, deadline=deadline, doing=doing)
        buckets = plan_buckets(manifest)
        size = max((bucket.num_bytes for bucket in buckets), default=0)
        buffers = [torch.empty(size, dtype=torch.uint8, device=group.device) for _ in range(2)]
        on_wire = None
        try:
            for index, bucket in enumerate(buckets):
                # The other buffer may still be on the wire; this one was finished a turn ago.
                buffer = buffers[index % 2][: bucket.num_bytes]
                _fill(bucket, buffer, source)
                if on_wire is not None:
                    group.finish(on_wire, deadline=deadline, doing=doing)
                on_wire = group.start_broadcast(buffer, deadline=deadline)
            if on_wire is not None:
                group.finish(on_wire, deadline=deadline, doing=doing)
        finally:
            on_wire = (
                None  # in an error's traceback it would hold the sockets open, and the receivers waiting
            )
        _confirm(group, _OK, deadline=deadline, doing=doing)
        return total_bytes(manifest)


def receive(
    group: WeightGroup, version: int, manifest: pb.WeightManifest, load: Load, *, timeout_s: float
) -> Received:
    """Take one publication and hand it to `load`, bucket by bucket.

    Each bucket has a buffer of its own that is never written again, because an inference engine holds
    on to tensors until the layer they belong to is complete. The next bucket is on the wire while
    `load` works. What `load` raises is reported to the other members and raised again here.
    """
    start = time.monotonic()
    deadline = start + timeout_s
    doing = f"receiving version {version}"
    _agree(group, version, manifest, deadline=deadline, doing=doing)
    buckets = plan_buckets(manifest)
    failure: Exception | None = None

    def begin(bucket: Bucket) -> tuple[torch.Tensor, "Work"]:
        buffer = torch.empty(bucket.num_bytes, dtype=torch.uint8, device=group.device)
        return buffer, group.start_broadcast(buffer, deadline=deadline)

    pending = begin(buckets[0]) if buckets else None
    for index, bucket in enumerate(buckets):
        assert pending is not None
        buffer, work = pending
        group.finish(work, deadline=deadline, doing=doing)
        pending = begin(buckets[index + 1]) if index + 1 < len(buckets) else None
        if failure is None:
            try:
                load([(slot.name, slot.view(buffer)) for slot in bucket.slots])
            except (
                RuntimeError,
                ValueError,
                LookupError,
                AttributeError,
                AssertionError,
                TypeError,
            ) as error:
                failure = error  # keep taking buckets: the members stay in step until they confirm
        del buffer
    try:
        _confirm(group, _OK if failure is None else _LOAD_FAILED, deadline=deadline, doing=doing)
    except TransferError:
        if failure is None:
            raise
        raise TransferError(f"weight group {group.name!r}: loading failed: {failure!r}") from failure
    return Received(version, total_bytes(manifest), time.monotonic() - start)


def _agree(
    group: WeightGroup, version: int, manifest: pb.WeightManifest, *, deadline: float, doing: str
) -> None:
    """Rank 0 says what it will send; every member answers whether that is what it was told to expect."""
    own = [version, *manifest_digest(manifest)]
    header = torch.tensor(own, dtype=torch.int64, device=group.device)
    group.broadcast(header, deadline=deadline, doing=doing)
    sent = header.tolist()
    code = _OK if sent == own else _WRONG_VERSION if sent[0] != version else _WRONG_MANIFEST
    _confirm(group, code, deadline=deadline, doing=doing)


def _confirm(group: WeightGroup, code: int, *, deadline: float, doing: str) -> None:
    codes = group.gather_codes(code, deadline=deadline, doing=doing)
    refusals = [f"rank {rank} {_REFUSALS[c]}" for rank, c in enumerate(codes) if c != _OK]
    if refusals:
        group.abort()
        raise TransferError(f"weight group {group.name!r}: {doing} failed: {'; '.join(refusals)}")


def _fill(bucket: Bucket, buffer: torch.Tensor, source: Iterator[tuple[str, torch.Tensor]]) -> None:
    """Draw the bucket's tensors from the source, cast, into the buffer."""
    for slot in bucket.slots:
        name, tensor = next(source, ("", None))
        if tensor is None:
            raise UserError(f"the weights ended before {slot.name!r}, which the manifest names")
        if name != slot.name or tuple(tensor.shape) != slot.shape:
            raise UserError(
                f"the weights yielded {name!r} {tuple(tensor.shape)} where the manifest has "
                f"{slot.name!r} {slot.shape}"
            )
        slot.view(buffer).copy_(tensor.detach())
