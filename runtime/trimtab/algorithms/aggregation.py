"""From token values to one number: the four ways to weigh tokens and sequences. torch, pure.

Each is a sum divided by the mini-batch's `Denominators`, so the results of micro-batches and ranks add up to
the whole mini-batch's. A sequence is never cut: all its response tokens are in one micro-batch.
"""

from typing import Literal

import torch
from torch import Tensor

from trimtab.algorithms.denominators import Denominators

AggregationMode = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]


def aggregate(
    values: Tensor,
    mask: Tensor,
    sequence_ids: Tensor,
    num_sequences: int,
    mode: AggregationMode,
    denominators: Denominators,
) -> Tensor:
    """Weigh and sum `values` [R] where `mask` [R] is 1; `sequence_ids` [R] in 0..num_sequences-1.

    - token-mean: sum / num_tokens (DAPO, arXiv 2503.14476, section 3.3);
    - seq-mean-token-sum: sum / num_sequences;
    - seq-mean-token-mean: sum of sequences' means / num_sequences (DeepSeekMath, arXiv 2402.03300, eq. 3);
    - seq-mean-token-sum-norm: sum / num_sequences / scale_factor (Dr. GRPO, arXiv 2503.20783).

    Counts are the denominators', not this piece's. Masked positions, fully masked sequences and empty pieces
    give 0 and no gradient; the result stays differentiable even then.
    """
    kept = masked_values(values, mask)
    match mode:
        case "token-mean":
            return kept.sum() / _positive(denominators.num_tokens)
        case "seq-mean-token-sum":
            return kept.sum() / _positive(denominators.num_sequences)
        case "seq-mean-token-sum-norm":
            assert denominators.scale_factor is not None, f"{mode} needs a scale factor"
            return kept.sum() / (_positive(denominators.num_sequences) * denominators.scale_factor)
        case "seq-mean-token-mean":
            lengths = kept.new_zeros(num_sequences).index_add(0, sequence_ids, mask.to(kept.dtype))
            weighed = kept / lengths.clamp(min=1.0)[sequence_ids]
            return weighed.sum() / _positive(denominators.num_sequences)


def token_mean(values: Tensor, mask: Tensor, denominators: Denominators) -> Tensor:
    """Sum of `values` [R] where `mask` is 1 over the mini-batch's tokens: how metrics are contributed."""
    return masked_values(values, mask).sum() / _positive(denominators.num_tokens)


def masked_values(values: Tensor, mask: Tensor) -> Tensor:
    """Zero `values` where `mask` is 0, so that nothing there (not even NaN) reaches a sum or a gradient."""
    return torch.where(mask.bool(), values, torch.zeros_like(values))


def _positive(count: float) -> float:
    """A count of 0 means that nothing is summed, so any divisor will do."""
    return count if count > 0 else 1.0
