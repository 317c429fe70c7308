"""Two operators at once, each with caches of its own: what one has not heard of yet must do no harm."""

from datetime import timedelta

import pytest
from tests.unit.operator.reconcile.looks import phase
from tests.unit.operator.reconcile.world import Operator, World, run

from trimtab.api.conditions import ConditionType
from trimtab_operator.constants import ROLES
from trimtab_operator.model.actions import CreatePod, Decision, DeletePod


def creates(decision: Decision, role: str) -> list[CreatePod]:
    return [a for a in decision.actions if isinstance(a, CreatePod) and a.plan.role == role]


def test_pods_that_the_cache_does_not_know_yet_are_not_taken_to_be_removed():
    world = World(training__steps=400)
    behind = Operator(world)
    behind.pods.watch.follows = False
    run(world, Operator(world), seconds=120, until=lambda: world.training.step >= 4)
    assert not behind.pods.all()
    behind.turn()
    assert world.job.status.restarts == 0
    assert len(behind.pods.all()) == 6, "they were listed"


def test_pods_that_the_cache_does_not_know_yet_are_not_asked_for_a_second_time():
    world = World()
    behind = Operator(world)
    behind.pods.watch.follows = False
    Operator(world).turn()
    world.now += timedelta(seconds=20)
    decision = behind.turn()
    assert not [action for action in decision.actions if isinstance(action, CreatePod)]


@pytest.mark.parametrize("unknown", [ROLES, ("coordinator",)], ids=["all pods", "the coordinator alone"])
def test_job_whose_pods_the_cache_does_not_know_yet_is_not_suspended_without_a_checkpoint(stepping, unknown):
    world, operator = stepping()
    behind = Operator(world)
    behind.pods.watch.follows = False
    for role in unknown:
        for pod in world.running(role):
            del behind.pods._pods[pod.uid]
    world.edit(suspend=True)
    behind.turn()
    assert world.job.status.stop.saved is None
    run(world, operator, seconds=120, until=lambda: phase(world) == "Suspended")
    assert world.training.checkpoint == world.training.step


def test_job_is_not_suspended_while_pods_are_there_that_the_cache_does_not_know(stepping):
    world, operator = stepping()
    world.leave_s = 10
    behind = Operator(world)
    behind.pods._pods.clear()
    behind.pods.watch.follows = False
    world.edit(suspend=True)
    run(world, operator, seconds=120, until=lambda: world.job.status.stop.saved)
    assert world.pods
    behind.turn()
    assert phase(world) == "Suspending"


def test_released_pods_are_those_that_the_api_server_has_without_a_node():
    world = World(training__steps=400, pendingDeadlineSeconds=60)
    operator, behind = Operator(world), Operator(world)
    world.capacity = 0
    operator.turn()
    world.tick(5)
    behind.turn()
    behind.pods.watch.follows = False
    world.capacity = 100
    world.tick(60)
    behind.turn()
    assert world.job.status.starts == 1


def test_job_is_suspended_once_no_create_is_under_way_and_resumed_beside_none():
    world = World(training__steps=400)
    slow, other = Operator(world), Operator(world)
    slow.decide()
    slow.act()  # the resolved spec; its creates are under way
    world.edit(suspend=True)
    for _ in range(3):
        world.tick(5)
        other.turn()
    assert phase(world) == "Suspending"
    slow.finish()
    assert world.pods
    run(world, other, seconds=60, until=lambda: phase(world) == "Suspended")
    assert not world.pods


def test_start_after_another_waits_for_creates_that_are_under_way(stepping):
    world, slow = stepping(failurePolicy__maxRestarts=2)
    other = Operator(world)
    world.remove(world.running("actor")[0])
    while not creates(slow.decide(), "actor"):
        slow.finish()
        world.tick(5)
    asked = world.now
    world.words[world.running("coordinator")[0].uid].stop_since = world.now
    world.tick(5)
    decision = other.turn()
    assert world.job.status.starts == 2
    assert not creates(decision, "actor")
    actor = next(unit for unit in world.job.status.units if unit.name == "actor-0")
    assert actor.not_before == asked + timedelta(seconds=20)
    slow.finish()
    run(world, other, seconds=120, until=lambda: phase(world) == "Running")


def test_operator_that_has_missed_a_resume_leaves_its_pods_alone(stepping):
    world, operator = stepping()
    world.edit(suspend=True)
    run(world, operator, seconds=120, until=lambda: phase(world) == "Suspended")
    behind = Operator(world)
    behind.jobs.watch.follows = False
    world.edit(suspend=False)
    run(world, operator, seconds=60, until=lambda: phase(world) == "Running")
    assert behind.jobs.get().status.phase == "Suspended" and len(behind.pods.all()) == 6
    decision = behind.turn()
    assert decision is None or not [a for a in decision.actions if isinstance(a, DeletePod)]
    run(world, operator, seconds=30)
    assert world.job.status.restarts == 0
    assert world.condition(ConditionType.RUNNING) == ("True", "TakingSteps")
