"""Advantages from scores: numpy float64, no torch; the coordinator's flow calls it once per step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.algorithms.masked import Float64s, Floats, Mask


def group_advantages(
    scores: Floats | Sequence[float],
    group_ids: NDArray[Any] | Sequence[str] | Sequence[int],
    *,
    normalize_by_std: bool,
    epsilon: float = 1e-6,
) -> Float64s:
    """Score each response against the others to the same prompt: `scores` [S], `group_ids` [S] -> [S].

    A_i = (s_i - mean_g) / (std_g + epsilon), with the group's Bessel-corrected deviation (DeepSeekMath, arXiv
    2402.03300, section 4.1.2); without `normalize_by_std`, A_i = s_i - mean_g (Dr. GRPO, arXiv 2503.20783). A
    group whose scores are all equal gives exactly 0. A group of one has nothing to compare with: like the
    references, it takes mean 0 and deviation 1, so A = s / (1 + epsilon), or s.
    """
    values = np.asarray(scores, np.float64)
    if not np.isfinite(values).all():
        raise ValueError("scores must be finite: drop failed samples before advantages are computed")
    if values.size == 0:
        return values
    _, group = np.unique(np.asarray(group_ids), return_inverse=True)
    size = np.bincount(group)
    mean = np.bincount(group, weights=values) / size
    mean[size == 1] = 0.0
    centred = values - mean[group]
    # Rounding in the mean leaves 1e-17 where all scores are equal, which 1/epsilon would turn into a signal.
    low, high = np.full(size.shape, np.inf), np.full(size.shape, -np.inf)
    np.minimum.at(low, group, values)
    np.maximum.at(high, group, values)
    centred[((low == high) & (size > 1))[group]] = 0.0
    if not normalize_by_std:
        return centred
    variance = np.bincount(group, weights=np.square(centred)) / np.maximum(size - 1, 1)
    deviation = np.where(size == 1, 1.0, np.sqrt(variance))
    return centred / (deviation[group] + epsilon)


def spread_to_tokens(values: Floats, mask: Mask, offsets: NDArray[np.int64]) -> Float64s:
    """Give every masked token its sequence's value, [S] -> [N]; 0 elsewhere."""
    return np.where(mask, np.repeat(np.asarray(values, np.float64), np.diff(offsets)), 0.0)


def place_scores(scores: Floats | Sequence[float], mask: Mask, offsets: NDArray[np.int64]) -> Float64s:
    """Put each sequence's score on its last masked token, [S] -> [N]: an outcome as token rewards.

    A sequence without a masked token has nowhere to put it and is left out.
    """
    values = np.asarray(scores, np.float64)
    sequence_ids = np.repeat(np.arange(values.shape[0]), np.diff(offsets))
    last = np.full(values.shape[0], -1, np.int64)
    positions = np.flatnonzero(mask)
    np.maximum.at(last, sequence_ids[positions], positions)
    rewards = np.zeros(mask.shape[0], np.float64)
    rewards[last[last >= 0]] = values[last >= 0]
    return rewards
