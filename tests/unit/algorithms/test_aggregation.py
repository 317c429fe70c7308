"""The four aggregations, hand-worked; that pieces add up is in test_losses.py."""

import pytest
import torch

from trimtab.algorithms.aggregation import AggregationMode, aggregate
from trimtab.algorithms.denominators import Denominators


@pytest.mark.parametrize(
    ("mode", "want"),
    [
        # Sequence 0 keeps 1 and 2, sequence 1 keeps 6. Of the mini-batch: 4 tokens, 3 sequences, scale 10.
        ("token-mean", 9 / 4),  # (1 + 2 + 6) / 4
        ("seq-mean-token-sum", 9 / 3),
        ("seq-mean-token-mean", 7.5 / 3),  # ((1 + 2) / 2 + 6) / 3
        ("seq-mean-token-sum-norm", 9 / 3 / 10),
    ],
)
def test_aggregate_hand_worked(mode: AggregationMode, want: float) -> None:
    values, mask = torch.tensor([1.0, 50, 2, 6]), torch.tensor([1, 0, 1, 1])
    got = aggregate(values, mask, torch.tensor([0, 0, 0, 1]), 2, mode, Denominators(4, 3, 10))
    assert got.item() == pytest.approx(want)
