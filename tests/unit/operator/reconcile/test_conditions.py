import math
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.operator.reconcile.world import Operator, World, run

from trimtab.api.conditions import ConditionType
from trimtab.api.status import Condition, JobStatus
from trimtab_operator.model.observed import Observed, Progress
from trimtab_operator.reconcile import reconcile


def condition(status: JobStatus, kind: ConditionType) -> Condition:
    return next(c for c in status.conditions if c.type == kind)


def look(world: World, operator: Operator, **changes) -> Observed:
    """What the operator sees, with another report of the coordinator."""
    observed = operator.observe()
    return replace(observed, progress=replace(observed.progress, **changes)) if changes else observed


def test_every_condition_is_there_from_the_first_look(begun):
    world, _ = begun()
    assert [c.type for c in world.job.status.conditions] == list(ConditionType)
    assert "Ready" not in list(ConditionType)  # helm --wait would wait for it on a finished job


def test_nothing_new_is_no_write(stepping):
    world, operator = stepping()
    world.hangs = True
    run(world, operator, seconds=120)
    decision = operator.decide()
    assert decision.status is operator.observe().job.status
    assert not decision.events


def test_operator_that_restarts_and_has_heard_nothing_yet_changes_nothing(stepping):
    world, _ = stepping()
    before = world.job.status
    fresh = Operator(world)
    world.silent = True
    for _ in range(3):
        world.now += timedelta(seconds=1)
        fresh.turn()
    assert world.job.status == before


def test_time_of_a_condition_moves_with_its_status_alone(stepping):
    world, operator = stepping()
    before = {c.type: c.last_transition_time for c in world.job.status.conditions}
    world.now += timedelta(seconds=100)
    world.remove(world.running("rollout")[1])
    operator.turn()
    running = condition(world.job.status, ConditionType.RUNNING)
    assert (running.status, running.reason) == ("True", "ReplicaLost")
    assert running.message == "replaced while training goes on: rollout-1"
    moved = {c.type for c in world.job.status.conditions if c.last_transition_time != before[c.type]}
    assert moved == {ConditionType.WORKERS_READY}


def test_edit_is_observed_at_once(stepping):
    world, operator = stepping()
    world.edit(ttlSecondsAfterFinished=5)
    operator.turn()
    assert world.job.status.observed_generation == 2
    assert {c.observed_generation for c in world.job.status.conditions} == {2}


def test_numbers_alone_are_written_once_a_minute(stepping):
    world, operator = stepping()
    writes, steps = operator.writes, []
    for _ in range(60):
        world.tick(10)
        operator.turn()
        steps.append(world.job.status.step)
    assert operator.writes - writes == 10
    assert len(set(steps)) in (10, 11)


def test_numbers_that_wait_are_looked_at_again_in_time(stepping):
    world, operator = stepping()
    run(world, operator, seconds=70, until=lambda: operator.decide().status.metrics_time == world.now)
    world.tick(5)
    assert operator.turn().requeue_after_s == 55


def test_transition_takes_the_newest_numbers_along(stepping):
    world, operator = stepping()
    world.tick(5)
    world.remove(world.running("rollout")[0])
    operator.turn()
    assert world.job.status.step == world.training.step


