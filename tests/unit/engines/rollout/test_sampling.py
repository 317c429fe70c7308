import math

import pytest
import torch

from trimtab.engines.rollout.protocol import Sampling
from trimtab.engines.rollout.sampling import draw, processed_log_probs

# Probabilities 0.5, 0.25, 0.125, 0.125.
_LOGITS = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()


def _probs(**sampling):
    return processed_log_probs(_LOGITS, Sampling(**sampling)).exp().tolist()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        pytest.param({}, [0.5, 0.25, 0.125, 0.125], id="plain"),
        # At temperature 0.5 probabilities are squared: 16, 4, 1, 1 of 22.
        pytest.param({"temperature": 0.5}, [16 / 22, 4 / 22, 1 / 22, 1 / 22], id="temperature"),
        pytest.param({"temperature": 0.0}, [0.5, 0.25, 0.125, 0.125], id="greedy keeps the model's own"),
        pytest.param({"top_k": 2}, [2 / 3, 1 / 3, 0, 0], id="top-k renormalises"),
        pytest.param({"top_k": 9}, [0.5, 0.25, 0.125, 0.125], id="top-k beyond the vocabulary"),
        pytest.param({"top_p": 0.6}, [2 / 3, 1 / 3, 0, 0], id="top-p takes the token that crosses it"),
        pytest.param({"top_p": 0.01}, [1, 0, 0, 0], id="top-p keeps at least one"),
        pytest.param({"min_p": 0.4}, [2 / 3, 1 / 3, 0, 0], id="min-p against the likeliest"),
    ],
)
def test_processed_log_probs(sampling, expected):
    assert _probs(**sampling) == pytest.approx(expected, abs=1e-6)


def test_processed_log_probs_bfloat16_logits_are_normalised_in_float32():
    log_probs = processed_log_probs(_LOGITS.bfloat16(), Sampling())
    assert log_probs.dtype is torch.float32
    assert float(log_probs.exp().sum()) == pytest.approx(1.0, abs=1e-6)


def test_draw_greedy_takes_the_likeliest_without_the_generator():
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    assert draw(_LOGITS, Sampling(temperature=0.0), generator) == 0
    assert torch.equal(generator.get_state(), state)


def test_draw_follows_the_distribution_and_the_seed():
    log_probs = processed_log_probs(_LOGITS, Sampling())

    def sequence(seed):
        generator = torch.Generator().manual_seed(seed)
        return [draw(log_probs, Sampling(), generator) for _ in range(2000)]

    drawn = sequence(3)
    assert drawn == sequence(3)
    assert drawn != sequence(4)
    assert drawn.count(0) / 2000 == pytest.approx(0.5, abs=4 * math.sqrt(0.25 / 2000))
