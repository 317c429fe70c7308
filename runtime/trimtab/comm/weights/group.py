"""A process group of its own for weights, beside whatever default group the process has.

Created by the actor's sending rank and by every inference worker when the coordinator forms a group;
used from one thread at a time. A group lives for one membership: after any failure it is aborted and
a new one, under a new name, is joined by whoever is left.

    joined --broadcast/all_gather--> joined
    joined --deadline, lost peer--> aborted (terminal; DeadlineError names the group and who is missing)
    joined --abort()--> aborted

gloo and NCCL go the same way: a collective is started, then polled until our own deadline, because
NCCL's `wait` only orders streams and gloo's own timeout would outlive a shorter one. Aborting closes
the sockets, so the other members notice within milliseconds instead of at their deadlines.
The rendezvous goes over a TCPStore that the actor's rank 0 serves; nothing on it is unpickled.
"""

import contextlib
import logging
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, PrefixStore, Store, TCPStore

from trimtab.errors import DeadlineError, UserError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Work

_log = logging.getLogger(__name__)

_POLL_S = 0.0005
_REPORT_GRACE_S = 2.0
"""How long a member that gives up waits for the others to say that they gave up too."""
_BACKEND_MARGIN_S = 2.0
"""The backend's own timeout lies this far beyond ours: ours comes first, and gloo, which cannot end a
running operation, keeps `abort` waiting no longer than this."""


class WeightGroup:
    """One membership of the weight plane: rank 0 sends, the others receive."""

    def __init__(
        self,
        name: str,
        *,
        rank: int,
        world_size: int,
        store: Store,
        backend: Any,
        device: torch.device,
    ) -> None:
        self.name = name
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self._store = store
        self._backend: Any = backend  # the stubs of torch give a backend no collectives

    @classmethod
    def join(
        cls,
        group: str,
        *,
        backend: str,
        store_host: str,
        store_port: int,
        rank: int,
        world_size: int,
        timeout_s: float,
        device: torch.device | str = "cpu",
    ) -> "WeightGroup":
        """Meet the other members; blocks until all are there or the deadline has passed.

        Every member calls this with the same group, backend, store and world size, in any order.
        `device` is where this member's weights are. Over gloo the group's buffers are on the CPU all
        the same: they are cast and copied on their way in and out.
        Past the deadline it raises DeadlineError naming the ranks that never came.
        """
        deadline = time.monotonic() + timeout_s
        try:
            tcp = TCPStore(
                store_host,
                store_port,
                is_master=False,
                timeout=timedelta(seconds=timeout_s),
                wait_for_workers=False,
            )
        except (dist.DistError, RuntimeError) as error:
            raise DeadlineError(
                f"weight group {group!r}: no store at {store_host}:{store_port} "
                f"within {timeout_s:g} s: {error}"
            ) from error
        store = PrefixStore(f"weights/{group}", tcp)
        _meet(store, group, rank=rank, world_size=world_size, deadline=deadline)
        remaining_s = max(deadline - time.monotonic(), 1.0)
        address = _local_address(store_host, store_port)
        try:
            made = _make_backend(backend, store, rank, world_size, address=address, timeout_s=remaining_s)
        except RuntimeError as error:
            raise DeadlineError(
                f"weight group {group!r}: rank {rank} could not connect to the other members "
                f"within {timeout_s:g} s: {error}"
            ) from error
        return cls(
            group,
            rank=rank,
            world_size=world_size,
            store=store,
            backend=made,
            device=torch.device("cpu" if backend == "gloo" else device),
        )

    @property
    def aborted(self) -> bool:
        """Whether this membership is over."""
        return self._backend is None

    def start_broadcast(self, tensor: torch.Tensor, *, deadline: float) -> "Work":
        """Start sending (rank 0) or receiving a flat tensor; the tensor must live until `finish`."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        options.timeout = _backend_timeout(deadline)
        with self._failing("broadcast"):
            work: Work = self._live().broadcast([tensor], options)
        return work

    def finish(self, work: "Work", *, deadline: float, doing: str) -> None:
        """Wait for a started collective until `deadline` (monotonic clock); aborts the group past it."""
        with self._failing(doing):
            while not work.is_completed():
                if time.monotonic() > deadline:
                    raise self._give_up(doing, "the deadline has passed")
                time.sleep(_POLL_S)
            work.wait()

    def broadcast(self, tensor: torch.Tensor, *, deadline: float, doing: str) -> None:
        """`start_broadcast` and `finish` in one."""
        self.finish(self.start_broadcast(tensor, deadline=deadline), deadline=deadline, doing=doing)

    def gather_codes(self, code: int, *, deadline: float, doing: str) -> list[int]:
        """Every member's code, by rank: how the members agree that all of them can go on."""
        own = torch.tensor([code], dtype=torch.int64, device=self.device)
        codes = [torch.zeros_like(own) for _ in range(self.world_size)]
        options = AllgatherOptions()
        options.timeout = _backend_timeout(deadline)
        with self._failing(doing):
            work = self._live().allgather([codes], [own], options)
        self.finish(work, deadline=deadline, doing=doing)
        return [int(value.item()) for value in codes]

    def abort(self) -> None:
        """End the membership now; safe to repeat. Peers in a collective fail within milliseconds."""
        backend, self._backend = self._backend, None
        if backend is None:
            return
        with contextlib.suppress(RuntimeError):
            backend.abort()

    def _live(self) -> Any:
        if self._backend is None:
            raise DeadlineError(f"weight group {self.name!r} was left; a new group must be joined")
        return self._backend

    @contextlib.contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        """Turn a backend's error (a peer's socket closed) into one that names the group and the peer."""
        try:
            yield
        except RuntimeError as error:
            raise self._give_up(doing, f"a member was lost ({str(error).splitlines()[0]})") from error

    def _give_up(self, doing: str, reason: str) -> DeadlineError:
        self.abort()
        missing = self._missing()
        who = "; no word from " + ", ".join(f"rank {rank}" for rank in missing) if missing else ""
        return DeadlineError(
            f"weight group {self.name!r}: rank {self.rank} of {self.world_size} "
            f"gave up {doing}: {reason}{who}"
        )

    def _missing(self) -> list[int]:
        """Members that did not say within the grace that they gave up: dead or stuck ones."""
        silent = [rank for rank in range(self.world_size) if rank != self.rank]
        end = time.monotonic() + _REPORT_GRACE_S
        try:
            self._store.set(f"gave-up/{self.rank}", "1")
            while silent and time.monotonic() < end:
                silent = [rank for rank in silent if not self._store.check([f"gave-up/{rank}"])]
                if silent:
                    time.sleep(0.02)
        except RuntimeError as error:  # the store went down with the actor's rank 0
            _log.warning("weight group %r: its store is gone: %s", self.name, str(error).splitlines()[0])
            return [0] if 0 in silent else silent
        return silent


