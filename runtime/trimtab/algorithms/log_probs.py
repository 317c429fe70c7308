"""Log-probs and entropy of logits at the sampling temperature. torch, pure; called by the training engine.

Each row is independent, so the engine may call them in chunks of rows. Half-precision logits are raised to
float32 first: a log-prob in bfloat16 has two digits.
"""

import torch
from torch import Tensor


def token_log_probs(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probability of each target: `logits` [R, V], `targets` [R] aligned (no shift) -> [R].

    z[target] - logsumexp(z) with z = logits / temperature.
    """
    scaled = _scaled(logits, temperature)
    return _gather(scaled, targets) - scaled.logsumexp(-1)


def token_entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy in nats of each row's distribution at the temperature: `logits` [R, V] -> [R].

    logsumexp(z) - sum_v p_v z_v with z = logits / temperature.
    """
    scaled = _scaled(logits, temperature)
    return scaled.logsumexp(-1) - (scaled.softmax(-1) * scaled).sum(-1)


def token_log_probs_and_entropy(
    logits: Tensor, targets: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Both of the above with the shared parts computed once."""
    scaled = _scaled(logits, temperature)
    normaliser = scaled.logsumexp(-1)
    entropy = normaliser - (scaled.softmax(-1) * scaled).sum(-1)
    return _gather(scaled, targets) - normaliser, entropy


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    raised = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return raised if temperature == 1.0 else raised / temperature


def _gather(scaled: Tensor, targets: Tensor) -> Tensor:
    return scaled.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
