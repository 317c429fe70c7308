"""GRPO's loss: hand-worked numbers, identities, and that pieces add up to the whole, gradients included."""

import math
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.algorithms.aggregation import AggregationMode, aggregate
from trimtab.algorithms.denominators import Denominators
from trimtab.algorithms.kl import kl_in_reward
from trimtab.algorithms.losses import GrpoLoss, GrpoLossConfig, PolicyLossInputs, grpo_loss

MODES: list[AggregationMode] = [
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
]
EVERYTHING = GrpoLossConfig(
    clip_low=0.2,
    clip_high=0.28,
    dual_clip=3.0,
    scale_factor=16.0,
    kl_coefficient=0.1,
    entropy_coefficient=0.05,
)
every_mode = pytest.mark.parametrize("mode", MODES)


def tensor(*values: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def batch(lengths: list[int], *, seed: int = 0, holes: bool = True) -> PolicyLossInputs:
    """Random sequences of the given lengths; `log_probs` and `entropy` are leaves."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)

    def draw() -> torch.Tensor:
        return torch.randn(total, generator=generator, dtype=torch.float64)

    old = -draw().abs()
    return PolicyLossInputs(
        log_probs=(old + 0.5 * draw()).requires_grad_(),
        old_log_probs=old,
        advantages=draw(),
        mask=(draw() > -0.7) if holes else torch.ones(total, dtype=torch.bool),
        sequence_ids=torch.repeat_interleave(
            torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.long)
        ),
        num_sequences=len(lengths),
        reference_log_probs=old + 0.3 * draw(),
        entropy=draw().abs().requires_grad_(),
        rollout_log_probs=old + 0.1 * draw(),
    )


def denominators_of(inputs: PolicyLossInputs) -> Denominators:
    present = torch.unique(inputs.sequence_ids[inputs.mask.bool()])
    return Denominators(float(inputs.mask.sum()), float(len(present)))


def pick(inputs: PolicyLossInputs, index: torch.Tensor) -> PolicyLossInputs:
    """The given tokens, sequences numbered anew; still connected to the same leaves."""
    changed: dict[str, Any] = {}
    for field in fields(inputs):
        value = getattr(inputs, field.name)
        changed[field.name] = value[index] if isinstance(value, torch.Tensor) else value
    present, changed["sequence_ids"] = torch.unique(changed["sequence_ids"], return_inverse=True)
    changed["num_sequences"] = len(present)
    return PolicyLossInputs(**changed)


def evaluate(
    pieces: list[PolicyLossInputs],
    leaves: PolicyLossInputs,
    denominators: Denominators,
    config: GrpoLossConfig,
) -> tuple[dict[str, float], tuple[torch.Tensor, ...]]:
    """Sums over the pieces: every metric, and the gradients at the leaves."""
    sums: dict[str, float] = {}
    total = torch.zeros((), dtype=torch.float64)
    for piece in pieces:
        loss, metrics = grpo_loss(piece, denominators, config)
        total = total + loss
        for name, value in metrics.items():
            assert not value.requires_grad
            sums[name] = sums.get(name, 0.0) + value.item()
    assert leaves.entropy is not None
    return sums, torch.autograd.grad(total, (leaves.log_probs, leaves.entropy))


def assert_equal(got: tuple[Any, Any], want: tuple[Any, Any]) -> None:
    assert got[0] == pytest.approx(want[0], rel=0, abs=1e-10)
    for g, w in zip(got[1], want[1], strict=True):
        torch.testing.assert_close(g, w, rtol=0, atol=1e-10)


# Hand-worked.


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped", "lower"),
    [
        # loss = max(-A r, -A clip(r, 0.8, 1.28)); slope = d loss / d log_prob = -A r, 0 where a bound holds.
        pytest.param(1.1, 2.0, -2.2, -2.2, 0, 0, id="inside"),
        pytest.param(1.5, 2.0, -2.56, 0.0, 1, 0, id="too high and good: -2 * 1.28"),
        pytest.param(1.5, -2.0, 3.0, 3.0, 0, 0, id="too high and bad: not clipped"),
        pytest.param(0.5, -2.0, 1.6, 0.0, 1, 0, id="too low and bad: 2 * 0.8"),
        pytest.param(0.5, 2.0, -1.0, -1.0, 0, 0, id="too low and good: not clipped"),
        pytest.param(5.0, -2.0, 6.0, 0.0, 0, 1, id="far too high and bad: dual clip 2 * 3"),
        pytest.param(1.5, 0.0, 0.0, 0.0, 0, 0, id="no advantage"),
    ],
)
def test_clipping_hand_worked(
    ratio: float, advantage: float, loss: float, slope: float, clipped: float, lower: float
) -> None:
    inputs = PolicyLossInputs(
        log_probs=tensor(math.log(ratio) - 1, grad=True),
        old_log_probs=tensor(-1),
        advantages=tensor(advantage),
        mask=tensor(1),
        sequence_ids=torch.tensor([0]),
        num_sequences=1,
    )
    config = GrpoLossConfig(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    value, metrics = grpo_loss(inputs, Denominators(1, 1), config)
    (gradient,) = torch.autograd.grad(value, inputs.log_probs)
    assert value.item() == pytest.approx(loss)
    assert gradient.item() == pytest.approx(slope)
    assert metrics["actor/pg_clipfrac"].item() == clipped
    assert metrics["actor/pg_clipfrac_lower"].item() == lower
    assert metrics["actor/ppo_kl"].item() == pytest.approx(-math.log(ratio))


def test_without_dual_clip_the_loss_of_a_bad_token_is_unbounded() -> None:
    inputs = replace(batch([1], holes=False), old_log_probs=tensor(-6), advantages=tensor(-2.0))
    inputs = replace(inputs, log_probs=tensor(-1))
    loss, _ = grpo_loss(inputs, Denominators(1, 1), GrpoLossConfig(dual_clip=None))
    assert loss.item() == pytest.approx(2 * math.exp(5))


def test_all_terms_hand_worked() -> None:
    # Two tokens on policy: A = 1, -3 -> policy loss (-1 + 3) / 2 = 1. d = log_prob - reference = 0.2, -0.4:
    # k2 (0.02 + 0.08) / 2 = 0.05. Entropy (1 + 2) / 2 = 1.5. Loss 1 + 0.5 * 0.05 - 0.1 * 1.5 = 0.875.
    inputs = PolicyLossInputs(
        log_probs=tensor(-1, -2, grad=True),
        old_log_probs=None,
        advantages=tensor(1, -3),
        mask=tensor(1, 1),
        sequence_ids=torch.tensor([0, 0]),
        num_sequences=1,
        reference_log_probs=tensor(-1.2, -1.6),
        entropy=tensor(1, 2, grad=True),
        rollout_log_probs=tensor(-1.1, -1.7),
    )
    config = GrpoLossConfig(kl_coefficient=0.5, kl_estimator="k2", entropy_coefficient=0.1)
    loss, metrics = grpo_loss(inputs, Denominators(2, 1), config)
    assert loss.item() == pytest.approx(0.875)
    assert {name: value.item() for name, value in metrics.items()} == pytest.approx(
        {
            "actor/loss": 0.875,
            "actor/pg_loss": 1.0,
            "actor/ppo_kl": 0.0,
            "actor/pg_clipfrac": 0.0,
            "actor/pg_clipfrac_lower": 0.0,
            "actor/kl_loss": 0.05,
            "kl/actual": 0.05,
            "actor/entropy": 1.5,
            "rollout/logprob_diff_mean": 0.2,  # (0.1 + 0.3) / 2
        }
    )
    # d/d log_prob: policy -A r / 2 = -0.5, 1.5; KL 0.5 * d / 2 = 0.05, -0.1. d/d entropy: -0.1 / 2.
    loss.backward()
    torch.testing.assert_close(inputs.log_probs.grad, tensor(-0.45, 1.4))
    assert inputs.entropy is not None
    torch.testing.assert_close(inputs.entropy.grad, tensor(-0.05, -0.05))


# Identities.


@every_mode
def test_on_policy_ratio_is_exactly_one_and_its_gradient_is_the_policy_gradient(
    mode: AggregationMode,
) -> None:
    inputs = replace(batch([3, 5, 2]), old_log_probs=None)
    config = GrpoLossConfig(aggregation=mode, scale_factor=16.0, dual_clip=3.0)
    denominators = denominators_of(inputs)
    loss, metrics = grpo_loss(inputs, denominators, config)
    assert metrics["actor/ppo_kl"].item() == 0
    assert metrics["actor/pg_clipfrac"].item() == 0
    (gradient,) = torch.autograd.grad(loss, inputs.log_probs)
    # REINFORCE: the gradient of -A log p, weighed alike.
    plain = aggregate(
        -inputs.advantages * inputs.log_probs,
        inputs.mask,
        inputs.sequence_ids,
        inputs.num_sequences,
        mode,
        replace(denominators, scale_factor=16.0),
    )
    torch.testing.assert_close(gradient, torch.autograd.grad(plain, inputs.log_probs)[0], rtol=0, atol=1e-14)


def test_old_log_probs_equal_to_the_current_ones_give_the_same_as_none() -> None:
    inputs = batch([3, 5, 2])
    same = replace(inputs, old_log_probs=inputs.log_probs.detach().clone())
    none = replace(inputs, old_log_probs=None)
    denominators = denominators_of(inputs)
    assert_equal(
        evaluate([same], inputs, denominators, EVERYTHING), evaluate([none], inputs, denominators, EVERYTHING)
    )


def test_kl_of_the_reference_itself_is_zero() -> None:
    inputs = batch([4, 4])
    inputs = replace(inputs, reference_log_probs=inputs.log_probs.detach())
    _, metrics = grpo_loss(inputs, denominators_of(inputs), EVERYTHING)
    assert metrics["actor/kl_loss"].item() == 0
    assert metrics["kl/actual"].item() == 0


def test_kl_in_the_reward_is_measured_but_not_added() -> None:
    inputs = batch([4, 4])
    config = replace(EVERYTHING, kl_placement="reward")
    with_kl, metrics = grpo_loss(inputs, denominators_of(inputs), config)
    without, _ = grpo_loss(inputs, denominators_of(inputs), config.with_kl_coefficient(0.0))
    assert with_kl.item() == without.item()
    assert metrics["kl/actual"].item() > 0


@every_mode
def test_actual_kl_is_what_the_controller_would_get_from_the_reward(mode: AggregationMode) -> None:
    inputs = batch([2, 9, 4])
    _, metrics = grpo_loss(inputs, denominators_of(inputs), replace(EVERYTHING, aggregation=mode))
    assert inputs.reference_log_probs is not None
    in_reward = kl_in_reward(
        np.zeros(15),
        inputs.log_probs.detach().numpy(),
        inputs.reference_log_probs.numpy(),
        inputs.mask.numpy(),
        np.array([0, 2, 11, 15]),
        estimator="k3",
        coefficient=1.0,
    )
    assert metrics["kl/actual"].item() == pytest.approx(in_reward.current_kl, abs=1e-12)


@every_mode
def test_gradients_equal_finite_differences(mode: AggregationMode) -> None:
    inputs = batch([3, 4, 2], seed=3)
    config = replace(EVERYTHING, aggregation=mode)

    def loss(log_probs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        changed = replace(inputs, log_probs=log_probs, entropy=entropy)
        return grpo_loss(changed, denominators_of(inputs), config)[0]

    assert torch.autograd.gradcheck(loss, (inputs.log_probs, inputs.entropy))


# Invariances.


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    cuts=st.sets(st.integers(1, 7)),
    mode=st.sampled_from(MODES),
    seed=st.integers(0, 1000),
)
def test_micro_batches_add_up_to_the_whole(
    lengths: list[int], cuts: set[int], mode: AggregationMode, seed: int
) -> None:
    whole, config = batch(lengths, seed=seed), replace(EVERYTHING, aggregation=mode)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(lengths)), len(lengths)]
    pieces = [
        pick(whole, torch.nonzero((whole.sequence_ids >= a) & (whole.sequence_ids < b)).flatten())
        for a, b in pairwise(bounds)
    ]
    denominators = denominators_of(whole)
    assert_equal(
        evaluate(pieces, whole, denominators, config), evaluate([whole], whole, denominators, config)
    )


@every_mode
@pytest.mark.parametrize("num_ranks", [2, 3, 7])
def test_shards_of_unequal_ranks_add_up_to_the_whole(mode: AggregationMode, num_ranks: int) -> None:
    # Dealt round: with 7 ranks and 5 sequences, two ranks hold nothing at all.
    whole, config = batch([1, 9, 4, 2, 6]), replace(EVERYTHING, aggregation=mode)
    pieces = [
        pick(whole, torch.nonzero(whole.sequence_ids % num_ranks == rank).flatten())
        for rank in range(num_ranks)
    ]
    denominators = denominators_of(whole)
    assert_equal(
        evaluate(pieces, whole, denominators, config), evaluate([whole], whole, denominators, config)
    )


@every_mode
def test_order_of_sequences_does_not_matter(mode: AggregationMode) -> None:
    whole, config = batch([3, 1, 5, 2]), replace(EVERYTHING, aggregation=mode)
    order = torch.cat([torch.nonzero(whole.sequence_ids == s).flatten() for s in (2, 0, 3, 1)])
    denominators = denominators_of(whole)
    assert_equal(
        evaluate([pick(whole, order)], whole, denominators, config),
        evaluate([whole], whole, denominators, config),
    )


@every_mode
@pytest.mark.parametrize("rubbish", [0.0, 1e6, -math.inf, math.nan])
def test_padding_is_irrelevant_whatever_stands_there(mode: AggregationMode, rubbish: float) -> None:
    whole, config = batch([3, 5, 2]), replace(EVERYTHING, aggregation=mode)
    denominators = denominators_of(whole)

    def pad(values: torch.Tensor, filler: float) -> torch.Tensor:
        parts = []
        for sequence in range(whole.num_sequences):
            parts += [values[whole.sequence_ids == sequence], torch.full((4,), filler, dtype=values.dtype)]
        return torch.cat(parts)

    padded = PolicyLossInputs(
        log_probs=pad(whole.log_probs, rubbish),
        old_log_probs=pad(whole.old_log_probs, rubbish),
        advantages=pad(whole.advantages, rubbish),
        mask=pad(whole.mask, 0.0),
        sequence_ids=torch.repeat_interleave(torch.arange(3), torch.tensor([7, 9, 6])),
        num_sequences=3,
        reference_log_probs=pad(whole.reference_log_probs, rubbish),
        entropy=pad(whole.entropy, rubbish),
        rollout_log_probs=pad(whole.rollout_log_probs, rubbish),
    )
    assert_equal(
        evaluate([padded], whole, denominators, config), evaluate([whole], whole, denominators, config)
    )


@every_mode
def test_fully_masked_sequence_changes_nothing_and_gets_no_gradient(mode: AggregationMode) -> None:
    whole, config = batch([3, 5, 2]), replace(EVERYTHING, aggregation=mode)
    whole = replace(whole, mask=whole.mask & (whole.sequence_ids != 1))
    denominators = denominators_of(whole)
    got = evaluate([whole], whole, denominators, config)
    for gradient in got[1]:
        assert not gradient[whole.sequence_ids == 1].any()
    rest = pick(whole, torch.nonzero(whole.sequence_ids != 1).flatten())
    assert_equal(got, evaluate([rest], whole, denominators, config))


@every_mode
@pytest.mark.parametrize("lengths", [[], [0, 0], [3, 2]], ids=["no sequences", "no tokens", "all masked"])
def test_nothing_to_learn_from_gives_a_differentiable_zero(mode: AggregationMode, lengths: list[int]) -> None:
    inputs = batch(lengths)
    inputs = replace(inputs, mask=torch.zeros_like(inputs.mask))
    metrics, gradients = evaluate([inputs], inputs, Denominators(0, 0), replace(EVERYTHING, aggregation=mode))
    assert set(metrics.values()) <= {0.0}
    assert not any(gradient.any() for gradient in gradients)


def test_bfloat16_log_probs_are_raised_before_the_ratio() -> None:
    # 1 + 2^-9 is no bfloat16: in bfloat16 the ratio would be exactly 1, and the log-ratio lost.
    inputs = PolicyLossInputs(
        log_probs=torch.tensor([-1.0], dtype=torch.bfloat16),
        old_log_probs=torch.tensor([-1.0 - 2**-9]),
        advantages=torch.ones(1),
        mask=torch.ones(1),
        sequence_ids=torch.zeros(1, dtype=torch.long),
        num_sequences=1,
    )
    loss, _ = grpo_loss(inputs, Denominators(1, 1), GrpoLossConfig())
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(-math.exp(2**-9), abs=1e-7)


# Settings.


def test_denominators_scale_factor_goes_before_the_settings() -> None:
    inputs = batch([3, 2])
    config = replace(EVERYTHING, aggregation="seq-mean-token-sum-norm", entropy_coefficient=0.0)
    denominators = denominators_of(inputs)
    by_settings, _ = grpo_loss(inputs, denominators, config)  # 16
    by_denominators, _ = grpo_loss(inputs, replace(denominators, scale_factor=8.0), config)
    assert by_denominators.item() == pytest.approx(2 * by_settings.item())


def test_loss_object_equals_the_function() -> None:
    inputs = batch([3, 2])
    loss, _ = GrpoLoss(EVERYTHING)(inputs, denominators_of(inputs))
    assert loss.item() == grpo_loss(inputs, denominators_of(inputs), EVERYTHING)[0].item()


def test_kl_in_the_loss_without_a_reference_is_an_error() -> None:
    inputs = replace(batch([3, 2]), reference_log_probs=None)
    with pytest.raises(AssertionError, match="reference"):
        grpo_loss(inputs, denominators_of(inputs), EVERYTHING)
