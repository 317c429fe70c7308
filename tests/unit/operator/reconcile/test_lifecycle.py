from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.operator.reconcile.looks import actions, phase, reasons, say
from tests.unit.operator.reconcile.world import SETTINGS, Operator, World, run

from trimtab.api.conditions import ConditionType
from trimtab.api.status import JobStatus, StopState
from trimtab_operator.model.actions import (
    CreatePod,
    CreateResolved,
    Decision,
    DeleteJob,
    DeletePod,
    EnsureChildren,
    Resize,
)
from trimtab_operator.reconcile import reconcile

# -- the first start


def test_first_look_asks_for_everything_at_once():
    world = World()
    operator = Operator(world)
    decision = operator.decide()
    plans = [action.plan for action in actions(decision, CreatePod)]
    assert [plan.hostname for plan in plans] == [
        "coordinator-0-0",
        "actor-0-0",
        "actor-0-1",
        "rollout-0-0",
        "rollout-1-0",
        "reward-0-0",
    ]
    assert {(plan.attempt, plan.incarnation) for plan in plans} == {(world.job.status.attempt, 1)}
    assert not any(action.exclusive for action in actions(decision, CreatePod))
    (resolved,) = actions(decision, CreateResolved)
    assert world.job.status.resolved.name == resolved.resolved.name
    assert len(actions(decision, EnsureChildren)) == 1
    status = world.job.status
    assert (status.starts, status.rollout_replicas, status.start_time) == (1, 2, world.now)
    assert [(role.name, role.replicas) for role in status.roles] == [
        ("coordinator", 1),
        ("actor", 2),
        ("rollout", 2),
        ("reward", 1),
    ]
    assert status.rollout_selector == f"trimtab.dev/job-uid={world.job.uid},trimtab.dev/role=rollout"


def test_attempt_of_a_recreated_job_is_later_than_every_start_of_the_one_before():
    before, after = World(), World()
    stopped = StopState(since=before.now, saved=True, done=True)
    before._change_job(status=JobStatus(starts=998, stop=stopped))
    after._change_job(created=before.job.created + timedelta(seconds=1))
    for world in (before, after):
        Operator(world).decide()
    assert before.job.status.starts == 999
    assert after.job.status.attempt > before.job.status.attempt


def test_pods_that_are_not_in_the_cache_yet_are_not_asked_for_again(begun):
    world = World()
    other = Operator(world)
    other.pods.watch.follows = False
    Operator(world).turn()
    for _ in range(3):
        world.now += timedelta(seconds=5)
        decision = other.turn()
        assert not actions(decision, CreatePod)
    assert decision.requeue_after_s == 5


def test_pods_that_the_operator_died_before_creating_are_asked_for_again_later():
    world = World()
    operator = Operator(world)
    operator.decide()
    operator.act()  # the resolved spec alone
    operator.restart()
    world.now += timedelta(seconds=19)
    assert not actions(operator.turn(), CreatePod)
    world.now += timedelta(seconds=1)
    assert len(actions(operator.turn(), CreatePod)) == 6
    assert len(world.pods) == 6


def test_resolved_spec_that_the_operator_died_before_storing_is_made_again():
    world = World()
    operator = Operator(world)
    operator.decide()
    operator.restart()
    decision = operator.turn()
    assert [type(action) for action in decision.actions] == [CreateResolved]
    assert decision.requeue_after_s is not None
    run(world, operator, seconds=300, until=lambda: phase(world) == "Complete")


def test_two_operators_that_decide_on_the_same_state_act_once():
    world = World()
    operators = [Operator(world), Operator(world)]
    operators[1].follow(follows=False)
    operators[0].decide()
    assert operators[1].decide() is None
    assert not operators[1].todo


