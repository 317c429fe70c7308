"""Log-probability and entropy of chosen tokens from hidden states, a slice of the vocabulary at a time.

Called by `model.response_log_probs` for the response positions alone. The logits of all rows for a slice
of the ids live only while it is worked on, forward and backward, so memory does not grow with rows x
vocabulary. Slices are of ids and not of rows: each id's gradient is then one matrix product, with no
sum over chunks, and a slice's weights stay in the cache.

Shapes: R rows (response tokens), E hidden size, V vocabulary, C ids of a slice.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_CHUNK_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 24}
"""Logits at once: in float32 8 MiB, which a cache holds, and 64 MiB, which keep a GPU busy."""
_MIN_CHUNK_IDS = 512
"""Fewer would make matrix products slow. Beyond 4,096 rows on a CPU memory grows with them, by 2 kB each."""


@dataclass(frozen=True)
class HeadSettings:
    """What some models do with their logits beside the matrix product."""

    scale: float = 1.0
    softcap: float | None = None


def token_log_probs(
    hidden: Tensor,  # [R, E]
    weight: Tensor,  # [V, E]
    bias: Tensor | None,  # [V]
    targets: Tensor,  # [R]
    *,
    temperature: float,
    settings: HeadSettings,
) -> tuple[Tensor, Tensor]:
    """Log-softmax of logits / temperature at the targets, and the entropy of that softmax; float32 [R].

    Both have gradients. Matrix products run in the dtype of `hidden`; all else in float32.
    """
    arguments = (hidden, weight, bias, targets, temperature, settings)
    result: tuple[Tensor, Tensor] = _ChunkedLogProbs.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


class _ChunkedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        settings: HeadSettings,
    ) -> tuple[Tensor, Tensor]:
        num_rows = hidden.shape[0]
        chosen = torch.zeros(num_rows, dtype=torch.float32, device=hidden.device)
        peaks, totals, weighted = [], [], []
        for ids in _chunks(hidden, weight.shape[0]):
            logits, _ = _logits(hidden, weight, bias, ids, temperature, settings)
            inside, index = _targets_in(targets, ids)
            chosen += logits.gather(1, index).squeeze(1) * inside
            # With logits below the row's peak nothing cancels where the distribution is sharp.
            peak = logits.amax(1)
            below = logits.sub_(peak[:, None])
            weights = below.exp()
            peaks.append(peak)
            totals.append(weights.sum(1))
            weighted.append(weights.mul_(below).sum(1))
        # From each slice's peak to that of the row. [slices, R]
        slice_peaks = torch.stack(peaks)
        peak = slice_peaks.amax(0)
        lower = slice_peaks - peak
        factors, slice_totals = lower.exp(), torch.stack(totals)
        total = (factors * slice_totals).sum(0)
        log_total = total.log()
        # -sum p log p = log sum exp(l) - sum exp(l) l / sum exp(l)
        entropy = log_total - (factors * (torch.stack(weighted) + lower * slice_totals)).sum(0) / total
        ctx.save_for_backward(hidden, weight, bias, targets, peak + log_total, entropy)
        ctx.settings = (temperature, settings)
        ctx.set_materialize_grads(False)
        return chosen - peak - log_total, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_log_probs: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        if grad_log_probs is None and grad_entropy is None:
            return None, None, None, None, None, None
        hidden, weight, bias, targets, normalisers, entropy = ctx.saved_tensors
        temperature, settings = ctx.settings
        # What a logit is multiplied with after the matrix product; on the rows here it costs nothing.
        factor_after = settings.scale / temperature
        grad_log_probs = None if grad_log_probs is None else grad_log_probs * factor_after
        grad_entropy = None if grad_entropy is None else grad_entropy * factor_after
        grad_hidden = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        grad_weight = torch.empty_like(weight)
        grad_bias = None if bias is None else torch.empty_like(bias)
        for ids in _chunks(hidden, weight.shape[0]):
            logits, tanh = _logits(hidden, weight, bias, ids, temperature, settings)
            relative = logits.sub_(normalisers[:, None])  # log softmax
            if grad_entropy is None:
                grads = relative.exp_().mul_(-grad_log_probs[:, None])  # type: ignore[index]
            else:
                factor = (relative + entropy[:, None]).mul_(grad_entropy[:, None])
                if grad_log_probs is not None:
                    factor.add_(grad_log_probs[:, None])
                grads = relative.exp_().mul_(factor).neg_()
            if grad_log_probs is not None:
                inside, index = _targets_in(targets, ids)
                grads.scatter_add_(1, index, (grad_log_probs * inside)[:, None])
            if tanh is not None:
                grads.mul_(1 - tanh.square())
            low = grads.to(hidden.dtype)
            grad_hidden += low @ weight[ids]
            torch.mm(low.T, hidden, out=grad_weight[ids])
            if grad_bias is not None:
                grad_bias[ids] = grads.sum(0)
        return grad_hidden.to(hidden.dtype), grad_weight, grad_bias, None, None, None


def _chunks(hidden: Tensor, vocabulary: int) -> list[slice]:
    """Slices of the ids; one at least."""
    size = max(_MIN_CHUNK_IDS, _CHUNK_ELEMENTS[hidden.device.type] // max(1, hidden.shape[0]))
    return [slice(start, min(start + size, vocabulary)) for start in range(0, vocabulary, size)]


def _targets_in(targets: Tensor, ids: slice) -> tuple[Tensor, Tensor]:
    """Which rows' targets are among these ids [R], and their places there [R, 1] (0 for the others)."""
    inside = (targets >= ids.start) & (targets < ids.stop)
    return inside, torch.where(inside, targets - ids.start, 0)[:, None]


def _logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: slice,
    temperature: float,
    settings: HeadSettings,
) -> tuple[Tensor, Tensor | None]:
    """Logits over temperature [R, C], float32 and free to change in place; with a softcap also its tanh."""
    logits = torch.nn.functional.linear(hidden, weight[ids], None if bias is None else bias[ids]).float()
    if settings.scale != 1.0:
        logits.mul_(settings.scale)
    tanh = None
    if settings.softcap is not None:
        tanh = logits.div_(settings.softcap).tanh_().clone()
        logits.mul_(settings.softcap)
    return (logits if temperature == 1.0 else logits.div_(temperature)), tanh
