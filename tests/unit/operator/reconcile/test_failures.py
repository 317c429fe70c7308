import json
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.operator.reconcile.world import Operator, World, run

from trimtab.api.conditions import ConditionType
from trimtab_operator.adapter.progress import GONE_S
from trimtab_operator.model.observed import NOT_PREPARED, Pod
from trimtab_operator.reconcile.restarts import pause_s


def pod_of(world: World, role: str, node: int = 0) -> Pod:
    pods = [pod for pod in world.running(role) if pod.node == node]
    return min(pods, key=lambda pod: pod.replica)


def unit(world: World, name: str):
    return next(unit for unit in world.job.status.units if unit.name == name)


def failed(world: World):
    return next(c for c in world.job.status.conditions if c.type == ConditionType.FAILED)


def event(operator: Operator, reason: str) -> str:
    return next(event.message for event in operator.events if event.reason == reason)


def test_user_error_fails_the_job_at_once_with_the_last_lines(stepping):
    world, operator = stepping()
    pod = pod_of(world, "rollout")
    world.end(pod, 64, message="loading\nerror: spec.model.path: /models/tiny holds no config.json\n")
    operator.turn()
    condition = failed(world)
    assert (condition.status, condition.reason) == ("True", "UserError")
    assert condition.message == (
        f"rollout-0: pod {pod.name} exited with code 64 (user error): loading\n"
        "error: spec.model.path: /models/tiny holds no config.json"
    )
    assert world.job.status.phase == "Failed"
    assert "user error" in world.job.status.message and "\n" not in world.job.status.message


def test_exit_code_of_a_failed_job_fails_it(stepping):
    world, operator = stepping()
    world.end(pod_of(world, "actor"), 69, message="error: the checkpoint cannot be written")
    operator.turn()
    assert failed(world).status == "True"
    assert "exited with code 69 (job failed): error: the checkpoint" in failed(world).message


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (1, "Error", "exited with code 1 (internal)"),
        (65, "Error", "exited with code 65 (refused)"),
        (139, "Error", "was ended by SIGSEGV (code 139)"),
        (66, "Error", "exited with code 66 (out of memory)"),
        (137, "OOMKilled", "want of memory (OOMKilled, code 137)"),
    ],
    ids=["internal", "refused", "signal", "out of memory", "killed for its memory"],
)
def test_failure_of_its_own_counts_and_is_told(stepping, code, reason, words):
    world, operator = stepping()
    world.crash(pod_of(world, "rollout"), code, reason=reason)
    operator.turn()
    status = world.job.status
    assert status.budget.used == 1
    assert (unit(world, "rollout-0").incarnation, unit(world, "rollout-0").failures) == (2, 1)
    assert words in event(operator, "PodFailed")
    assert status.phase == "Running"


@pytest.mark.parametrize("code", [66, 137], ids=["exit code", "OOMKilled"])
def test_out_of_memory_that_uses_up_the_budget_is_named(stepping, code):
    world, operator = stepping(failurePolicy__maxRestarts=0)
    world.crash(pod_of(world, "actor"), code, reason="OOMKilled" if code == 137 else "Error")
    operator.turn()
    assert (failed(world).status, failed(world).reason) == ("True", "OutOfMemory")
    assert "failurePolicy.maxRestarts (0) is used up" in failed(world).message


def test_restarts_without_progress_use_up_the_budget(stepping):
    world, operator = stepping(failurePolicy__maxRestarts=2)
    world.hangs = True
    for _ in range(3):
        run(world, operator, seconds=300, until=lambda: world.running("reward"))
        world.crash(pod_of(world, "reward"))
        operator.turn()
    assert (failed(world).status, failed(world).reason) == ("True", "RestartsExhausted")
    assert "without progress since step" in failed(world).message
    assert "the last failure: reward-0: pod" in failed(world).message
    assert "error: it broke" in failed(world).message


def test_progress_gives_the_budget_back(stepping):
    world, operator = stepping(failurePolicy__maxRestarts=1)
    for _ in range(4):
        world.crash(pod_of(world, "rollout"))
        operator.turn()
        assert world.job.status.budget.used == 1
        step = world.training.step
        run(world, operator, seconds=300, until=lambda step=step: world.training.step > step + 1)
        run(world, operator, seconds=60)
        assert world.job.status.budget.used == 0
        assert unit(world, "rollout-0").failures == 0
    assert unit(world, "rollout-0").restarts == world.job.status.restarts == 4


@pytest.mark.parametrize(("failures", "seconds"), [(1, 5), (2, 10), (4, 40), (7, 300), (5000, 300)])
def test_pause_doubles_up_to_the_longest(failures, seconds):
    assert pause_s(failures, Operator(World()).settings) == seconds