def test_invalid_spec_is_refused_with_every_problem_until_an_edit_cures_it():
    world = World(training__promptsPerStep=7, training__miniBatchPrompts=3, roles__rollout__minReplicas=5)
    operator = Operator(world)
    decision = operator.turn()
    assert phase(world) == "Invalid"
    assert world.condition(ConditionType.VALIDATED) == ("False", "InvalidSpec")
    text = say(world, ConditionType.VALIDATED)
    assert "spec.training.miniBatchPrompts" in text and "spec.roles.rollout.minReplicas" in text
    assert not decision.actions and not world.pods
    assert world.job.status.observed_generation == 1
    assert [event.type for event in operator.events] == ["Warning"]
    world.edit(training__miniBatchPrompts=7, roles__rollout__minReplicas=1)
    run(world, operator, seconds=300, until=lambda: phase(world) == "Complete")


def test_spec_that_no_image_is_known_for_is_refused():
    world = World()
    operator = Operator(world, SETTINGS.model_copy(update={"roles": {}}))
    operator.turn()
    assert world.condition(ConditionType.VALIDATED) == ("False", "InvalidSpec")
    assert "spec.roles.coordinator.image" in say(world, ConditionType.VALIDATED)


def test_volume_of_one_node_is_refused_and_says_why():
    volumes = [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}]
    world = World(storage={"volume": {"name": "runs"}}, volumes=volumes)
    world.claims = {"runs": ("ReadWriteOnce",)}
    Operator(world).turn()
    assert phase(world) == "Invalid"
    assert world.condition(ConditionType.VALIDATED) == ("False", "StorageNotShared")
    assert "the claim runs allows ReadWriteOnce" in say(world, ConditionType.VALIDATED)


def test_claims_that_are_not_looked_up_yet_are_waited_for():
    volumes = [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}]
    world = World(storage={"volume": {"name": "runs"}}, volumes=volumes)
    observed = replace(Operator(world).observe(), claims=None)
    decision = reconcile(observed, world.now)
    assert not decision.actions and not decision.status.conditions
    assert decision.requeue_after_s == 2


@pytest.mark.parametrize("manager", ["kueue.x-k8s.io/multikueue", "other/controller"])
def test_job_of_another_controller_is_left_alone(manager):
    world = World(managedBy=manager)
    decision = Operator(world).turn()
    assert decision == Decision(status=JobStatus())


def test_job_that_names_this_operator_is_run(begun):
    world, _ = begun(managedBy="trimtab.dev/operator")
    assert len(world.pods) == 6


def test_job_that_is_being_deleted_is_left_to_the_garbage_collector(stepping):
    world, operator = stepping()
    world._change_job(deleted=world.now)
    before = world.job.status
    decision = operator.turn()
    assert (decision.status, decision.actions, decision.requeue_after_s) == (before, (), None)


# -- edits of a running job


def test_invalid_edit_is_told_and_the_job_runs_on_as_it_was(stepping):
    world, operator = stepping(roles__rollout__replicas=3)
    world.edit(training__promptsPerStep=7, training__miniBatchPrompts=3, roles__rollout__replicas=1)
    pods = set(world.pods)
    run(world, operator, seconds=60)
    assert world.condition(ConditionType.VALIDATED) == ("False", "InvalidEdit")
    assert "spec.training.miniBatchPrompts" in say(world, ConditionType.VALIDATED)
    assert phase(world) == "Running"
    assert set(world.pods) == pods
    world.edit(training__promptsPerStep=16, training__miniBatchPrompts=None)
    run(world, operator, seconds=60)
    assert world.condition(ConditionType.VALIDATED) == ("True", "Accepted")
    assert world.job.status.rollout_replicas == 1


def test_job_with_an_invalid_edit_can_be_suspended(stepping):
    world, operator = stepping()
    world.edit(training__miniBatchPrompts=3, suspend=True)
    run(world, operator, seconds=120, until=lambda: world.condition(ConditionType.SUSPENDED)[0] == "True")
    assert not world.pods
    assert phase(world) == "Invalid"


