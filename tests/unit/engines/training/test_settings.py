import pytest

from trimtab.engines.training import Schedule


def test_schedule_warm_up_rises_in_equal_steps_and_never_is_zero() -> None:
    schedule = Schedule("constant", warmup_steps=3)
    assert [schedule.factor(step, None) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_schedule_linear_falls_to_zero_at_the_last_step() -> None:
    schedule = Schedule("linear", warmup_steps=0)
    assert [schedule.factor(step, 4) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_schedule_cosine_ends_at_its_ratio_and_stays() -> None:
    schedule = Schedule("cosine", warmup_steps=2, min_ratio=0.1)
    assert schedule.factor(2, 10) == pytest.approx(1.0)
    assert schedule.factor(6, 10) == pytest.approx(0.55)  # half way: 0.1 + 0.9 / 2
    assert schedule.factor(10, 10) == schedule.factor(99, 10) == pytest.approx(0.1)