def test_unit_that_ends_at_once_waits_until_no_create_can_be_under_way(begun):
    world, operator = begun(training__steps=400)
    asked = world.now
    world.tick(5)
    world.tick(5)
    world.evict(pod_of(world, "actor", 1))
    operator.turn()
    assert unit(world, "actor-0").not_before == asked + timedelta(seconds=20)


def test_unit_starts_again_after_its_pause_and_not_before(stepping):
    world, operator = stepping()
    world.now += timedelta(seconds=60)
    world.crash(pod_of(world, "rollout"))
    decision = operator.turn()
    state = unit(world, "rollout-0")
    assert state.not_before == world.now + timedelta(seconds=5)
    assert decision.requeue_after_s == 5
    world.now += timedelta(seconds=4)
    assert operator.turn().requeue_after_s == 1
    assert not [pod for pod in world.pods.values() if pod.incarnation == 2]
    world.now += timedelta(seconds=1)
    operator.turn()
    assert [pod.role for pod in world.pods.values() if pod.incarnation == 2] == ["rollout"]


@pytest.mark.parametrize(
    "disruption",
    ["EvictionByEvictionAPI", "PreemptionByScheduler", "DeletionByTaintManager", "Evicted", "NodeShutdown"],
)
def test_disruption_is_free(stepping, disruption):
    world, operator = stepping(failurePolicy__maxRestarts=0)
    pod = pod_of(world, "rollout")
    world.report(pod, disruption=disruption)
    world.end(world.pods[pod.name], 137)
    operator.turn()
    status = world.job.status
    assert (status.budget.used, status.restarts, status.phase) == (0, 1, "Running")
    assert f"was ended by the cluster ({disruption})" in event(operator, "PodReplaced")


def test_pod_that_its_node_does_not_take_is_free_and_made_again_after_a_pause(stepping):
    world, operator = stepping(failurePolicy__maxRestarts=0)
    world.now += timedelta(seconds=60)
    world.report(pod_of(world, "rollout"), phase="Failed", disruption="UnexpectedAdmissionError")
    operator.turn()
    assert (world.job.status.budget.used, world.job.status.restarts) == (0, 1)
    assert "was not taken by its node (UnexpectedAdmissionError)" in event(operator, "PodReplaced")
    for seconds, made in ((9, []), (1, ["rollout"])):
        world.now += timedelta(seconds=seconds)
        operator.turn()
        assert [pod.role for pod in world.pods.values() if pod.incarnation == 2] == made


def test_container_lost_with_its_node_is_free(stepping):
    world, operator = stepping(failurePolicy__maxRestarts=0)
    node = pod_of(world, "reward").node_name
    world.stop_node(node)
    world.start_node(node)
    run(world, operator, seconds=120)
    assert world.job.status.phase == "Running"
    assert world.job.status.budget.used == 0


def test_what_follows_from_an_eviction_is_free_too(stepping):
    world, operator = stepping(failurePolicy__maxRestarts=0)
    world.evict(pod_of(world, "actor", 1))
    world.crash(pod_of(world, "actor", 0))  # its collective broke
    operator.turn()
    assert world.job.status.budget.used == 0
    assert unit(world, "actor-0").incarnation == 2


def test_first_failure_of_an_actor_is_its_cause(stepping):
    world, operator = stepping()
    world.crash(pod_of(world, "actor", 1), 1)
    world.now += timedelta(seconds=2)
    world.end(pod_of(world, "actor", 0), 1, message="error: connection reset by peer")
    operator.turn()
    assert world.job.status.budget.used == 1
    assert "error: it broke" in unit(world, "actor-0").reason


def test_restart_that_the_coordinator_asked_for_is_free(stepping):
    world, operator = stepping(failurePolicy__maxRestarts=0)
    for node in (0, 1):
        world.end(pod_of(world, "actor", node), 68)
    operator.turn()
    assert world.job.status.budget.used == 0
    assert unit(world, "actor-0").incarnation == 2


def test_wish_of_the_coordinator_is_granted_once(stepping):
    world, operator = stepping(failurePolicy__maxRestarts=0)
    pod = pod_of(world, "rollout")
    words = world.words[pod_of(world, "coordinator").uid]
    words.gone[("rollout", 0)] = (1, world.now - timedelta(seconds=60))
    world.accounts.causes += 1  # it hangs: no heartbeat
    operator.turn()
    operator.turn()
    assert unit(world, "rollout-0").incarnation == 2
    assert "the coordinator asks for it: lost" in unit(world, "rollout-0").reason
    assert world.pods[pod.name].deleted is not None
    assert world.job.status.budget.used == 0


def test_lost_coordinator_counts_where_the_coordinator_is_there(stepping):
    world, operator = stepping()
    run(world, operator, seconds=120)
    world.end(pod_of(world, "rollout"), 67)
    operator.turn()
    assert world.job.status.budget.used == 1


