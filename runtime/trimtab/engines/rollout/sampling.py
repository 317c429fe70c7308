"""Drawing one token from a row of logits, as the hf engine does it. Pure functions; V is the vocabulary."""

import torch

from trimtab.engines.rollout.protocol import Sampling


def processed_log_probs(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Log-probs [V] in float32 of the distribution that is drawn from: temperature, then top-k, top-p, min-p.

    The kept tokens are renormalised; the others are -inf. Temperature 0 keeps the logits as they are.
    """
    scaled = logits.float() / (sampling.temperature or 1.0)
    keep = torch.ones_like(scaled, dtype=torch.bool)
    if 0 < sampling.top_k < scaled.numel():
        keep &= scaled >= torch.topk(scaled, sampling.top_k).values[-1]
    if sampling.top_p < 1.0:
        keep &= _nucleus(scaled.masked_fill(~keep, -torch.inf), sampling.top_p)
    if sampling.min_p > 0.0:
        probs = torch.softmax(scaled, -1)
        keep &= probs >= sampling.min_p * probs.max()
    return torch.log_softmax(scaled.masked_fill(~keep, -torch.inf), -1)


def draw(log_probs: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """The token: the likeliest at temperature 0, else one drawn with the request's own generator."""
    if sampling.temperature == 0.0:
        return int(log_probs.argmax())
    return int(torch.multinomial(log_probs.exp(), 1, generator=generator))


def _nucleus(scaled: torch.Tensor, top_p: float) -> torch.Tensor:
    """The smallest set of likeliest tokens whose probability reaches `top_p`; never empty."""
    ordered, order = torch.sort(scaled, descending=True)
    probs = torch.softmax(ordered, -1)
    before = torch.cumsum(probs, -1) - probs
    keep = torch.zeros_like(scaled, dtype=torch.bool)
    keep[order] = before < top_p
    return keep
