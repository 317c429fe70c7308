"""Group advantages, hand-worked and as properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.algorithms.advantages import group_advantages, place_scores, spread_to_tokens

SCORES = st.floats(-100, 100, allow_nan=False)
ROWS = st.lists(st.tuples(SCORES, st.sampled_from(["0/1", "0/2", "1/1"])), min_size=1, max_size=24)


def test_group_advantages_hand_worked() -> None:
    # Group a: scores 1, 0, 0, 1: mean 0.5, Bessel variance (4 * 0.25) / 3 = 1/3, std 0.57735.
    # 0.5 / (0.57735 + 1e-6) = 0.866024. Group b: 2, 4: mean 3, std sqrt(2), 1 / 1.414215 = 0.707106.
    scores, groups = [1, 2, 0, 0, 4, 1], ["a", "b", "a", "a", "b", "a"]
    want = [0.866024, -0.707106, -0.866024, -0.866024, 0.707106, 0.866024]
    assert group_advantages(scores, groups, normalize_by_std=True) == pytest.approx(want, abs=1e-6)
    want = [0.5, -1, -0.5, -0.5, 1, 0.5]
    assert group_advantages(scores, groups, normalize_by_std=False) == pytest.approx(want, abs=1e-12)


@given(ROWS, st.booleans())
def test_group_advantages_sum_to_zero_in_every_group_of_two_or_more(
    rows: list[tuple[float, str]], by_std: bool
) -> None:
    scores, groups = zip(*rows, strict=True)
    advantages = group_advantages(scores, groups, normalize_by_std=by_std)
    for group in set(groups):
        members = np.array(groups) == group
        if members.sum() > 1:
            scale = max(1.0, float(np.abs(advantages[members]).max()))
            assert abs(advantages[members].sum()) < 1e-8 * scale


@given(ROWS, st.randoms())
def test_group_advantages_follow_a_permutation(rows: list[tuple[float, str]], random: object) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    scores, groups = zip(*rows, strict=True)
    straight = group_advantages(scores, groups, normalize_by_std=False)
    shuffled = group_advantages(
        [scores[i] for i in order], [groups[i] for i in order], normalize_by_std=False
    )
    np.testing.assert_allclose(shuffled, straight[order], rtol=0, atol=1e-10)


@given(SCORES, st.integers(2, 9), st.booleans())
def test_group_with_one_value_gives_exactly_zero(score: float, size: int, by_std: bool) -> None:
    assert not group_advantages([score] * size, [7] * size, normalize_by_std=by_std).any()


def test_group_of_one_keeps_its_score() -> None:
    # Mean 0 and deviation 1 stand in: 0.75 / (1 + 1e-6).
    assert group_advantages([0.75], ["a"], normalize_by_std=True) == pytest.approx([0.75 / 1.000001])
    assert group_advantages([0.75], ["a"], normalize_by_std=False) == pytest.approx([0.75])


def test_no_scores_give_no_advantages() -> None:
    assert group_advantages([], [], normalize_by_std=True).shape == (0,)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_score_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages([1.0, bad], ["a", "a"], normalize_by_std=True)


def test_spread_and_place_hand_worked() -> None:
    # Sequence 0: prompt, token, prompt-like hole, token; 1: nothing kept; 2: empty; 3: one token.
    offsets = np.array([0, 4, 6, 6, 7])
    mask = np.array([0, 1, 0, 1, 0, 0, 1], bool)
    values = np.array([2.0, 5.0, 6.0, -1.0])
    assert spread_to_tokens(values, mask, offsets).tolist() == [0, 2, 0, 2, 0, 0, -1]
    assert place_scores(values, mask, offsets).tolist() == [0, 0, 0, 2, 0, 0, -1]
