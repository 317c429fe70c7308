"""LeasedSampler: every row exactly once per epoch, whatever is out when the process dies."""

import json
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trimtab.data.leases import Lease, LeasedSampler, epoch_order
from trimtab.errors import UserError

EXPECTED_7_0 = [4, 3, 6, 2, 1, 0, 5, 7]


def test_epoch_order_known_seed_is_fixed_for_ever() -> None:
    assert epoch_order(8, seed=7, epoch=0).tolist() == EXPECTED_7_0
    assert epoch_order(8, seed=7, epoch=1).tolist() != EXPECTED_7_0
    assert epoch_order(8, seed=8, epoch=0).tolist() != EXPECTED_7_0
    assert sorted(epoch_order(1000, seed=0, epoch=3).tolist()) == list(range(1000))


def test_lease_unshuffled_runs_across_epoch_end() -> None:
    sampler = LeasedSampler(3, seed=0, shuffle=False)
    assert sampler.lease(5) == [Lease(0, 0), Lease(0, 1), Lease(0, 2), Lease(1, 0), Lease(1, 1)]


def test_lease_last_epoch_hands_out_fewer_then_none() -> None:
    sampler = LeasedSampler(3, seed=0, shuffle=True, epochs=1)
    leases = sampler.lease(10)
    assert sorted(lease.index for lease in leases) == [0, 1, 2]
    assert sampler.exhausted
    assert sampler.lease(1) == []
    sampler.release([leases[1]])
    assert not sampler.exhausted
    assert sampler.lease(4) == [leases[1]]


def test_release_goes_out_first_in_original_order() -> None:
    sampler = LeasedSampler(10, seed=1, shuffle=True)
    leases = sampler.lease(6)
    sampler.release([leases[4]])
    sampler.release([leases[1]])
    assert sampler.lease(3)[:2] == [leases[1], leases[4]]


def test_load_with_leases_in_flight_repeats_the_uninterrupted_order() -> None:
    straight = LeasedSampler(5, seed=3, shuffle=True).lease(12)
    sampler = LeasedSampler(5, seed=3, shuffle=True)
    sampler.ack(sampler.lease(4))
    sampler.lease(3)
    resumed = LeasedSampler(5, seed=3, shuffle=True)
    resumed.load(json.loads(json.dumps(sampler.state())))
    assert resumed.num_settled == 4
    assert resumed.lease(8) == straight[4:]


def test_initial_state_begins_again() -> None:
    sampler = LeasedSampler(5, seed=3, shuffle=True)
    first = sampler.lease(7)
    sampler.ack(first[:3])
    sampler.load(sampler.initial_state())
    assert sampler.lease(7) == first
    assert sampler.num_settled == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"dataset_size": 6}, "rows in the dataset"),
        ({"seed": 4}, "seed"),
        ({"shuffle": False}, "data.shuffle"),
        ({"version": 9}, "version 9"),
    ],
    ids=["other size", "other seed", "other order", "newer version"],
)
def test_load_foreign_state_is_refused_by_name(change: dict[str, object], named: str) -> None:
    sampler = LeasedSampler(5, seed=3, shuffle=True)
    with pytest.raises(UserError, match=named):
        sampler.load({**sampler.state(), **change})


def test_ack_of_a_lease_that_is_not_out_raises() -> None:
    sampler = LeasedSampler(5, seed=3, shuffle=True)
    leases = sampler.lease(2)
    sampler.ack(leases)
    with pytest.raises(ValueError, match="not leased"):
        sampler.ack(leases[:1])


def test_empty_dataset_is_a_user_error() -> None:
    with pytest.raises(UserError, match="at least one row"):
        LeasedSampler(0, seed=0, shuffle=True)


class CrashingTraining(RuleBasedStateMachine):
    """A training that leases, settles, gives back, checkpoints, and dies at any moment.

    The model's parameters are what was settled: a crash rolls both back to the last checkpoint.
    """

    @initialize(
        size=st.integers(1, 7),
        epochs=st.one_of(st.none(), st.integers(1, 3)),
        shuffle=st.booleans(),
        seed=st.integers(0, 5),
    )
    def begin(self, size: int, epochs: int | None, shuffle: bool, seed: int) -> None:
        self.size, self.epochs, self.shuffle, self.seed = size, epochs, shuffle, seed
        self.sampler = self.fresh()
        self.out: list[Lease] = []
        self.trained: Counter[Lease] = Counter()
        self.checkpoint = (json.dumps(self.sampler.state()), Counter(self.trained))

    def fresh(self) -> LeasedSampler:
        return LeasedSampler(self.size, self.seed, self.shuffle, self.epochs)

    @rule(count=st.integers(0, 9))
    def lease(self, count: int) -> None:
        leases = self.sampler.lease(count)
        assert len(leases) == count or self.sampler.exhausted
        assert not set(leases) & (set(self.out) | set(self.trained))
        self.out += leases

    @rule(data=st.data())
    def train(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.out), unique=True)) if self.out else []
        self.sampler.ack(chosen)
        self.trained.update(chosen)
        self.out = [lease for lease in self.out if lease not in chosen]

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.out), unique=True)) if self.out else []
        self.sampler.release(chosen)
        self.out = [lease for lease in self.out if lease not in chosen]

    @rule()
    def save(self) -> None:
        self.checkpoint = (json.dumps(self.sampler.state()), Counter(self.trained))

    @rule()
    def crash(self) -> None:
        self.sampler = self.fresh()
        self.sampler.load(json.loads(self.checkpoint[0]))
        self.trained = Counter(self.checkpoint[1])
        self.out = []

    @invariant()
    def nothing_is_repeated(self) -> None:
        assert all(count == 1 for count in self.trained.values())
        assert self.sampler.num_settled == len(self.trained)
        assert sorted(self.sampler.outstanding) == sorted(self.out)

    def teardown(self) -> None:
        """Finish two epochs beyond what began (or all of them): nothing may be missing."""
        if not hasattr(self, "sampler"):
            return
        self.sampler.release(self.out)
        last_epoch = max([lease.epoch for lease in self.trained] + [0]) + 2
        total = self.epochs if self.epochs is not None else last_epoch
        leases = self.sampler.lease(total * self.size - self.sampler.num_settled)
        self.trained.update(leases)
        assert all(count == 1 for count in self.trained.values())
        assert set(self.trained) == {
            Lease(epoch, index) for epoch in range(total) for index in range(self.size)
        }


TestCrashingTraining = CrashingTraining.TestCase
TestCrashingTraining.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
