"""Masked statistics and denominators where little or nothing counts."""

import numpy as np
import pytest

from trimtab.algorithms.denominators import Denominators, count_denominators, tokens_by_sequence
from trimtab.algorithms.masked import (
    masked_mean,
    masked_sum,
    masked_var,
    masked_whiten,
    mean_by_sequence,
    sum_by_sequence,
)

NAN = float("nan")


def test_masked_statistics_hand_worked_ignore_what_is_masked() -> None:
    # 1, 3, 8: mean 4, squared distances 9 + 1 + 16 = 26, variance 26/2 = 13 or 26/3.
    values, mask = np.array([1.0, NAN, 3.0, 8.0]), np.array([1, 0, 1, 1], bool)
    assert masked_sum(values, mask) == 12
    assert masked_mean(values, mask) == 4
    assert masked_var(values, mask) == 13
    assert masked_var(values, mask, unbiased=False) == pytest.approx(26 / 3)
    want = [-3 / 13**0.5, 0, -1 / 13**0.5, 4 / 13**0.5]
    assert masked_whiten(values, mask) == pytest.approx(want, abs=1e-8)


@pytest.mark.parametrize("count", [0, 1])
def test_masked_statistics_of_nothing_or_one_value_are_finite(count: int) -> None:
    values, mask = np.array([5.0, 7.0]), np.array([count == 1, False])
    assert masked_mean(values, mask) == 5.0 * count
    assert masked_var(values, mask) == 0
    assert masked_whiten(values, mask).tolist() == [0, 0]
    assert masked_whiten(values, mask, shift_mean=False).tolist() == [5.0 * count, 0]


def test_by_sequence_hand_worked_with_an_empty_and_a_masked_sequence() -> None:
    values, offsets = np.array([1.0, 2.0, 6.0, 9.0]), np.array([0, 3, 3, 4])
    mask = np.array([1, 0, 1, 0], bool)
    assert sum_by_sequence(values, offsets).tolist() == [9, 0, 9]
    assert mean_by_sequence(values, mask, offsets).tolist() == [3.5, 0, 0]  # (1 + 6) / 2
    assert tokens_by_sequence(mask, offsets).tolist() == [2, 0, 0]


def test_denominators_count_each_mini_batch_and_only_what_carries_loss() -> None:
    offsets = np.array([0, 3, 5, 7, 8])
    mask = np.array([0, 1, 1, 0, 1, 0, 0, 1], bool)  # kept per sequence: 2, 1, 0, 1
    mini_batch = np.array([0, 1, 0, 1], np.int32)
    assert count_denominators(mask, offsets) == [Denominators(4, 3)]
    want = [Denominators(2, 1, 16), Denominators(2, 2, 16)]
    assert count_denominators(mask, offsets, mini_batch, scale_factor=16) == want


def test_denominators_of_an_empty_batch_are_zero() -> None:
    assert count_denominators(np.zeros(0, bool), np.zeros(1, np.int64)) == [Denominators(0, 0)]
