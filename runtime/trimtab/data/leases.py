"""Which rows of the dataset go out next: leases that are settled, given back or outlive a restart.

Called by the coordinator from its event loop; pure bookkeeping, no I/O. A lease is a promise that a
row will be trained on once in its epoch. Its life:

    unread --lease()--> out --ack()--> settled        (the step that used it was applied)
                         |
                         +--release()--> returned --lease()--> out
                         +--crash: state() -> load() --> returned

Returned leases go out again before unread rows, in their original order, so that a run which resumes
from a checkpoint sees the rows in the order of the run that was never interrupted.
"""

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import UserError

STATE_VERSION = 1


@dataclass(frozen=True, order=True)
class Lease:
    """Row `index` of the dataset (after filtering), to be used in `epoch`; unique within a job."""

    epoch: int
    index: int


def epoch_order(dataset_size: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Permutation of range(dataset_size) for one epoch.

    Sorts rows by raw bits of a counter-based generator: numpy guarantees bit streams across its
    versions and machines, which it does not for `Generator.permutation`.
    """
    bits = np.random.Philox(np.random.SeedSequence([seed & (2**64 - 1), epoch])).random_raw(dataset_size)
    return np.argsort(bits, kind="stable").astype(np.int64)


class LeasedSampler:
    """Hands out rows epoch by epoch; `lease`, `ack`, `release` in any order, `state` at any moment.

    Inside, a lease is its serial number: epoch * dataset_size + position in the epoch's order.
    """

    def __init__(self, dataset_size: int, seed: int, shuffle: bool, epochs: int | None = None) -> None:
        if dataset_size < 1:
            raise UserError(f"data: a dataset must have at least one row to sample from, not {dataset_size}")
        if epochs is not None and epochs < 1:
            raise UserError(f"spec.training.epochs: must be at least 1, not {epochs}")
        self._size = dataset_size
        self._seed = seed
        self._shuffle = shuffle
        self._end = None if epochs is None else epochs * dataset_size
        self._next = 0
        self._out: dict[Lease, int] = {}
        self._returned: list[int] = []  # ascending
        self._orders: dict[int, NDArray[np.int64]] = {}

    def lease(self, count: int) -> list[Lease]:
        """The next `count` rows, running across an epoch's end; fewer only once the last epoch is out."""
        leases: list[Lease] = []
        while len(leases) < count:
            if self._returned:
                serial = self._returned.pop(0)
            elif self._end is None or self._next < self._end:
                serial = self._next
                self._next += 1
            else:
                break
            lease = self._lease_of(serial)
            self._out[lease] = serial
            leases.append(lease)
        return leases

    def ack(self, leases: Iterable[Lease]) -> None:
        """Settle leases that are out: their rows have been trained on and never come back."""
        for lease in self._known(leases):
            del self._out[lease]

    def release(self, leases: Iterable[Lease]) -> None:
        """Give leases back unused; they go out again first."""
        for lease in self._known(leases):
            insort(self._returned, self._out.pop(lease))

    @property
    def outstanding(self) -> list[Lease]:
        """Leases that are out, in their original order."""
        return sorted(self._out, key=self._out.__getitem__)

    @property
    def num_settled(self) -> int:
        """Rows acknowledged so far, over all epochs."""
        return self._next - len(self._out) - len(self._returned)

    @property
    def epoch_progress(self) -> float:
        """Epochs settled, as a number for people (1.5: half of the second epoch)."""
        return self.num_settled / self._size

    @property
    def exhausted(self) -> bool:
        """Nothing is left to lease; some leases may still be out."""
        return self._end is not None and self._next >= self._end and not self._returned

    def state(self) -> dict[str, Any]:
        """JSON: everything `load` needs; leases that are out count as unsettled."""
        return self._state(self._next, sorted([*self._out.values(), *self._returned]))

    def initial_state(self) -> dict[str, Any]:
        """The state before the first lease: `load` it to begin the training again."""
        return self._state(0, [])

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from `state()`: what was out or returned goes out first.

        Raises `UserError` where the state belongs to other data or another order.
        """
        if state.get("version") != STATE_VERSION:
            raise UserError(
                f"checkpoint: data lease state has version {state.get('version')!r}; "
                f"this release of trimtab reads version {STATE_VERSION}"
            )
        for name, field, mine in (
            ("dataset_size", "rows in the dataset (spec.data.train)", self._size),
            ("seed", "seed", self._seed),
            ("shuffle", "spec.data.shuffle", self._shuffle),
        ):
            if state[name] != mine:
                raise UserError(
                    f"checkpoint: {field} was {state[name]!r} when it was written and is {mine!r} now; "
                    "resume with the data of the checkpoint, or start a new run directory"
                )
        self._next = int(state["next"])
        self._returned = sorted(int(serial) for serial in state["unsettled"])
        self._out = {}

    def _state(self, next_serial: int, unsettled: list[int]) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "dataset_size": self._size,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "next": next_serial,
            "unsettled": unsettled,
        }

    def _lease_of(self, serial: int) -> Lease:
        epoch, position = divmod(serial, self._size)
        if not self._shuffle:
            return Lease(epoch, position)
        if epoch not in self._orders:
            if len(self._orders) >= 2:  # the epoch that ends and the one that begins
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = epoch_order(self._size, seed=self._seed, epoch=epoch)
        return Lease(epoch, int(self._orders[epoch][position]))

    def _known(self, leases: Iterable[Lease]) -> list[Lease]:
        wanted = list(leases)
        unknown = [lease for lease in wanted if lease not in self._out]
        if unknown or len(set(wanted)) != len(wanted):
            raise ValueError(f"not leased, or named twice: {unknown or wanted}")
        return wanted