def test_edit_that_needs_new_pods_says_when_it_is_taken_up(stepping):
    world, operator = stepping()
    world.edit(deadlines__heartbeatSeconds=20.0)
    operator.turn()
    assert world.condition(ConditionType.VALIDATED) == ("False", "InvalidEdit")
    assert "spec.deadlines" in say(world, ConditionType.VALIDATED)
    assert "taken up at the next start" in say(world, ConditionType.VALIDATED)
    world.edit(suspend=True)
    run(world, operator, seconds=120, until=lambda: phase(world) == "Suspended")
    world.edit(suspend=False)
    run(world, operator, seconds=120, until=lambda: phase(world) == "Running")
    assert world.condition(ConditionType.VALIDATED) == ("True", "Accepted")
    (resolved,) = [r for r in world.config_maps.values() if r.attempt == world.job.status.attempt]
    assert resolved.resolved_job.job.spec.deadlines.heartbeat_seconds == 20.0


def test_upgrade_of_the_platforms_settings_changes_no_running_job(stepping):
    world, operator = stepping()
    images = {
        role: defaults.model_copy(update={"image": "new:2"}) for role, defaults in SETTINGS.roles.items()
    }
    operator.settings = SETTINGS.model_copy(update={"roles": images})
    world.crash(world.running("rollout")[0])
    operator.turn()
    world.now += timedelta(seconds=30)
    (create,) = actions(operator.turn(), CreatePod)
    assert create.resolved.settings.roles["rollout"].image == "registry.test/worker:1"


def test_replicas_grow_and_shrink_without_a_restart(stepping):
    world, operator = stepping()
    world.edit(roles__rollout__replicas=4)
    decision = operator.turn()
    assert [action.plan.unit for action in actions(decision, CreatePod)] == ["rollout-2", "rollout-3"]
    assert actions(decision, Resize) == [
        Resize(rollout_replicas=4, min_rollout_replicas=1, reward_replicas=1, min_reward_replicas=1)
    ]
    (children,) = actions(decision, EnsureChildren)
    assert (children.rollout_replicas, children.min_rollout_replicas) == (4, 1)
    assert world.job.status.rollout_replicas == 4
    assert "Scaled" in reasons(operator)
    run(world, operator, seconds=30)
    assert not actions(operator.turn(), Resize)
    world.edit(roles__rollout__replicas=1)
    decision = operator.turn()
    gone = {pod.name for pod in world.pods.values() if pod.role == "rollout" and pod.replica > 0}
    assert {action.name for action in actions(decision, DeletePod)} == gone
    assert world.job.status.rollout_replicas == 1
    run(world, operator, seconds=60)
    assert [pod.replica for pod in world.running("rollout")] == [0]
    assert (phase(world), world.job.status.restarts) == ("Running", 0)


def test_replica_that_comes_back_has_an_incarnation_of_its_own(stepping):
    world, operator = stepping()
    world.edit(roles__rollout__replicas=1)
    operator.turn()
    world.edit(roles__rollout__replicas=2)
    operator.turn()
    (new,) = [pod for pod in world.pods.values() if pod.role == "rollout" and pod.incarnation == 2]
    assert (new.replica, new.deleted) == (1, None)


def test_coordinator_that_does_not_know_the_minimum_is_told(stepping):
    world, operator = stepping()
    world.edit(roles__rollout__minReplicas=2)
    (resize,) = actions(operator.turn(), Resize)
    assert (resize.rollout_replicas, resize.min_rollout_replicas) == (2, 2)
    assert not actions(operator.turn(), Resize)


# -- deadlines


def test_active_deadline_fails_the_job_and_names_itself(stepping):
    world, operator = stepping(activeDeadlineSeconds=500)
    world.now = world.job.status.start_time + timedelta(seconds=499)
    assert operator.turn().requeue_after_s <= 1
    assert phase(world) == "Running"
    world.now += timedelta(seconds=1)
    operator.turn()
    assert world.condition(ConditionType.FAILED) == ("True", "DeadlineExceeded")
    assert "spec.activeDeadlineSeconds is 500" in say(world, ConditionType.FAILED)


