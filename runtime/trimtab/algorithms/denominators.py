"""What a loss divides by: counts of a whole mini-batch, known before it is cut into pieces.

The coordinator counts them once per mini-batch and sends them along; every rank divides each of its
micro-batches by them. The pieces' losses (and metrics, and gradients) then only have to be summed, and the
sum is the mini-batch's, however it was cut. Plain numbers and numpy: no torch.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Denominators:
    """Counts over one mini-batch, all micro-batches and ranks together."""

    num_tokens: float
    """Tokens that carry loss."""
    num_sequences: float
    """Sequences with at least one such token."""
    scale_factor: float | None = None
    """Divisor of `seq-mean-token-sum-norm`; None where another aggregation is used."""


def count_denominators(
    loss_mask: NDArray[np.bool_],
    offsets: NDArray[np.int64],
    mini_batch: NDArray[np.int32] | None = None,
    *,
    scale_factor: float | None = None,
) -> list[Denominators]:
    """Count each mini-batch of a batch: `loss_mask` [N], `offsets` [S + 1], `mini_batch` [S] numbered from 0.

    Without `mini_batch` the whole batch is one.
    """
    lengths = tokens_by_sequence(loss_mask, offsets)
    index = np.zeros(lengths.shape[0], np.int64) if mini_batch is None else mini_batch.astype(np.int64)
    num_mini_batches = int(index.max()) + 1 if index.size else 1
    tokens = np.bincount(index, weights=lengths, minlength=num_mini_batches)
    sequences = np.bincount(index, weights=lengths > 0, minlength=num_mini_batches)
    return [Denominators(float(t), float(s), scale_factor) for t, s in zip(tokens, sequences, strict=True)]


def tokens_by_sequence(mask: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many tokens of each sequence the mask keeps, [S]."""
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(mask, dtype=np.int64)])
    counts: NDArray[np.int64] = running[offsets[1:]] - running[offsets[:-1]]
    return counts