def _backend_timeout(deadline: float) -> timedelta:
    return timedelta(seconds=max(deadline - time.monotonic(), 0.0) + _BACKEND_MARGIN_S)


def _meet(store: Store, group: str, *, rank: int, world_size: int, deadline: float) -> None:
    """Say that we are here and wait for the others, so that a missing one can be named."""
    missing = list(range(world_size))
    try:
        store.set(f"here/{rank}", "1")
        while True:
            missing = [peer for peer in missing if not store.check([f"here/{peer}"])]
            if not missing:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
    except RuntimeError as error:
        raise DeadlineError(
            f"weight group {group!r}: its store is gone: {str(error).splitlines()[0]}"
        ) from error
    names = ", ".join(f"rank {peer}" for peer in missing)
    raise DeadlineError(f"weight group {group!r}: rank {rank} waited for {names} of {world_size} in vain")


def _local_address(host: str, port: int) -> str:
    """The address of ours that routes to the store: where peers on that network reach us."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _make_backend(
    backend: str, store: Store, rank: int, world_size: int, *, address: str, timeout_s: float
) -> Any:
    timeout = timedelta(seconds=timeout_s)
    if backend == "gloo":
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._threads = 2
        options._timeout = timeout
        return dist.ProcessGroupGloo(store, rank, world_size, options)
    if backend == "nccl":
        if not dist.is_nccl_available():
            raise UserError("weight group backend is 'nccl', but this torch has no NCCL; use 'gloo'")
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, world_size, nccl)
    raise UserError(f"weight group backend is {backend!r}; it must be 'gloo' or 'nccl'")