def test_gang_without_nodes_gives_all_pods_up_and_tries_again_later(begun):
    world, operator = begun(pendingDeadlineSeconds=60)
    world.capacity = 3
    run(world, operator, seconds=30)
    assert world.condition(ConditionType.WORKERS_READY) == ("False", "Unschedulable")
    assert "Insufficient cpu" in say(world, ConditionType.WORKERS_READY)
    run(world, operator, seconds=60, until=lambda: world.job.status.starts == 2)
    status = world.job.status
    assert world.condition(ConditionType.WORKERS_READY) == ("False", "PendingDeadline")
    assert (phase(world), status.restarts) == ("Pending", 0)
    assert 30 <= (status.release_until - world.now).total_seconds() <= 90
    run(world, operator, seconds=20)
    assert not world.pods
    world.capacity = 100
    run(world, operator, seconds=200, until=lambda: phase(world) == "Running")
    assert world.job.status.start_time < status.release_until


def test_gang_without_nodes_is_given_up_by_default(begun):
    world, operator = begun()
    world.capacity = 3
    run(world, operator, seconds=1700)
    assert world.job.status.starts == 1
    run(world, operator, seconds=300, until=lambda: world.job.status.starts == 2)
    assert world.condition(ConditionType.WORKERS_READY) == ("False", "PendingDeadline")


def test_released_jobs_do_not_come_back_together():
    pauses = set()
    for number in range(8):
        world = World(uid=f"job-{number}", pendingDeadlineSeconds=60)
        world.capacity = 0
        operator = Operator(world)
        run(world, operator, seconds=120, until=lambda world=world: world.job.status.starts == 2)
        pauses.add((world.job.status.release_until - world.now).total_seconds())
    assert len(pauses) >= 5


def test_replica_beyond_the_minimum_may_wait_for_a_node_as_long_as_it_likes(stepping):
    world, operator = stepping(pendingDeadlineSeconds=60)
    world.capacity = 6
    world.edit(roles__rollout__replicas=3)
    run(world, operator, seconds=300)
    assert (phase(world), world.job.status.starts) == ("Running", 1)
    assert world.condition(ConditionType.WORKERS_READY) == ("False", "Unschedulable")


def test_refused_pods_wait_for_quota_and_are_tried_again(begun):
    world = World()
    world.quota = 3
    operator = Operator(world)
    operator.turn()
    operator.turn()
    assert world.condition(ConditionType.ADMITTED) == ("False", "WaitingForQuota")
    assert say(world, ConditionType.ADMITTED) == "exceeded quota: pods=0"
    tries = 0
    for _ in range(120):
        world.now += timedelta(seconds=5)
        tries += bool(actions(operator.turn(), CreatePod))
    assert 4 <= tries <= 10
    world.quota = 100
    run(world, operator, seconds=600, until=lambda: phase(world) == "Complete")
    assert world.condition(ConditionType.ADMITTED) == ("True", "NoQueue")


def test_pod_that_a_dead_node_keeps_is_deleted_by_force_and_replaced(stepping):
    world, operator = stepping()
    pod = world.running("rollout")[0]
    world.stop_node(pod.node_name)
    world.taint_dead_nodes()
    run(world, operator, seconds=25)
    assert world.pods[pod.name].deleted is not None
    assert any(p.incarnation == 2 and p.replica == pod.replica for p in world.running("rollout"))
    run(world, operator, seconds=900, until=lambda: pod.name not in world.pods)
    assert "PodForced" in reasons(operator)
    assert (world.now - pod.created).total_seconds() >= 30 + 120


