"""Faults that must not hurt: processes killed in the middle of a step, and what the job makes of it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def ready(status: Any, role: str) -> tuple[int, int]:
    """Ready replicas and restarts."""
    return next((r.ready, r.restarts) for r in status.roles if r.role == role)


def steps_of(run: Any) -> list[int]:
    return [line["step"] for line in run.metrics()]


def endless(jobs: Any) -> dict[str, Any]:
    """A job that never ends by itself."""
    job = jobs.spec()
    job["spec"]["training"]["steps"] = 100_000
    return job


def goes_on_and_stops(run: Any, *, steps: int = 3) -> None:
    back = run.until(lambda s: s.phase == "Running", what="running").step
    run.until(lambda s: s.step >= back + steps, what=f"{steps} more steps")
    run.interrupt()
    assert run.wait() == 0
    assert steps_of(run) == list(range(1, run.summary()["step"] + 1))
    assert all(line["training/num_responses"] == 16 for line in run.metrics())


def test_rollout_killed_mid_step_is_replaced_and_brought_up_to_date(jobs):
    job = endless(jobs)
    job["spec"]["roles"]["rollout"]["replicas"] = 2
    run = jobs.start(job)
    with run.held_up("rollout", replica=0) as held:
        run.kill("rollout", replica=0)
    run.until(lambda s: ready(s, "rollout") == (2, 1), what="the killed rollout is back")
    goes_on_and_stops(run)
    assert run.metrics()[held.step]["rollout/retried"] > 0
    # The new engine began with the initial model: it generates only once it has the current weights.
    assert all(line["rollout/logprob_diff_mean"] < 1e-3 for line in run.metrics())
    log = (run.run_dir / "logs" / "rollout-0-0.log").read_text()
    assert "serving weights version" in log.split("incarnation 2")[1]


@contextlib.contextmanager
def without_one_rollout_in_the_first_weight_group(jobs: Any) -> Iterator[Any]:
    """A run whose first weight group waits for rollout-1, which has registered and is paused."""
    job = endless(jobs)
    job["spec"]["roles"]["rollout"]["replicas"] = 2
    job["spec"]["weightSync"] = {"timeoutSeconds": 3600}
    run = jobs.start(job)
    run.until_started("reward")
    with contextlib.ExitStack() as reward_paused:
        reward_paused.enter_context(run.paused("reward"))
        run.until(lambda s: ready(s, "rollout") == (2, 0), what="both rollouts are here")
        with run.paused("rollout", replica=1):
            reward_paused.close()
            run.until_at_rest(lambda s: s.activity == "publishing weights")
            yield run


def test_rollout_killed_before_it_has_joined_costs_no_deadline(jobs):
    with without_one_rollout_in_the_first_weight_group(jobs) as run:
        run.kill("rollout", replica=1)
        run.until(lambda s: s.step >= 1, what="a step without it")
    run.until(lambda s: ready(s, "rollout") == (2, 1), what="the killed rollout is back")
    goes_on_and_stops(run)
    log = (run.run_dir / "logs" / "coordinator-0-0.log").read_text()
    assert "weights version 1, try 1 of 3: rollout-1/rank-0 was lost during join/" in log
    assert "try 2 of 3" not in log


def test_coordinator_killed_while_a_weight_group_forms_costs_no_deadline(jobs):
    with without_one_rollout_in_the_first_weight_group(jobs) as run:
        run.kill("coordinator")
    run.until(lambda s: s.step >= 1, what="a step under the next coordinator")
    goes_on_and_stops(run)
    assert "incarnation 2" not in (run.run_dir / "logs" / "actor-0-0.log").read_text()


def test_reward_killed_mid_step_is_restarted_and_no_sample_is_lost(jobs):
    run = jobs.start(endless(jobs))
    with run.held_up("reward"):
        run.kill("reward")
    run.until(lambda s: ready(s, "reward") == (1, 1), what="the killed reward is back")
    goes_on_and_stops(run)


def test_coordinator_killed_in_two_stages_of_a_step_loses_nothing(jobs):
    job = jobs.spec()
    # Without a reference, a paused actor is first missed at its update.
    job["spec"]["algorithm"]["grpo"]["kl"]["coefficient"] = 0.0
    job["spec"]["training"]["steps"] = 12
    undisturbed = jobs.start(job, name="undisturbed")
    assert undisturbed.wait() == 0
    run = jobs.start(job, name="disturbed")
    with run.held_up("rollout", after_step=2):
        run.kill("coordinator")
    with run.held_up("actor", after_step=4) as held:
        assert held.activity == "updating the actor"
        run.kill("coordinator")
    assert run.wait() == 0
    assert steps_of(run) == list(range(1, 13))
    log = (run.run_dir / "logs" / "coordinator-0-0.log").read_text()
    assert f"taking step {held.step + 1} up again (updating)" in log
    # Neither the actor nor the rollout started again: they kept what they held.
    for role in ("actor", "rollout"):
        assert "incarnation 2" not in (run.run_dir / "logs" / f"{role}-0-0.log").read_text()
    names = ("actor/loss", "critic/score/mean", "response_length/mean", "actor/grad_norm", "weights/version")
    for got, want in zip(run.metrics(), undisturbed.metrics(), strict=True):
        assert {n: got[n] for n in names} == {n: want[n] for n in names}, got["step"]


def test_actor_killed_mid_step_goes_back_to_the_last_checkpoint_and_on(jobs):
    run = jobs.start(endless(jobs))
    with run.held_up("rollout", after_step=3) as held:
        assert held.checkpoint_step > 0
        run.kill("actor")
    run.until(lambda s: ready(s, "actor") == (1, 1), what="the killed actor is back")
    goes_on_and_stops(run)
    log = (run.run_dir / "logs" / "coordinator-0-0.log").read_text()
    assert f"step-{held.checkpoint_step:08d} (step {held.checkpoint_step})" in log.split("resuming from")[1]
    assert all(line["rollout/logprob_diff_mean"] < 1e-3 for line in run.metrics())


def test_one_of_two_actor_ranks_killed_restarts_the_unit(jobs):
    job = endless(jobs)
    job["spec"]["roles"]["actor"]["nodes"] = 2
    run = jobs.start(job)
    with run.held_up("actor", rank=1, after_step=2):
        run.kill("actor", rank=1)
    run.until(lambda s: ready(s, "actor") == (2, 1), what="both ranks are back")
    goes_on_and_stops(run)
    assert "incarnation 2" in (run.run_dir / "logs" / "actor-0-0.log").read_text()