def test_metrics_come_from_the_runtimes_names(stepping):
    world, operator = stepping()
    metrics = {
        "critic/rewards/mean": 0.25,
        "critic/score/mean": 0.5,
        "kl/actual": 0.01,
        "actor/kl_loss": 0.02,
        "actor/entropy": 1.5,
        "response_length/mean": 64.0,
        "perf/total_num_tokens": 4096.0,
        "perf/time_per_step": 2.0,
        "training/staleness": 0.0,
    }
    world.now += timedelta(seconds=61)
    status = reconcile(look(world, operator, metrics=metrics), world.now).status
    assert status.metrics.model_dump() == {
        "reward": 0.25,
        "kl": 0.01,
        "entropy": 1.5,
        "responseLength": 64.0,
        "tokensPerSecond": 2048.0,
        "staleness": 0.0,
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_metric_that_is_not_finite_is_left_out_and_told_at_once(stepping, value):
    world, operator = stepping()
    metrics = {"critic/rewards/mean": 0.25, "kl/actual": value}
    decision = reconcile(look(world, operator, metrics=metrics, not_finite=("actor/loss",)), world.now)
    assert decision.status.metrics.reward == 0.25 and decision.status.metrics.kl is None
    healthy = condition(decision.status, ConditionType.METRICS_HEALTHY)
    assert (healthy.status, healthy.message) == ("False", "not finite: actor/loss, kl/actual")
    assert [(event.type, event.reason) for event in decision.events] == [("Warning", "NotFinite")]
    JobStatus.model_validate_json(decision.status.model_dump_json())


def test_degraded_names_the_replicas_that_are_short(stepping):
    world, operator = stepping(roles__rollout__minReplicas=2)
    world.remove(world.running("rollout")[0])
    operator.turn()
    degraded = condition(world.job.status, ConditionType.DEGRADED)
    assert (degraded.status, degraded.reason) == ("True", "BelowMinReplicas")
    assert degraded.message == "1 rollout replicas of at least 2"
    run(world, operator, seconds=90)
    assert condition(world.job.status, ConditionType.DEGRADED).reason == "EnoughReplicas"


def test_registered_workers_that_are_short_degrade_too(stepping):
    world, operator = stepping()
    decision = reconcile(look(world, operator, ready={"actor": 2, "rollout": 0, "reward": 1}), world.now)
    assert condition(decision.status, ConditionType.DEGRADED).status == "True"
    assert condition(decision.status, ConditionType.WORKERS_READY).message == "missing: rollout"
    assert {role.name: role.ready for role in decision.status.roles}["rollout"] == 0


def test_missing_workers_are_named_as_the_coordinator_names_them(stepping):
    world, operator = stepping()
    decision = reconcile(look(world, operator, missing="rollout-1 (no heartbeats)"), world.now)
    ready = condition(decision.status, ConditionType.WORKERS_READY)
    assert (ready.reason, ready.message) == (
        "WaitingForWorkers",
        "missing: rollout-1 (no heartbeats)",
    )


def test_words_of_a_coordinator_before_the_present_one_are_not_believed(stepping):
    world, operator = stepping()
    observed = look(world, operator)
    world.crash(world.running("coordinator")[0])
    operator.turn()
    world.silent = True
    run(world, operator, seconds=60, until=lambda: world.running("coordinator"))
    late = replace(operator.observe(), progress=observed.progress)
    decision = reconcile(late, world.now)
    running = condition(decision.status, ConditionType.RUNNING)
    assert (running.status, running.reason) == ("False", "CoordinatorLost")


def test_report_from_before_the_actors_restart_is_not_taken_for_steps(stepping):
    world, operator = stepping()
    old = operator.observe().progress
    world.crash(world.running("actor")[0])
    operator.turn()
    world.silent = True
    run(world, operator, seconds=60, until=lambda: len(world.running("actor")) == 2)
    decision = reconcile(replace(operator.observe(), progress=old), world.now)
    assert condition(decision.status, ConditionType.RUNNING).reason == "ActorLost"


def test_long_message_fits_the_api(stepping):
    world, operator = stepping()
    world.end(world.running("rollout")[0], 64, message="x" * 50_000)
    decision = operator.turn()
    assert len(condition(world.job.status, ConditionType.FAILED).message) < 4000
    assert all(len(event.message) <= 1024 for event in decision.events)


def test_reason_of_a_newer_operator_is_kept_and_read(stepping):
    world, _ = stepping()
    newer = tuple(
        c.model_copy(update={"reason": "TakingQuantumSteps"}) if c.type == ConditionType.RUNNING else c
        for c in world.job.status.conditions
    )
    world._change_job(status=world.job.status.model_copy(update={"conditions": newer}))
    fresh = Operator(world)
    world.silent = True
    fresh.turn()
    assert condition(world.job.status, ConditionType.RUNNING).reason == "TakingQuantumSteps"


def test_progress_without_numbers_keeps_what_is_known(stepping):
    world, operator = stepping()
    world.now += timedelta(seconds=61)
    bare = Progress(attempt=world.job.status.attempt, phase="Recovering", step=4, received=world.now)
    status = reconcile(replace(operator.observe(), progress=bare), world.now).status
    assert (status.total_steps, status.metrics.reward) == (400, 0.5)
    assert condition(status, ConditionType.METRICS_HEALTHY).status == "True"