def test_actor_on_a_dead_node_is_replaced_once_its_pods_are_gone_and_within_minutes(stepping):
    world, operator = stepping()
    old = {pod.name for pod in world.running("actor")}
    since = world.now
    world.stop_node(world.running("actor")[0].node_name)
    world.taint_dead_nodes()
    while old & set(world.pods):
        roles = [action.plan.role for action in actions(operator.turn(), CreatePod)]
        assert "actor" not in roles or not old & set(world.pods)
        world.tick(5)
    assert (world.now - since).total_seconds() < 300, "an actor's own grace alone is longer"
    assert "PodForced" in reasons(operator)
    run(world, operator, seconds=100, until=lambda: phase(world) == "Running")
    assert {p.incarnation for p in world.running("actor")} == {2}


def test_evicted_actor_keeps_the_time_for_its_checkpoint_and_a_torn_one_does_not(stepping):
    world, operator = stepping()
    first, second = world.running("actor")
    world.evict(first)
    graces = {action.name: action.grace_s for action in actions(operator.turn(), DeletePod)}
    assert graces == {second.name: None}
    assert (world.pods[first.name].deleted - world.now).total_seconds() > 500
    world.crash(world.pods[second.name], 1)
    graces = {action.name: action.grace_s for action in actions(operator.turn(), DeletePod)}
    assert graces[first.name] == 30, "without the other there is no checkpoint"


def test_actor_that_the_coordinator_gave_up_is_not_given_long(stepping):
    world, operator = stepping()
    pods = {pod.name for pod in world.running("actor")}
    words = world.words[world.running("coordinator")[0].uid]
    words.gone[("actor", 0)] = (1, world.now - timedelta(seconds=60))
    world.accounts.causes += 1  # it hangs: no heartbeat
    graces = {action.name: action.grace_s for action in actions(operator.turn(), DeletePod)}
    assert graces == dict.fromkeys(pods, 30)


# -- the end


def test_complete_job_settles_and_nothing_is_ever_started_again(begun):
    world, operator = begun()
    run(world, operator, seconds=300, until=lambda: phase(world) == "Complete")
    status = world.job.status
    assert world.condition(ConditionType.COMPLETE) == ("True", "StepsDone")
    assert (status.step, status.message) == (25, "all 25 steps are done")
    assert status.completion_time == world.now
    for pod in list(world.pods.values()):
        world.remove(pod)
    world.edit(suspend=True)
    run(world, operator, seconds=300)
    assert not world.pods
    assert phase(world) == "Complete"
    assert world.job.status.observed_generation == 2


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ("Running", {"reward-0", "rollout-0"}),
        ("All", set()),
        ("None", {"reward-0", "rollout-0", "actor-0", "rollout-1"}),
    ],
)
def test_cleanup_follows_its_policy(stepping, policy, left):
    world, operator = stepping(cleanupPolicy=policy, failurePolicy__maxRestarts=0)
    world.end(world.running("reward")[0], 64)
    world.end(world.running("rollout")[0], 1)
    world.remove(world.running("coordinator")[0])
    operator.turn()
    assert phase(world) == "Failed"
    world.now += timedelta(seconds=14)
    assert not actions(operator.turn(), DeletePod)
    run(world, operator, seconds=60)
    assert {f"{pod.role}-{pod.replica}" for pod in world.pods.values()} == left
    assert ("CleanedUp" in reasons(operator)) == (policy != "None")


def test_ttl_deletes_the_job_when_it_has_passed(begun):
    world, operator = begun(ttlSecondsAfterFinished=100)
    run(world, operator, seconds=300, until=lambda: phase(world) == "Complete")
    world.now += timedelta(seconds=60)
    operator.turn()
    world.now += timedelta(seconds=39)
    assert operator.turn().requeue_after_s == 1
    world.now += timedelta(seconds=1)
    uid = world.job.uid
    assert actions(operator.turn(), DeleteJob) == [DeleteJob(uid=uid)]
    assert world.job is None
