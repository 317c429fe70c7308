import json
import math

import pytest

from trimtab.api.operations import HealthSpec
from trimtab.observability.health import RULES, HealthMonitor

LIMITS = HealthSpec(flat_reward_steps=6, max_latency_seconds=120)


def run(
    metric: str, values: list[float], *, limits: HealthSpec = LIMITS, **others: float
) -> list[tuple[str, int]]:
    """(rule, step) of the warnings that a series of one metric gives rise to; steps count from 1."""
    monitor = HealthMonitor(limits)
    return [
        (warning.rule, warning.step)
        for step, value in enumerate(values, 1)
        for warning in monitor.check(step, {metric: value, **others})
    ]


@pytest.mark.parametrize(
    ("metric", "values", "others", "expected"),
    [
        ("actor/entropy", [2.0] * 5 + [0.1] * 6, {}, [("entropy-collapse", 8)]),
        ("actor/entropy", [2.0] * 5 + [0.1, 0.1, 2.0] * 4, {}, []),
        ("actor/entropy", [2.0] * 5 + [0.5] * 6, {}, []),
        ("rollout/latency_ms", [1000.0, 130e3, 130e3, 130e3, 130e3], {}, [("rollout-latency", 4)]),
        ("kl/actual", [0.1] * 6, {"kl/target": 0.02}, [("kl-above-target", 3)]),
        ("kl/actual", [0.07] * 6, {"kl/target": 0.02}, []),
        ("kl/actual", [1.5] * 6, {}, [("kl-above-target", 3)]),
        ("critic/score/mean", [0.2] * 12, {"critic/score/max": 1.0}, [("reward-flat", 6)]),
        ("critic/score/mean", [0.95] * 12, {"critic/score/max": 1.0}, []),
        ("critic/score/mean", [0.02 * step for step in range(12)], {}, []),
        ("actor/entropy", [0.04] * 6, {}, [("entropy-collapse", 3)]),
        ("rollout/logprob_diff_mean", [0.01] * 5 + [0.05] * 4, {}, [("logprob-difference", 8)]),
        ("rollout/logprob_diff_mean", [0.001] * 5 + [0.01] * 4, {}, []),
        ("rollout/logprob_diff_mean", [0.2] * 4, {}, [("logprob-difference", 3)]),
        ("response_length/clip_ratio", [0.6] * 4, {}, [("responses-cut-off", 3)]),
        ("reward/failed", [0.0, 3.0, 3.0], {}, [("rewards-failing", 2)]),
        ("rollout/out_of_memory", [0, 2, 2], {}, [("rollout-out-of-memory", 2)]),
        ("actor/skipped_updates", [0.0, 1.0, 1.0], {}, [("updates-skipped", 2)]),
        ("actor/grad_norm", [1.0, math.nan, math.inf], {}, [("non-finite", 2)]),
    ],
    ids=[
        "entropy falls for good",
        "entropy falls now and then",
        "entropy falls a little",
        "slow responses",
        "KL far above the target",
        "KL above the target within the ratio",
        "KL above the limit without a target",
        "score flat",
        "score flat because the task is solved",
        "score rising",
        "entropy low from the start",
        "log-probs drift apart",
        "log-probs drift apart by little",
        "log-probs apart from the start",
        "responses cut off",
        "rewards failing",
        "out of memory",
        "updates skipped",
        "gradient norm not finite",
    ],
)
def test_check_series_warns_once_at_the_step(metric, values, others, expected) -> None:
    assert run(metric, values, **others) == expected


def test_check_entropy_of_a_solved_task_is_no_collapse() -> None:
    others = {"critic/score/mean": 0.98, "critic/score/max": 1.0}
    assert run("actor/entropy", [2.0] * 5 + [0.01] * 6, **others) == []


def test_check_limit_none_switches_a_rule_off() -> None:
    off = HealthSpec(
        min_entropy=None,
        max_kl=None,
        max_truncated_share=None,
        flat_reward_steps=None,
        max_log_prob_difference=None,
        max_latency_seconds=None,
    )
    for metric in {rule.metric for rule in RULES} - {
        "reward/failed",
        "rollout/out_of_memory",
        "actor/skipped_updates",
    }:
        assert run(metric, [1.0] * 5 + [1e-9] * 20 + [1e9] * 20, limits=off) == []


def test_message_names_the_figures_and_advice_what_to_try() -> None:
    monitor = HealthMonitor(LIMITS)
    found = [w for step in range(1, 4) for w in monitor.check(step, {"kl/actual": 0.3, "kl/target": 0.05})]
    assert found[0].message == "KL to the reference is 0.3 nats per token, 6.0 times its target 0.05."
    assert "`kl.coefficient`" in found[0].advice
    assert str(found[0]).startswith("step 3: KL")


@pytest.mark.parametrize("cut", range(1, 12))
def test_load_state_after_any_step_continues_as_if_uninterrupted(cut: int) -> None:
    series = [
        {
            "actor/entropy": 2.0 if step < 5 else 0.1,
            "critic/score/mean": 0.2,
            "critic/score/max": 1.0,
            "rollout/logprob_diff_mean": 0.01 * step**2,
            "actor/grad_norm": math.nan if step == 3 else 1.0,
        }
        for step in range(12)
    ]
    whole = HealthMonitor(LIMITS)
    expected = [warning for step, metrics in enumerate(series) for warning in whole.check(step, metrics)]
    first, second = HealthMonitor(LIMITS), HealthMonitor(LIMITS)
    found = [w for step in range(cut) for w in first.check(step, series[step])]
    second.load(json.loads(json.dumps(first.state())))
    found += [w for step in range(cut, 12) for w in second.check(step, series[step])]
    assert found == expected
    assert second.state() == whole.state()


def test_rules_have_names_metrics_and_words_of_their_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.condition.endswith(".") and rule.advice.endswith(".") for rule in RULES)
