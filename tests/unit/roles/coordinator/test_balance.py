"""Sequences are dealt to ranks evenly, and every sequence goes to exactly one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trimtab.episodes import TrainBatch
from trimtab.roles.coordinator.balance import partition, shard_sequences


@given(st.lists(st.integers(1, 500), max_size=40), st.integers(1, 6))
def test_partition_covers_every_sequence_once_and_stays_within_one_sequence(lengths, num_parts):
    parts = partition(lengths, num_parts)
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    totals = [sum(lengths[i] for i in part) for part in parts]
    # Longest-first to the lightest: the heaviest part exceeds the lightest by at most one sequence.
    assert max(totals) - min(totals) <= max(lengths, default=0)


def test_shard_sequences_balances_every_mini_batch_on_its_own():
    lengths = [4, 4, 2, 2]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    batch = TrainBatch(
        token_ids=np.arange(12, dtype=np.int32),
        offsets=offsets,
        loss_mask=np.ones(12, bool),
        mini_batch=np.array([0, 0, 1, 1], np.int32),
    )
    assert shard_sequences(batch, 2) == [[0, 2], [1, 3]]
    shard = batch.select([1, 3])
    assert shard.token_ids.tolist() == [4, 5, 6, 7, 10, 11]
    assert shard.offsets.tolist() == [0, 4, 6]
