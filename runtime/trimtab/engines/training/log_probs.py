"""Log-probability and entropy of chosen tokens from hidden states, a few rows of logits at a time.

Called by `model.response_log_probs` for the response positions alone. The logits of a chunk live
only while it is worked on, forward and backward, so memory does not grow with rows x vocabulary.

Shapes: R rows (response tokens), E hidden size, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_CHUNK_ELEMENTS = 1 << 24
"""Logits at once: 64 MiB in float32."""


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
        log_probs = torch.empty(num_rows, dtype=torch.float32, device=hidden.device)
        entropy, normalisers = torch.empty_like(log_probs), torch.empty_like(log_probs)
        for rows in _chunks(num_rows, weight.shape[0]):
            logits, _ = _logits(hidden[rows], weight, bias, temperature, settings)
            # One exponential serves both: entropy = log sum exp(l) - sum exp(l) l / sum exp(l), with l below
            # the row's peak, so that nothing cancels where the distribution is sharp.
            peak = logits.amax(1)
            below = logits.sub_(peak[:, None])
            weights = below.exp()
            total = weights.sum(1)
            log_total = total.log()
            entropy[rows] = log_total - torch.linalg.vecdot(weights, below) / total
            log_probs[rows] = below.gather(1, targets[rows, None]).squeeze(1) - log_total
            normalisers[rows] = peak + log_total
        ctx.save_for_backward(hidden, weight, bias, targets, normalisers, entropy)
        ctx.settings = (temperature, settings)
        ctx.set_materialize_grads(False)
        return log_probs, entropy

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
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for rows in _chunks(hidden.shape[0], weight.shape[0]):
            logits, tanh = _logits(hidden[rows], weight, bias, temperature, settings)
            relative = logits.sub_(normalisers[rows, None])  # log softmax
            if grad_entropy is None:
                grads = relative.exp_().mul_(-grad_log_probs[rows, None])  # type: ignore[index]
            else:
                factor = (relative + entropy[rows, None]).mul_(grad_entropy[rows, None])
                if grad_log_probs is not None:
                    factor.add_(grad_log_probs[rows, None])
                grads = relative.exp_().mul_(factor).neg_()
            if grad_log_probs is not None:
                grads.scatter_add_(1, targets[rows, None], grad_log_probs[rows, None])
            if tanh is not None:
                grads.mul_(1 - tanh.square())
            low = grads.to(hidden.dtype)
            grad_hidden[rows] = low @ weight
            grad_weight += low.T @ hidden[rows]
            if grad_bias is not None:
                grad_bias += low.sum(0, dtype=torch.float32)
        return (
            grad_hidden,
            grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
        )


def _chunks(num_rows: int, vocabulary: int) -> list[slice]:
    size = max(1, _CHUNK_ELEMENTS // vocabulary)
    return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, settings: HeadSettings
) -> tuple[Tensor, Tensor | None]:
    """Logits over temperature, float32 and free to change in place; with a softcap also its tanh."""
    logits = torch.nn.functional.linear(hidden, weight, bias).float()
    if settings.scale != 1.0:
        logits.mul_(settings.scale)
    tanh = None
    if settings.softcap is not None:
        tanh = logits.div_(settings.softcap).tanh_().clone()
        logits.mul_(settings.softcap)
    return (logits if temperature == 1.0 else logits.div_(temperature)), tanh
