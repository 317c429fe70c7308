"""Chunked log-probs and entropy against the plain formula, and against the golden vectors."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from trimtab.engines.training import log_probs as module
from trimtab.engines.training.log_probs import HeadSettings, token_log_probs

GOLDEN = Path(__file__).parents[3] / "golden"


def plain(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    settings: HeadSettings,
) -> tuple[Tensor, Tensor]:
    logits = torch.nn.functional.linear(hidden, weight, bias) * settings.scale
    if settings.softcap is not None:
        logits = settings.softcap * torch.tanh(logits / settings.softcap)
    log_softmax = torch.log_softmax(logits / temperature, -1)
    return log_softmax.gather(1, targets[:, None])[:, 0], -(log_softmax.exp() * log_softmax).sum(-1)


@pytest.mark.parametrize(
    "weights", [(1.0, 0.0), (0.0, 1.0), (0.7, 0.3)], ids=["log-probs", "entropy", "both"]
)
@pytest.mark.parametrize(
    "settings", [HeadSettings(), HeadSettings(0.5, 3.0)], ids=["plain head", "scaled and capped head"]
)
@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])
def test_token_log_probs_in_chunks_equals_the_formula(
    monkeypatch: pytest.MonkeyPatch, weights: tuple[float, float], settings: HeadSettings, has_bias: bool
) -> None:
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", {"cpu": 10 * 6})  # 17 ids in slices of 6
    monkeypatch.setattr(module, "_MIN_CHUNK_IDS", 1)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(10, 5, generator=generator, requires_grad=True)
    weight = torch.randn(17, 5, generator=generator, requires_grad=True)
    bias = torch.randn(17, generator=generator, requires_grad=True) if has_bias else None
    targets = torch.randint(17, (10,), generator=generator)
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]
    mine = token_log_probs(hidden, weight, bias, targets, temperature=0.7, settings=settings)
    theirs = plain(hidden, weight, bias, targets, 0.7, settings)
    rows = torch.randn(10, generator=generator)

    def total(values: tuple[Tensor, Tensor]) -> Tensor:
        used = [w * (rows * value).sum() for w, value in zip(weights, values, strict=True) if w]
        return torch.stack(used).sum()

    for got, want in zip(mine, theirs, strict=True):
        torch.testing.assert_close(got, want)
    for got, want in zip(
        torch.autograd.grad(total(mine), leaves), torch.autograd.grad(total(theirs), leaves), strict=True
    ):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_token_log_probs_no_rows_gives_none_and_no_gradient() -> None:
    hidden = torch.zeros(0, 5, requires_grad=True)
    weight = torch.randn(17, 5, requires_grad=True)
    values, entropy = token_log_probs(
        hidden, weight, None, torch.zeros(0, dtype=torch.long), temperature=1.0, settings=HeadSettings()
    )
    (values.sum() + entropy.sum()).backward()
    assert values.shape == (0,)
    assert weight.grad is not None
    assert not weight.grad.any()


@pytest.mark.parametrize("operation", ["logprobs_from_logits", "entropy_from_logits"])
def test_token_log_probs_golden_vectors_are_met(operation: str) -> None:
    for case in json.loads((GOLDEN / f"{operation}.json").read_text())["cases"]:
        logits = torch.tensor(case["inputs"]["logits"])
        flat = logits.reshape(-1, logits.shape[-1])
        labels = torch.tensor(case["inputs"].get("labels", torch.zeros(logits.shape[:-1]).long().tolist()))
        # The identity as head: hidden states are the logits.
        values, entropy = token_log_probs(
            flat,
            torch.eye(logits.shape[-1]),
            None,
            labels.reshape(-1),
            temperature=case["params"].get("temperature") or 1.0,
            settings=HeadSettings(),
        )
        got = values if operation == "logprobs_from_logits" else entropy
        want = torch.tensor(next(v for k, v in case["expected"].items() if not k.startswith("grad_")))
        torch.testing.assert_close(got.reshape(want.shape), want, atol=2e-6, rtol=2e-6)
