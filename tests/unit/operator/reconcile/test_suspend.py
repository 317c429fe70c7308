from datetime import timedelta

from tests.unit.operator.reconcile.looks import actions, phase, reasons, say
from tests.unit.operator.reconcile.world import Operator, World, run

from trimtab.api.conditions import ConditionType
from trimtab_operator.model.actions import (
    CreatePod,
    CreateResolved,
    DeletePod,
    StopTraining,
)


def test_suspend_writes_a_checkpoint_and_resume_goes_on_from_it(stepping):
    world, operator = stepping()
    attempt = world.job.status.attempt
    world.edit(suspend=True)
    decision = operator.decide()
    (stop,) = actions(decision, StopTraining)
    assert stop.grace_s == 60
    assert (phase(world), world.condition(ConditionType.RUNNING)) == (
        "Suspending",
        ("False", "StopRequested"),
    )
    assert not actions(decision, DeletePod)
    run(world, operator, seconds=120, until=lambda: phase(world) == "Suspended")
    step = world.training.step
    assert world.training.checkpoint == step
    assert not world.pods
    assert say(world, ConditionType.SUSPENDED) == (
        f"it resumes from the checkpoint of step {step} at /trimtab/run/checkpoints/{step}"
    )
    assert (world.job.status.rollout_replicas, world.job.status.step) == (0, step)
    quiet = operator.turn()
    assert quiet.status == world.job.status and not quiet.actions
    world.edit(suspend=False)
    world.now += timedelta(seconds=3600)
    decision = operator.turn()
    creates = actions(decision, CreatePod)
    assert {action.plan.role for action in creates if action.exclusive} == {"coordinator", "actor"}
    (made,) = actions(decision, CreateResolved)
    assert (made.resolved.attempt, made.resolved.resolved_job.first_attempt) == (attempt + 1, attempt)
    status = world.job.status
    assert (status.starts, status.attempt, status.start_time) == (2, attempt + 1, world.now)
    assert world.condition(ConditionType.SUSPENDED) == ("False", "Resumed")
    run(world, operator, seconds=60, until=lambda: phase(world) == "Running")
    assert world.training.step >= step


def test_stop_is_not_repeated_while_the_coordinator_is_at_it(stepping):
    world, operator = stepping()
    world.edit(suspend=True)
    operator.turn()
    assert not actions(operator.turn(), StopTraining)


def test_stop_that_was_lost_is_repeated(stepping):
    world, operator = stepping()
    world.edit(suspend=True)
    operator.decide()
    operator.restart()
    assert len(actions(operator.turn(), StopTraining)) == 1


def test_job_made_with_suspend_waits_without_pods_and_starts_when_it_may():
    world = World(suspend=True)
    operator = Operator(world)
    operator.turn()
    assert (phase(world), world.pods) == ("Suspended", {})
    assert say(world, ConditionType.SUSPENDED) == "not started yet"
    world.edit(suspend=False)
    run(world, operator, seconds=300, until=lambda: phase(world) == "Complete")


def test_suspend_before_the_coordinator_ran_just_deletes_the_pods(begun):
    world, operator = begun()
    world.edit(suspend=True)
    operator.turn()
    assert not world.pods
    operator.turn()
    assert phase(world) == "Suspended"
    assert say(world, ConditionType.SUSPENDED) == "no new checkpoint was written: it resumes from the start"


def test_suspend_without_a_coordinator_just_deletes_the_pods(stepping):
    world, operator = stepping()
    world.crash(world.running("coordinator")[0])
    world.edit(suspend=True)
    run(world, operator, seconds=60, until=lambda: phase(world) == "Suspended")
    text = say(world, ConditionType.SUSPENDED)
    assert text.startswith("no new checkpoint was written: it resumes from the checkpoint of step 3 ")


def test_coordinator_that_does_not_answer_is_given_its_grace_and_no_more(stepping):
    world, operator = stepping()
    world.silent = True
    world.edit(suspend=True)
    run(world, operator, seconds=85)
    assert phase(world) == "Suspending" and len(world.running()) == 6
    run(world, operator, seconds=60, until=lambda: phase(world) == "Suspended")
    assert say(world, ConditionType.SUSPENDED).startswith("no new checkpoint was written")


def test_coordinator_that_answers_has_time_for_its_checkpoint(stepping):
    world, operator = stepping()
    coordinator = world.running("coordinator")[0]
    world.words[coordinator.uid].phase = "Stopping"
    world.edit(suspend=True)
    operator.turn()
    for _ in range(60 + 1800 + 29):
        world.now += timedelta(seconds=1)
        operator.turn()
    assert phase(world) == "Suspending" and len(world.running()) == 6
    world.now += timedelta(seconds=1)
    operator.turn()
    assert all(pod.deleted is not None for pod in world.pods.values())


def test_suspend_that_is_taken_back_is_gone_through_with(stepping):
    world, operator = stepping()
    world.edit(suspend=True)
    operator.turn()
    world.edit(suspend=False)
    run(world, operator, seconds=120, until=lambda: phase(world) == "Running")
    assert world.job.status.starts == 2
    assert world.job.status.restarts == 0


def test_job_that_completes_while_it_is_being_suspended_is_complete(stepping):
    world, operator = stepping()
    world.edit(suspend=True)
    operator.decide()
    world.training.step = 399
    world.tick(5)
    operator.turn()
    assert phase(world) == "Complete"


def test_dead_nodes_pods_are_waited_for_and_deleted_by_force(stepping):
    world, operator = stepping()
    node = world.running("rollout")[0].node_name
    world.stop_node(node)
    world.edit(suspend=True)
    run(world, operator, seconds=1200, until=lambda: phase(world) == "Suspended")
    assert "PodForced" in reasons(operator)
    assert not world.pods


def test_resume_as_another_training_is_refused(stepping):
    world, operator = stepping()
    world.edit(suspend=True)
    run(world, operator, seconds=120, until=lambda: phase(world) == "Suspended")
    world.edit(suspend=False, seed=7)
    operator.turn()
    assert phase(world) == "Invalid"
    assert "its checkpoint would not fit" in say(world, ConditionType.VALIDATED)
    world.edit(seed=None)
    run(world, operator, seconds=120, until=lambda: phase(world) == "Running")


def test_coordinator_stopped_by_somebody_else_begins_again_against_the_budget(stepping):
    world, operator = stepping(failurePolicy__maxRestarts=1)
    attempt = world.job.status.attempt
    world.words[world.running("coordinator")[0].uid].stop_since = world.now
    world.tick(5)
    operator.turn()
    assert (world.job.status.attempt, world.job.status.budget.used) == (attempt + 1, 1)
    run(world, operator, seconds=120, until=lambda: phase(world) == "Running")
