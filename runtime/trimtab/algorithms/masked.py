"""Means, variances and whitening over masked flat arrays, in numpy float64; called by advantages and KL.

The mask is 1 where a value counts. Nothing that counts gives 0, never NaN: where the references divide
0 by 0 or raise, there is nothing to learn from, so the result adds nothing.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.algorithms.denominators import tokens_by_sequence

Floats = NDArray[np.floating[Any]]
Float64s = NDArray[np.float64]
Mask = NDArray[np.bool_]

WHITEN_EPSILON = 1e-8
"""Added to the variance under the root."""


def masked_sum(values: Floats, mask: Mask) -> float:
    """Sum where the mask is 1; values elsewhere may be anything, NaN included."""
    return float(np.where(mask, values, 0.0).sum(dtype=np.float64))


def masked_mean(values: Floats, mask: Mask) -> float:
    """Mean where the mask is 1; 0 where nothing counts."""
    count = int(np.count_nonzero(mask))
    return masked_sum(values, mask) / count if count else 0.0


def masked_var(values: Floats, mask: Mask, *, unbiased: bool = True) -> float:
    """Variance where the mask is 1, Bessel-corrected by default; 0 for fewer than two values."""
    count = int(np.count_nonzero(mask))
    if count < 2:
        return 0.0
    squares = np.square(values.astype(np.float64) - masked_mean(values, mask))
    return masked_sum(squares, mask) / (count - 1 if unbiased else count)


def masked_whiten(values: Floats, mask: Mask, *, shift_mean: bool = True) -> Float64s:
    """(x - mean) / sqrt(var + 1e-8) over the masked values, shape kept; 0 where the mask is 0.

    With `shift_mean=False` the mean is added back, so only the scale changes.
    """
    mean = masked_mean(values, mask)
    scale = 1.0 / np.sqrt(masked_var(values, mask) + WHITEN_EPSILON)
    whitened = (values.astype(np.float64) - mean) * scale + (0.0 if shift_mean else mean)
    return np.where(mask, whitened, 0.0)


def sum_by_sequence(values: Floats, offsets: NDArray[np.int64]) -> Float64s:
    """Sum of each sequence's values, [N] -> [S]; an empty sequence gives 0."""
    # Not a difference of running sums (loses digits) nor add.reduceat (wrong on empty spans).
    sequence_ids = np.repeat(np.arange(offsets.shape[0] - 1), np.diff(offsets))
    return np.bincount(sequence_ids, weights=values, minlength=offsets.shape[0] - 1).astype(np.float64)


def mean_by_sequence(values: Floats, mask: Mask, offsets: NDArray[np.int64]) -> Float64s:
    """Mean of each sequence's masked values, [N] -> [S]; 0 where nothing counts."""
    totals = sum_by_sequence(np.where(mask, values, 0.0), offsets)
    means: Float64s = totals / np.maximum(tokens_by_sequence(mask, offsets), 1)
    return means
