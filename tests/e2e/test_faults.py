"""Faults that must not hurt: processes killed in the middle of a step, and what the job makes of it."""

from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def ready(status: Any, role: str) -> tuple[int, int]:
    """Ready replicas and restarts."""
    return next((r.ready, r.restarts) for r in status.roles if r.role == role)


def steps_of(run: Any) -> list[int]:
    return [line["step"] for line in run.metrics()]


def test_rollout_killed_mid_step_is_replaced_and_brought_up_to_date(jobs):
    job = jobs.spec()
    job["spec"]["roles"]["rollout"]["replicas"] = 2
    job["spec"]["training"]["steps"] = 500
    run = jobs.start(job)
    run.until_generating(2)
    run.kill("rollout", replica=0)
    run.until(lambda s: ready(s, "rollout") == (2, 1), what="the killed rollout is back")
    back = run.status().step
    run.until(lambda s: s.step >= back + 3, what="three more steps")
    run.interrupt()
    assert run.wait() == 0
    assert steps_of(run) == list(range(1, run.summary()["step"] + 1))
    assert sum(line["rollout/retried"] for line in run.metrics()) > 0
    assert all(line["training/num_responses"] == 16 for line in run.metrics())
    # The new engine began with the initial model: it generates only once it has the current weights.
    assert all(line["rollout/logprob_diff_mean"] < 1e-3 for line in run.metrics())
    log = (run.run_dir / "logs" / "rollout-0-0.log").read_text()
    assert "serving weights version" in log.split("incarnation 2")[1]


def test_reward_killed_mid_step_is_restarted_and_no_sample_is_lost(jobs):
    run = jobs.start(jobs.spec())
    run.until_generating(2)
    run.kill("reward")
    assert run.wait() == 0
    assert steps_of(run) == [1, 2, 3, 4, 5, 6]
    assert all(line["training/num_responses"] == 16 for line in run.metrics())
    assert "incarnation 2" in (run.run_dir / "logs" / "reward-0-0.log").read_text()


def test_coordinator_killed_mid_step_loses_nothing(jobs):
    job = jobs.spec()
    undisturbed = jobs.start(job, name="undisturbed")
    assert undisturbed.wait() == 0
    run = jobs.start(job, name="disturbed")
    run.until_generating(3)
    run.kill("coordinator")
    assert run.wait() == 0
    assert steps_of(run) == [1, 2, 3, 4, 5, 6]
    # Neither the actor nor the rollout started again: they kept what they held.
    assert "incarnation 2" not in (run.run_dir / "logs" / "actor-0-0.log").read_text()
    names = ("actor/loss", "critic/score/mean", "response_length/mean", "actor/grad_norm", "weights/version")
    for got, want in zip(run.metrics(), undisturbed.metrics(), strict=True):
        assert {n: got[n] for n in names} == {n: want[n] for n in names}, got["step"]


def test_actor_killed_mid_step_goes_back_to_the_last_checkpoint_and_on(jobs):
    run = jobs.start(jobs.spec())
    run.until_generating(4)
    run.kill("actor")
    assert run.wait() == 0
    assert steps_of(run) == [1, 2, 3, 4, 5, 6]
    log = (run.run_dir / "logs" / "coordinator-0-0.log").read_text()
    assert "resuming from" in log
    assert "step-00000002" in log
    assert all(line["rollout/logprob_diff_mean"] < 1e-3 for line in run.metrics())


def test_one_of_two_actor_ranks_killed_restarts_the_unit(jobs):
    job = jobs.spec()
    job["spec"]["roles"]["actor"]["nodes"] = 2
    run = jobs.start(job)
    run.until_generating(3)
    run.kill("actor", rank=1)
    assert run.wait() == 0
    assert steps_of(run) == [1, 2, 3, 4, 5, 6]
    assert "incarnation 2" in (run.run_dir / "logs" / "actor-0-0.log").read_text()
