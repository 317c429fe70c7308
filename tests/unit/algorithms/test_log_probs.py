"""Log-probs and entropy from logits."""

import math

import torch

from trimtab.algorithms.log_probs import token_entropy, token_log_probs, token_log_probs_and_entropy


def test_log_probs_and_entropy_hand_worked() -> None:
    # Logits ln 1, ln 3 at temperature 1: p = 1/4, 3/4. At temperature 0.5 the logits double: 1/10, 9/10.
    logits = torch.log(torch.tensor([[1.0, 3.0]], dtype=torch.float64))
    target = torch.tensor([1])
    for temperature, p in ((1.0, 0.75), (0.5, 0.9)):
        want = -(p * math.log(p) + (1 - p) * math.log(1 - p))
        log_probs, entropy = token_log_probs_and_entropy(logits, target, temperature)
        assert math.isclose(log_probs.item(), math.log(p), abs_tol=1e-12)
        assert math.isclose(entropy.item(), want, abs_tol=1e-12)


def test_rows_are_independent_so_chunks_equal_the_whole() -> None:
    logits, targets = torch.randn(13, 29, dtype=torch.float64), torch.randint(29, (13,))
    parts = [token_log_probs(logits[i : i + 4], targets[i : i + 4], 0.7) for i in range(0, 13, 4)]
    assert torch.equal(torch.cat(parts), token_log_probs(logits, targets, 0.7))


def test_bfloat16_logits_are_raised_to_float32() -> None:
    logits = torch.randn(5, 17, dtype=torch.bfloat16)
    targets = torch.zeros(5, dtype=torch.int32)
    got = token_log_probs(logits, targets)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, torch.log_softmax(logits.float(), -1)[:, 0])
    assert token_entropy(logits).dtype == torch.float32


def test_uniform_logits_have_the_entropy_of_the_vocabulary() -> None:
    torch.testing.assert_close(token_entropy(torch.full((2, 8), 3.0)), torch.full((2,), math.log(8)))


def test_no_rows_are_safe_and_differentiable() -> None:
    logits = torch.zeros(0, 7, requires_grad=True)
    log_probs, entropy = token_log_probs_and_entropy(logits, torch.zeros(0, dtype=torch.long))
    (log_probs.sum() + entropy.sum()).backward()
    assert logits.grad is not None
