"""Whatever happens to pods, nodes, caches and operators: when it ceases, the job comes to the same end.

While it happens, `World.check` and `World.create_pod` hold after every step: never two coordinators, never
ranks of two actors, never a pod created twice.
"""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.unit.operator.reconcile.page import off_the_page
from tests.unit.operator.reconcile.world import SAID, Operator, World

from trimtab.api.conditions import ConditionType
from trimtab_operator.model.observed import Pod
from trimtab_operator.reconcile.finishing import is_finished
from trimtab_operator.reconcile.units import has_ended

LONGEST_S = 4 * 3600
OPERATORS = st.integers(0, 1)
PICKS = st.integers(0, 50)


class Job(RuleBasedStateMachine):
    """Two operators, of which both may act at any time, and everything that can go wrong around them."""

    def __init__(self) -> None:
        super().__init__()
        self.broken_s = 0

    @initialize(
        policy=st.sampled_from(["Running", "All", "None"]),
        pending=st.sampled_from([None, 60]),
        suspended=st.sampled_from([False, False, False, True]),
        restarts=st.sampled_from([0, 1, 3]),
    )
    def begin(self, policy: str, pending: int | None, suspended: bool, restarts: int) -> None:
        self.policy, self.max_restarts = policy, restarts
        self.world = World(
            cleanupPolicy=policy,
            pendingDeadlineSeconds=pending,
            suspend=suspended,
            failurePolicy__maxRestarts=restarts,
        )
        self.operators = [Operator(self.world), Operator(self.world)]

    # -- time and operators

    @rule(seconds=st.sampled_from([1, 5, 20, 60, 200]))
    def time_goes_by(self, seconds: int) -> None:
        self.world.tick(seconds)
        if self.world.broken_image:
            self.broken_s += seconds

    @rule(who=OPERATORS, ticks=st.integers(1, 12))
    def job_goes_on(self, who: int, ticks: int) -> None:
        operator = self.operators[who]
        operator.job_age = operator.pods_age = 0
        for _ in range(ticks):
            operator.turn()
            self.time_goes_by(5)

    @rule(who=OPERATORS)
    def operator_does_a_whole_turn(self, who: int) -> None:
        operator = self.operators[who]
        operator.job_age = operator.pods_age = 0
        operator.turn()

    @rule(who=OPERATORS, job_age=st.integers(0, 4), pods_age=st.integers(0, 12))
    def operator_decides_from_stale_caches(self, who: int, job_age: int, pods_age: int) -> None:
        operator = self.operators[who]
        operator.job_age, operator.pods_age = job_age, pods_age
        operator.decide()

    @rule(who=OPERATORS)
    def operator_does_one_thing_that_it_decided(self, who: int) -> None:
        self.operators[who].act()

    @rule(who=OPERATORS)
    def operator_restarts(self, who: int) -> None:
        self.operators[who].restart()

    # -- pods and nodes

    def _pick(self, number: int, pods: list[Pod]) -> Pod | None:
        return pods[number % len(pods)] if pods else None

    @rule(number=PICKS, code=st.sampled_from([1, 1, 66, 67, 68, 137]))
    def process_fails(self, number: int, code: int) -> None:
        pod = self._pick(number, self.world.running())
        if pod is not None:
            self.world.crash(pod, code, reason="OOMKilled" if code == 137 else "")

    @rule(number=PICKS)
    def pod_is_evicted(self, number: int) -> None:
        pod = self._pick(number, [p for p in self.world.pods.values() if not has_ended(p)])
        if pod is not None:
            self.world.evict(pod)

    @rule(number=PICKS)
    def pod_is_removed(self, number: int) -> None:
        pod = self._pick(number, list(self.world.pods.values()))
        if pod is not None:
            self.world.remove(pod)

    @precondition(lambda self: len(self.world.dead) < 2)
    @rule(node=st.sampled_from(["n1", "n2", "n3"]))
    def node_dies(self, node: str) -> None:
        self.world.stop_node(node)

    @precondition(lambda self: self.world.dead)
    @rule()
    def node_comes_back(self) -> None:
        self.world.start_node(sorted(self.world.dead)[0])

    @precondition(lambda self: self.world.dead)
    @rule()
    def pods_of_dead_nodes_are_deleted(self) -> None:
        self.world.taint_dead_nodes()

    # -- the cluster's means

    @rule(capacity=st.sampled_from([0, 2, 4, 100]))
    def room_changes(self, capacity: int) -> None:
        self.world.capacity = capacity

    @rule(quota=st.sampled_from([0, 3, 100]))
    def quota_changes(self, quota: int) -> None:
        self.world.quota = quota

    @rule(silent=st.booleans())
    def network_changes(self, silent: bool) -> None:
        self.world.silent = silent

    @rule(roles=st.sampled_from([set(), {"rollout"}, {"coordinator"}]))
    def images_change(self, roles: set[str]) -> None:
        self.world.broken_image = roles

    # -- the user

    @precondition(lambda self: self.world.job is not None)
    @rule(
        change=st.sampled_from(
            [
                {"suspend": True},
                {"suspend": False},
                {"roles__rollout__replicas": 1},
                {"roles__rollout__replicas": 3},
                {"roles__reward__replicas": 2},
                {"roles__rollout__minReplicas": 9},
                {"roles__rollout__minReplicas": 1},
            ]
        )
    )
    def user_edits(self, change: dict[str, Any]) -> None:
        self.world.edit(**change)

    # -- and at last

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world, operators = self.world, self.operators
        world.capacity = world.quota = 100
        world.silent, world.broken_image = False, set()
        world.edit(roles__rollout__minReplicas=1)
        for operator in operators:
            operator.job_age = operator.pods_age = 0
        self._work_until_the_end(world, operators)
        self._judge(world)

    def _work_until_the_end(self, world: World, operators: list[Operator]) -> None:
        for _ in range(LONGEST_S // 5):
            world.taint_dead_nodes()
            for operator in operators:
                operator.turn()
            assert world.job is not None
            if is_finished(world.job.status) or world.condition(ConditionType.SUSPENDED)[0] == "True":
                break
            world.tick(5)
        else:
            raise AssertionError(f"no end: {world.job!r} {world.pods!r}")
        for _ in range(180):  # what is still there goes, and nothing comes back
            world.tick(5)
            world.taint_dead_nodes()
            for operator in operators:
                operator.turn()

    def _judge(self, world: World) -> None:
        assert world.job is not None
        assert not off_the_page(SAID)
        status = world.job.status
        if not is_finished(status):
            assert world.job.spec["suspend"] is True
            assert world.condition(ConditionType.SUSPENDED) == ("True", "SuspendRequested")
            assert not world.pods, "a suspended job has pods"
            assert status.phase == "Suspended"
            return
        if self.policy == "All":
            assert not world.pods
        elif self.policy == "Running":
            assert all(pod.phase in ("Succeeded", "Failed") for pod in world.pods.values())
        if world.condition(ConditionType.COMPLETE)[0] == "True":
            assert world.training.complete and world.training.step == world.total == status.step
            return
        reason = world.condition(ConditionType.FAILED)[1]
        if reason == "ImagePull":
            assert self.broken_s >= 600 - 60
        else:
            assert reason in ("RestartsExhausted", "OutOfMemory")
            assert world.crashes > self.max_restarts


Job.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestJob = Job.TestCase