def test_lost_coordinator_is_free_where_it_was_away(stepping):
    world, operator = stepping(failurePolicy__maxRestarts=0)
    world.remove(pod_of(world, "coordinator"))
    for pod in world.running():
        world.end(pod, 67)
    operator.turn()
    run(world, operator, seconds=120)
    assert world.job.status.phase == "Running"
    assert world.job.status.budget.used == 0


def test_lost_coordinator_is_free_where_it_had_to_wait_for_its_node(stepping):
    world, operator = stepping(failurePolicy__maxRestarts=0)
    pod = pod_of(world, "coordinator")
    world._put(replace(pod, started=world.now - timedelta(seconds=20)))
    world.end(pod_of(world, "rollout"), 67)
    operator.turn()
    assert world.job.status.budget.used == 0
    assert unit(world, "rollout-0").incarnation == 2


def test_lost_coordinator_is_free_where_the_operator_does_not_hear_it_either(stepping):
    world, operator = stepping(failurePolicy__maxRestarts=0)
    world.silent = True
    world.now += timedelta(seconds=100)
    for pod in world.running("rollout"):
        world.end(pod, 67)
    operator.turn()
    assert world.job.status.budget.used == 0
    assert unit(world, "rollout-1").incarnation == 2


def test_lost_coordinator_counts_where_a_question_is_left_with_the_coordinator(stepping):
    world, operator = stepping()
    run(world, operator, seconds=120)
    world.silent = True
    world.now += timedelta(seconds=200)
    operator.heard = replace(operator.heard, surely_there=world.now - timedelta(seconds=GONE_S))
    world.end(pod_of(world, "rollout"), 67)
    operator.turn()
    assert world.job.status.budget.used == 1


def test_failure_of_an_older_incarnation_means_nothing(stepping):
    world, operator = stepping()
    pod = pod_of(world, "rollout")
    world.evict(pod)
    operator.turn()
    assert unit(world, "rollout-0").incarnation == 2
    world.crash(world.pods[pod.name], 64)
    operator.turn()
    assert world.job.status.phase == "Running"
    assert world.job.status.budget.used == 0


def test_pod_that_was_removed_is_replaced_under_another_name(stepping):
    world, operator = stepping()
    pod = pod_of(world, "reward")
    world.remove(pod)
    run(world, operator, seconds=60)
    (new,) = world.running("reward")
    assert (new.incarnation, new.name == pod.name) == (2, False)
    assert "the pod of node 0 was removed" in event(operator, "PodReplaced")


def test_worker_that_left_is_missed_only_if_the_coordinator_goes_on(stepping):
    world, operator = stepping()
    world.end(pod_of(world, "rollout"), 0)
    operator.turn()
    assert unit(world, "rollout-0").incarnation == 1
    assert world.condition(ConditionType.RUNNING) == ("True", "TakingSteps")
    world.now += timedelta(seconds=30)
    operator.turn()
    assert unit(world, "rollout-0").incarnation == 2


def test_coordinator_restarts_alone_and_loses_nothing(stepping):
    world, operator = stepping()
    step, others = world.training.step, {pod.uid for pod in world.running() if pod.role != "coordinator"}
    world.crash(pod_of(world, "coordinator"))
    operator.turn()
    assert world.condition(ConditionType.RUNNING) == ("False", "CoordinatorLost")
    assert world.job.status.phase == "Recovering"
    run(world, operator, seconds=90, until=lambda: world.job.status.phase == "Running")
    assert world.training.step >= step
    assert others == {pod.uid for pod in world.running() if pod.role != "coordinator"}


def test_coordinator_without_a_final_word_is_followed_by_another(stepping):
    world, operator = stepping()
    world.end(pod_of(world, "coordinator"), 0)
    operator.turn()
    assert "ended without a final word" in event(operator, "PodFailed")
    run(world, operator, seconds=120, until=lambda: world.job.status.phase == "Running")


def test_final_word_of_a_removed_coordinator_is_asked_of_the_next(stepping):
    world, operator = stepping()
    world.training.complete = True
    world.remove(pod_of(world, "coordinator"))
    run(world, operator, seconds=120, until=lambda: world.job.status.phase == "Complete")


def test_final_word_fails_the_job_with_its_reason_and_pod(stepping):
    world, operator = stepping()
    pod = pod_of(world, "coordinator")
    words = world.words[pod.uid]
    world._final(
        pod, words, "Failed", code=66, reason="OutOfMemory", message="rollout-1: kvCacheBytes is too large"
    )
    operator.turn()
    assert failed(world).reason == "OutOfMemory"
    assert failed(world).message == (
        f"coordinator-0: pod {pod.name} exited with code 66 (out of memory):"
        " rollout-1: kvCacheBytes is too large"
    )


