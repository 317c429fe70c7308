"""KL estimators and controllers, hand-worked and as properties."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trimtab.algorithms.kl import (
    AdaptiveKLController,
    FixedKLController,
    KLEstimator,
    kl_in_reward,
    kl_penalty,
)

ESTIMATORS = get_args(KLEstimator)


@pytest.mark.parametrize(
    ("estimator", "want"),
    [
        ("k1", math.log(2)),  # d = ln 0.5 - ln 0.25 = ln 2
        ("k2", math.log(2) ** 2 / 2),
        ("k3", 0.5 - 1 + math.log(2)),  # exp(-ln 2) - 1 + ln 2
        ("abs", math.log(2)),
    ],
)
def test_kl_penalty_hand_worked(estimator: KLEstimator, want: float) -> None:
    got = kl_penalty(np.log(np.array([0.5])), np.log(np.array([0.25])), estimator)
    assert got == pytest.approx([want])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_to_itself_is_exactly_zero(estimator: KLEstimator) -> None:
    log_probs = torch.tensor([-0.3, -7.0, 0.0], requires_grad=True)
    kl = kl_penalty(log_probs, log_probs.detach(), estimator)
    assert not kl.any()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_straight_through_keeps_the_value_and_takes_k2s_gradient(estimator: KLEstimator) -> None:
    log_probs = torch.tensor([-3.0, -0.2, -9.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-0.5, -1.0, -0.1], dtype=torch.float64)
    plain = kl_penalty(log_probs, reference, estimator.removesuffix("+"))
    straight = kl_penalty(log_probs, reference, estimator.removesuffix("+") + "+")
    torch.testing.assert_close(straight, plain, rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(straight.sum(), log_probs)
    torch.testing.assert_close(gradient, log_probs.detach() - reference)


@given(st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=1, max_size=8))
def test_k3_is_never_negative_and_torch_equals_numpy(pairs: list[tuple[float, float]]) -> None:
    log_probs, reference = (np.array(values) for values in zip(*pairs, strict=True))
    got = kl_penalty(log_probs, reference, "k3")
    assert (got >= -1e-12).all()
    in_torch = kl_penalty(torch.tensor(log_probs), torch.tensor(reference), "k3")
    np.testing.assert_allclose(in_torch.numpy(), got, rtol=0, atol=1e-12)


def test_k3_of_a_small_log_ratio_keeps_its_digits_in_float32() -> None:
    # exp(x) - 1 - x = x^2/2 + x^3/6 for x = 1e-3: 5.0017e-7, of which exp(x) in float32 rounds off 1e-7.
    reference = torch.tensor([1e-3])
    got = kl_penalty(torch.tensor([0.0]), reference, "k3").item()
    assert got == pytest.approx(5.0017e-7, rel=1e-3)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_estimators_of_the_kl_agree_in_expectation(estimator: KLEstimator) -> None:
    # Exactly, over three tokens: KL = 0.5 ln(0.5/0.4) + 0.3 ln(0.3/0.35) + 0.2 ln(0.2/0.25) = 0.0207.
    # k1 and k3 are unbiased; k2 is half the second moment, equal up to third order in the log-ratio.
    policy, reference = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.35, 0.25])
    exact = float((policy * np.log(policy / reference)).sum())
    got = float((policy * kl_penalty(np.log(policy), np.log(reference), estimator)).sum())
    assert got == pytest.approx(exact, rel=0.05 if estimator == "k2" else 1e-12)


def test_unknown_estimator_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'k4'.*k1, k2, k3"):
        kl_penalty(np.zeros(1), np.zeros(1), "k4")


def test_kl_in_reward_hand_worked() -> None:
    # Sequence 0 keeps d = 0.2 and 0.4, sequence 1 keeps d = -0.1; the masked -9 counts nowhere.
    # Rewards: 1 - 0.5 * 0.2 and so on; current KL: ((0.2 + 0.4) / 2 + (-0.1)) / 2 = 0.1.
    result = kl_in_reward(
        np.array([0.0, 0.0, 1.0, 0.0]),
        np.array([-9.0, -0.8, -0.6, -1.1]),
        np.array([0.0, -1.0, -1.0, -1.0]),
        np.array([0, 1, 1, 1], bool),
        np.array([0, 3, 4]),
        estimator="k1",
        coefficient=0.5,
    )
    assert result.token_rewards == pytest.approx([0, -0.1, 0.8, 0.05])
    assert result.current_kl == pytest.approx(0.1)


def test_kl_in_reward_of_no_sequences_is_zero() -> None:
    none = np.zeros(0)
    result = kl_in_reward(
        none, none, none, none.astype(bool), np.zeros(1, int), estimator="k1", coefficient=1
    )
    assert result.current_kl == 0
    assert result.token_rewards.shape == (0,)


def test_adaptive_controller_hand_worked() -> None:
    # Target 0.1: 0.11 is 10 % over, so 0.2 * (1 + 0.1 * 50 / 100) = 0.21; 0.5 is clipped at 20 % over:
    # 0.21 * (1 + 0.2 * 50 / 100) = 0.231; at the target nothing moves.
    controller = AdaptiveKLController(0.2, target=0.1, horizon=100)
    values = []
    for current in (0.11, 0.5, 0.1):
        controller.update(current, 50)
        values.append(controller.coefficient)
    assert values == pytest.approx([0.21, 0.231, 0.231])


@given(st.lists(st.tuples(st.floats(-10, 1e6), st.integers(0, 10_000)), max_size=20))
def test_adaptive_controller_never_turns_negative(steps: list[tuple[float, int]]) -> None:
    controller = AdaptiveKLController(0.2, target=0.1, horizon=100)
    for current_kl, num_sequences in steps:
        controller.update(current_kl, num_sequences)
        assert controller.coefficient >= 0


def test_adaptive_controller_refuses_a_kl_that_is_not_finite() -> None:
    with pytest.raises(ValueError, match="nan"):
        AdaptiveKLController(0.2, target=0.1, horizon=100).update(math.nan, 8)


def test_controllers_continue_from_their_state() -> None:
    before = AdaptiveKLController(0.2, target=0.1, horizon=100)
    before.update(0.3, 8)
    after = AdaptiveKLController(0.2, target=0.1, horizon=100)
    after.load(before.state())
    assert after.coefficient == before.coefficient
    fixed = FixedKLController(0.3)
    fixed.load(FixedKLController(0.3).state())
    assert fixed.coefficient == 0.3


def test_controller_refuses_the_state_of_another_kind() -> None:
    with pytest.raises(ValueError, match=r"'fixed'.*'adaptive'"):
        AdaptiveKLController(0.2, target=0.1, horizon=100).load(FixedKLController(0.2).state())
