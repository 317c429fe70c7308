import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.engines.training.packing import Segment, Unit, make_units, pack, plan_micro_batches
from trimtab.episodes import TrainBatch
from trimtab.errors import UserError


def batch_of(*sequences: tuple[list[int], list[int]]) -> TrainBatch:
    """Each sequence is (prompt, response)."""
    lengths = [len(prompt) + len(response) for prompt, response in sequences]
    return TrainBatch(
        token_ids=np.array([t for prompt, response in sequences for t in prompt + response], np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        loss_mask=np.array([m for p, r in sequences for m in [False] * len(p) + [True] * len(r)]),
    )


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(50, 200))
def test_plan_any_units_places_each_once_within_the_limit(sizes: list[int], limit: int) -> None:
    units = [Unit((index,), size) for index, size in enumerate(sizes)]
    plan = plan_micro_batches(units, max_tokens=limit)
    assert sorted(s for members in plan for s in members) == list(range(len(sizes)))
    assert all(sum(sizes[s] for s in members) <= limit for members in plan)


def test_plan_equal_units_balances_tokens() -> None:
    plan = plan_micro_batches([Unit((s,), 10) for s in range(9)], max_tokens=40)
    assert sorted(len(members) for members in plan) == [3, 3, 3]


def test_plan_no_units_is_empty() -> None:
    assert plan_micro_batches([], max_tokens=10) == []


def test_units_of_one_prompt_count_it_once() -> None:
    batch = batch_of(([1, 2, 3], [4, 5]), ([1, 2, 3], [6]), ([9], [7, 8]))
    units = make_units(batch, max_tokens=100, share_prompts=True)
    assert units == [Unit((0, 1), 3 + 2 + 1), Unit((2,), 1 + 2)]


def test_units_too_large_group_is_split() -> None:
    batch = batch_of(*[([1, 2, 3], [4, 5])] * 4)
    units = make_units(batch, max_tokens=8, share_prompts=True)
    assert units == [Unit((0, 1), 7), Unit((2, 3), 7)]


def test_units_sequence_above_the_limit_names_the_setting() -> None:
    with pytest.raises(UserError, match=r"training\.maxTokensPerMicroBatch: 4 .*5 tokens"):
        make_units(batch_of(([1, 2, 3], [4, 5])), max_tokens=4, share_prompts=True)


def test_pack_shared_prompt_lies_once_and_predicts_each_first_token() -> None:
    batch = batch_of(([1, 2], [5, 6]), ([1, 2], [7]))
    packed = pack(batch, [0, 1], share_prompts=True)
    assert packed.token_ids.tolist() == [1, 2, 5, 6, 7]
    assert packed.position_ids.tolist() == [0, 1, 2, 3, 2]
    assert packed.segments == (Segment(0, 2), Segment(2, 2, 0, 2), Segment(4, 1, 0, 2))
    assert packed.predictor.tolist() == [1, 2, 1]  # the prompt's last token predicts 5 and 7
    assert packed.targets.tolist() == [5, 6, 7]
    assert packed.batch_index.tolist() == [2, 3, 6]
    assert packed.sequence_ids.tolist() == [0, 0, 1]


def test_pack_prompt_of_one_sequence_is_not_split_off() -> None:
    packed = pack(batch_of(([1, 2], [5]), ([3], [6])), [0, 1], share_prompts=True)
    assert packed.segments == (Segment(0, 3), Segment(3, 2))
    assert packed.predictor.tolist() == [1, 3]


def test_pack_without_sharing_repeats_the_prompt() -> None:
    packed = pack(batch_of(([1, 2], [5]), ([1, 2], [6])), [0, 1], share_prompts=False)
    assert packed.token_ids.tolist() == [1, 2, 5, 1, 2, 6]
    assert packed.position_ids.tolist() == [0, 1, 2, 0, 1, 2]


def test_pack_mask_with_a_hole_skips_its_tokens() -> None:
    batch = batch_of(([1, 2], [5, 6, 7]))
    batch.loss_mask[3] = False  # a tool's token between two of the model's
    packed = pack(batch, [0], share_prompts=True)
    assert packed.targets.tolist() == [5, 7]
    assert packed.predictor.tolist() == [1, 3]