def test_coordinator_that_waited_for_pods_without_a_node_starts_again_for_nothing(begun):
    world, operator = begun(failurePolicy__maxRestarts=0)
    world.capacity = 1
    run(world, operator, seconds=1500)
    assert world.job.status.phase in ("Pending", "Starting")
    assert unit(world, "coordinator-0").restarts >= 1
    world.capacity = 100
    run(world, operator, seconds=300, until=lambda: world.job.status.phase == "Complete")


def test_coordinator_that_gave_young_workers_up_counts(begun):
    world, operator = begun()
    run(world, operator, seconds=10)
    pod = pod_of(world, "coordinator")
    words = world.words[pod.uid]
    world._final(pod, words, "Failed", code=69, reason="DeadlineExceeded", message="waited for rollout-0")
    operator.turn()
    assert world.job.status.budget.used == 1
    assert failed(world).status == "False"


def test_coordinator_that_gave_workers_up_after_their_time_fails_the_job(stepping):
    world, operator = stepping()
    world.now += timedelta(seconds=1000)
    operator.turn()
    pod = pod_of(world, "coordinator")
    words = world.words[pod.uid]
    world._final(
        pod, words, "Failed", code=69, reason="DeadlineExceeded", message="rollout-0 answers nothing"
    )
    operator.turn()
    assert failed(world).reason == "DeadlineExceeded"


def test_image_that_cannot_be_pulled_fails_the_job_after_the_deadline(begun):
    world, operator = begun()
    world.broken_image = {"rollout"}
    run(world, operator, seconds=20)
    assert world.condition(ConditionType.WORKERS_READY) == ("False", "ImagePull")
    run(world, operator, seconds=560)
    assert world.job.status.phase == "Pending"
    run(world, operator, seconds=60, until=lambda: world.job.status.phase == "Failed")
    assert failed(world).reason == "ImagePull"
    assert "within 600 s (image registry.test/worker:1): ErrImagePull: not found" in failed(world).message


def test_image_that_comes_in_time_is_forgiven(begun):
    world, operator = begun()
    world.broken_image = {"rollout"}
    run(world, operator, seconds=400)
    world.broken_image = set()
    run(world, operator, seconds=60, until=lambda: world.job.status.phase == "Running")
    assert unit(world, "rollout-0").stuck_since is None


def test_container_that_cannot_be_created_fails_the_job_after_the_deadline(begun):
    world, operator = begun()
    world.tick(5)
    pod = next(pod for pod in world.pods.values() if pod.role == "reward")
    world._put(
        replace(pod, waiting_reason="CreateContainerConfigError", waiting_message='secret "keys" not found')
    )
    operator.turn()
    assert world.condition(ConditionType.WORKERS_READY) == ("False", "CannotStart")
    world.now += timedelta(seconds=600)
    operator.turn()
    assert (failed(world).reason, 'secret "keys" not found' in failed(world).message) == ("CannotStart", True)


def test_pod_whose_volumes_are_not_there_is_named_and_fails_the_job_after_the_deadline(begun):
    world, operator = begun()
    world.tick(5)
    pod = next(pod for pod in world.pods.values() if pod.role == "coordinator")
    waits = {"phase": "Pending", "started": world.now, "waiting_reason": NOT_PREPARED}
    world._put(replace(pod, **waits, waiting_message="its node has not set up its volumes"))
    operator.turn()
    assert world.condition(ConditionType.WORKERS_READY) == ("False", "PodsPending"), "it takes its time"
    world.now += timedelta(seconds=61)
    operator.turn()
    assert world.condition(ConditionType.WORKERS_READY) == ("False", "CannotStart")
    world.now += timedelta(seconds=600)
    operator.turn()
    assert failed(world).reason == "CannotStart"
    assert "coordinator-0: pod " in failed(world).message
    assert "its node has not set up its volumes" in failed(world).message


def test_several_failures_at_once_are_one_decision(stepping):
    world, operator = stepping()
    for role in ("rollout", "reward"):
        world.crash(pod_of(world, role))
    operator.turn()
    assert world.job.status.budget.used == 2
    assert json.loads(world.job.status.model_dump_json(by_alias=True))["restarts"] == 2


@pytest.mark.parametrize(("code", "word"), [(137, "ContainerStatusUnknown"), (255, "Unknown")])
def test_containers_that_a_restarted_node_lost_are_no_failures(stepping, code, word):
    world, operator = stepping(failurePolicy__maxRestarts=0)
    for pod in world.running():
        world._end(pod, code, reason=word)
        world.accounts.causes += 1
    operator.turn()
    run(world, operator, seconds=120, until=lambda: world.job.status.phase == "Running")
    assert world.job.status.budget.used == 0
