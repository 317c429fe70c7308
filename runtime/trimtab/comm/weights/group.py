"""A process group of its own for weights, beside whatever default group the process has.

Created by the actor's sending rank and by every inference worker when the coordinator forms a group;
used from one thread at a time. A group lives for one membership: after any failure it is aborted and
a new one, under a new name, is joined by whoever is left.

    joining --all are here--> joined
    joining --deadline, a member gives up, told to give up--> (DeadlineError; the other members give up too)
    joined --broadcast/all_gather--> joined
    joined --deadline, lost peer--> aborted (terminal; DeadlineError names the group and who is missing)
    joined --abort()--> aborted

A member that is killed before all have joined leaves no trace that the others could see. Who knows of it
tells one member (`given_up`), and that one tells the rest through the store.

gloo and NCCL go the same way: a collective is started, then polled until our own deadline, because
NCCL's `wait` only orders streams and gloo's own timeout would outlive a shorter one. Aborting closes
the sockets, so the other members notice within milliseconds instead of at their deadlines.
The rendezvous goes over a TCPStore that the actor's rank 0 serves; nothing on it is unpickled.
"""

import concurrent.futures
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, PrefixStore, Store, TCPStore

from trimtab.errors import DeadlineError, UserError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Work

_log = logging.getLogger(__name__)

GivenUp = Callable[[], str | None]
"""Why this member is to stop waiting for the others, where it has been told to; asked again and again."""

_OVER = "over"
"""The store's key that ends a meeting for everybody; its value is why."""
_POLL_S = 0.0005
_JOINING_POLL_S = 0.005
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
        given_up: GivenUp = lambda: None,
    ) -> "WeightGroup":
        """Meet the other members; blocks until all are there, one gives up or the deadline has passed.

        Every member calls this with the same group, backend, store and world size, in any order.
        `device` is where this member's weights are. Over gloo the group's buffers are on the CPU all
        the same: they are cast and copied on their way in and out.
        Past the deadline it raises DeadlineError naming the ranks that never came.
        """
        meeting = _Meeting(
            group,
            lambda: _connect(group, store_host, store_port, timeout_s=timeout_s),
            rank=rank,
            world_size=world_size,
            deadline=time.monotonic() + timeout_s,
            given_up=given_up,
        )
        address = _local_address(store_host, store_port)
        meeting.wait_for_all()
        made = meeting.connect(
            lambda store, left_s: _make_backend(
                backend, store, rank, world_size, address=address, timeout_s=left_s
            )
        )
        return cls(
            group,
            rank=rank,
            world_size=world_size,
            store=meeting.store,
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
        with contextlib.suppress(RuntimeError):  # who is still connecting to a third sees no socket close
            self._store.set(f"gave-up/{self.rank}", "1")
            self._store.compare_set(_OVER, "", f"rank {self.rank} has left")
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


class _Meeting:
    """How the members of one group come together: each says that it is here, then all connect.

    Any of them can end it for all.
    """

    def __init__(
        self,
        group: str,
        connect: Callable[[], Store],
        *,
        rank: int,
        world_size: int,
        deadline: float,
        given_up: GivenUp,
    ) -> None:
        self._group = group
        self._connect = connect
        self._rank = rank
        self._world_size = world_size
        self._deadline = deadline
        self._given_up = given_up
        self.store = connect()

    def wait_for_all(self) -> None:
        """Say that we are here and wait for the others, so that a missing one can be named."""
        missing = list(range(self._world_size))

        def all_here() -> bool:
            nonlocal missing
            missing = [peer for peer in missing if not self.store.check([f"here/{peer}"])]
            return not missing

        def doing() -> str:
            return f"waited for {', '.join(f'rank {peer}' for peer in missing)} of {self._world_size}"

        with self._store_errors():
            self.store.set(f"here/{self._rank}", "1")
        self._wait(all_here, doing)

    def connect(self, make: Callable[[Store, float], Any]) -> Any:
        """Make the backend, which waits for the peers' addresses where nothing can interrupt it.

        So it is made in a thread that is left behind where the meeting is over, with a connection to the
        store of its own, as one connection serves one call at a time. What it makes too late is thrown away.
        """
        store, left_s = self._connect(), max(self._deadline - time.monotonic(), 1.0)
        made: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def run() -> None:
            try:
                made.set_result(make(store, left_s))
            except (RuntimeError, UserError) as error:
                made.set_exception(error)

        threading.Thread(target=run, name=f"connect {self._group}", daemon=True).start()
        try:
            self._wait(made.done, lambda: f"was connecting to the others of {self._world_size}")
            return made.result()
        except DeadlineError:
            made.add_done_callback(_throw_away)
            raise
        except RuntimeError as error:
            raise self._over(f"could not connect to the others of {self._world_size}: {error}") from error
        except UserError as error:
            self._tell(f"rank {self._rank}: {error}")
            raise

    def _wait(self, done: Callable[[], bool], doing: Callable[[], str]) -> None:
        """Until done; DeadlineError where the meeting is over before."""
        while True:
            with self._store_errors():
                over = self._given_up()
                if over is None and self.store.check([_OVER]):
                    over = self.store.get(_OVER).decode()
                if done():  # asked last: the error names those that are missing now
                    return
            if over is not None:
                raise self._over(f"{doing()}; {over}")
            if time.monotonic() > self._deadline:
                raise self._over(f"{doing()} in vain")
            time.sleep(_JOINING_POLL_S)

    def _over(self, what: str) -> DeadlineError:
        """The error of a meeting that is over, of which the others are told too."""
        text = f"rank {self._rank} {what}"
        self._tell(text)
        return DeadlineError(f"weight group {self._group!r}: {text}")

    def _tell(self, why: str) -> None:
        with contextlib.suppress(RuntimeError):  # a store that is gone tells the others as well
            self.store.compare_set(_OVER, "", why)

    @contextlib.contextmanager
    def _store_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise DeadlineError(
                f"weight group {self._group!r}: its store is gone: {str(error).splitlines()[0]}"
            ) from error


def _throw_away(made: "concurrent.futures.Future[Any]") -> None:
    if made.exception() is None:
        with contextlib.suppress(RuntimeError):
            made.result().abort()


def _connect(group: str, host: str, port: int, *, timeout_s: float) -> Store:
    """A connection to the store that the actor's rank 0 serves, in the group's own corner of it."""
    try:
        tcp = TCPStore(
            host, port, is_master=False, timeout=timedelta(seconds=timeout_s), wait_for_workers=False
        )
    except (dist.DistError, RuntimeError) as error:
        raise DeadlineError(
            f"weight group {group!r}: no store at {host}:{port} within {timeout_s:g} s: {error}"
        ) from error
    return PrefixStore(f"weights/{group}", tcp)


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
