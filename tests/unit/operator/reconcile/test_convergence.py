"""Whatever happens to pods, nodes, caches and operators: when it ceases, the job comes to the same end.

While it happens, the model of the world checks after every step that there are never two coordinators or
ranks of two actors, that no pod is created twice and no two creates that clash are under way, that no
failure is counted twice and no restart has no cause, and that a suspended job has no pods. In half of the
runs nothing fails at all: then nothing may be restarted, however far behind the operators' caches are.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.unit.operator.reconcile.page import off_the_page
from tests.unit.operator.reconcile.world import SAID, Operator, World
from tests.unit.operator.reconcile.world.operators import Todo

from trimtab.api.conditions import ConditionType
from trimtab_operator.model.actions import CreatePod
from trimtab_operator.model.observed import Pod
from trimtab_operator.reconcile.finishing import is_finished
from trimtab_operator.reconcile.units import has_ended, is_alive, split_name

LONGEST_S = 4 * 3600
STEPS = 45
OPERATORS = st.integers(0, 1)
PICKS = st.integers(0, 50)
SOME = st.sampled_from([0, 0, 1, 3, 10, 1000, 1000, 1000])
ACTS = st.sampled_from([0, 0, 1, 2, 4, 8])


@dataclass(frozen=True)
class Heard:
    """What an operator hears before it decides, and how much of that it does before it stalls."""

    jobs: int
    """Changes of the job that are delivered to it."""
    pods: int
    asks: bool
    """Whether it asks the coordinator."""
    acts: int


HEARD = st.builds(Heard, jobs=SOME, pods=SOME, asks=st.booleans(), acts=ACTS)
EDITS: list[dict[str, Any]] = [
    {"suspend": True},
    {"suspend": False},
    {"roles__rollout__replicas": 1},
    {"roles__rollout__replicas": 3},
    {"roles__reward__replicas": 2},
    {"roles__rollout__minReplicas": 9},
    {"roles__rollout__minReplicas": 1},
]
faults = precondition(lambda self: not self.calm)


class Job(RuleBasedStateMachine):
    """Two operators, of which both may act at any time, and everything that can go wrong around them."""

    def __init__(self) -> None:
        super().__init__()
        self.broken_s = 0

    @initialize(
        policy=st.sampled_from(["Running", "All", "None"]),
        pending=st.sampled_from([1800, 20, 60]),
        suspended=st.sampled_from([False, False, False, True]),
        restarts=st.sampled_from([0, 1, 3]),
        ahead_s=st.sampled_from([0, 0, 2, -2]),
        calm=st.booleans(),
        begun_s=st.sampled_from([0, 0, 20, 60]),
        acts=ACTS,
        leave_s=st.sampled_from([0, 10]),
        ending=st.sampled_from(["go on", "crash", "suspend"]),
    )
    def begin(
        self,
        policy: str,
        pending: int,
        suspended: bool,
        restarts: int,
        ahead_s: int,
        calm: bool,
        begun_s: int,
        acts: int,
        leave_s: int,
        ending: str,
    ) -> None:
        self.policy, self.max_restarts, self.calm, self.ending = policy, restarts, calm, ending
        self.world = World(
            training__steps=STEPS,
            cleanupPolicy=policy,
            pendingDeadlineSeconds=pending,
            suspend=suspended,
            failurePolicy__maxRestarts=restarts,
        )
        self.operators = [Operator(self.world), Operator(self.world, ahead_s=ahead_s)]
        for operator in self.operators:
            operator.follow(follows=False)
        self.on_the_way: list[Todo] = []
        """Requests of operators that are no more."""
        self.world.leave_s = leave_s
        self._work_alone(0, begun_s // 5, 5)
        self._wake_up(0, Heard(jobs=1000, pods=1000, asks=True, acts=acts))

    # -- time and operators

    @rule(seconds=st.sampled_from([1, 5, 10, 20, 60, 200]))
    def time_goes_by(self, seconds: int) -> None:
        self.world.tick(seconds)
        if self.world.broken_image:
            self.broken_s += seconds

    @rule(who=OPERATORS, times=st.integers(0, 8), seconds=st.sampled_from([0, 1, 5]), other=HEARD)
    def one_operator_works_and_the_other_wakes_up(
        self, who: int, times: int, seconds: int, other: Heard
    ) -> None:
        self._work_alone(who, times, seconds)
        self._wake_up(1 - who, other)

    def _work_alone(self, who: int, times: int, seconds: int) -> None:
        operator = self.operators[who]
        operator.follow()
        for _ in range(times):
            operator.turn()
            self.time_goes_by(seconds)
        operator.follow(follows=False)

    def _wake_up(self, who: int, heard: Heard) -> None:
        operator = self.operators[who]
        operator.finish()
        operator.jobs.deliver(heard.jobs)
        operator.pods.deliver(heard.pods)
        if heard.asks:
            operator.ask()
        operator.decide()
        for number in range(heard.acts):
            operator.act(number)

    @rule(who=OPERATORS, number=PICKS)
    def operator_does_one_thing_that_it_decided(self, who: int, number: int) -> None:
        self.operators[who].act(number)

    @rule(who=OPERATORS, sent=st.integers(0, 8))
    def operator_restarts(self, who: int, sent: int) -> None:
        lost = [todo for todo in self.operators[who].restart() if not _is_looked_for_first(todo)]
        self.on_the_way += lost[:sent]

    @precondition(lambda self: self.on_the_way)
    @rule(number=PICKS)
    def request_of_an_operator_before_arrives(self, number: int) -> None:
        Operator(self.world).do(self.on_the_way.pop(number % len(self.on_the_way)))
        self.world.check()

    # -- pods and nodes

    def _pick(self, number: int, pods: list[Pod]) -> Pod | None:
        return pods[number % len(pods)] if pods else None

    @faults
    @rule(number=PICKS, code=st.sampled_from([1, 1, 66, 67, 68, 137]))
    def process_fails(self, number: int, code: int) -> None:
        pod = self._pick(number, self.world.running())
        if pod is not None:
            self.world.crash(pod, code, reason="OOMKilled" if code == 137 else "")

    @faults
    @rule(number=PICKS, forced=st.booleans())
    def pod_is_taken_away(self, number: int, forced: bool) -> None:
        pods = [pod for pod in self.world.pods.values() if forced or not has_ended(pod)]
        pod = self._pick(number, pods)
        if pod is not None:
            (self.world.remove if forced else self.world.evict)(pod)

    @faults
    @rule(who=OPERATORS, role=st.sampled_from(["actor", "coordinator"]), seconds=st.sampled_from([1, 5]))
    def pod_is_lost_while_others_are_being_made(self, who: int, role: str, seconds: int) -> None:
        operator = self.operators[who]
        if not operator.todo:
            self._wake_up(who, Heard(jobs=1000, pods=1000, asks=True, acts=0))
        made = next((todo for todo in operator.todo if _is_create_of(todo, role)), None)
        if made is None:
            return
        operator.act(operator.todo.index(made))
        operator.act(len(operator.todo) - 1)
        for _ in range(2):
            self.world.tick(seconds)
        for pod in self.world.running(role):
            self.world.evict(pod)
        self._work_alone(1 - who, 3, seconds)

    @faults
    @rule(node=st.sampled_from(["n1", "n2", "n3"]), known=st.booleans())
    def node_comes_or_goes(self, node: str, known: bool) -> None:
        if node in self.world.dead:
            self.world.start_node(node)
        elif len(self.world.dead) < 2:
            self.world.stop_node(node)
        if known:
            self.world.taint_dead_nodes()

    # -- the cluster's means

    @rule(
        capacity=st.sampled_from([0, 2, 4, 100, 100]),
        quota=st.sampled_from([0, 3, 100, 100, 100]),
        silent=st.sampled_from([True, False, False]),
        roles=st.sampled_from([set(), set(), {"rollout"}, {"coordinator"}]),
    )
    def means_change(self, capacity: int, quota: int, silent: bool, roles: set[str]) -> None:
        self.world.capacity, self.world.quota, self.world.silent = capacity, quota, silent
        self.world.broken_image = set() if self.calm else roles

    # -- the user

    @rule(change=st.sampled_from(EDITS))
    def user_edits(self, change: dict[str, Any]) -> None:
        self.world.edit(**change)

    @rule(who=OPERATORS, times=st.integers(1, 4), seconds=st.sampled_from([1, 3, 20]), other=HEARD)
    def user_suspends_for_a_while(self, who: int, times: int, seconds: int, other: Heard) -> None:
        self.world.edit(suspend=True)
        self._work_alone(who, times, seconds)
        self._wake_up(1 - who, other)
        self._work_alone(who, 4, seconds)
        self.operators[1 - who].finish()
        self.operators[1 - who].jobs.deliver(1000)
        self.world.edit(suspend=False)
        self._work_alone(who, 3, seconds)
        self._wake_up(1 - who, Heard(jobs=other.acts, pods=1000, asks=True, acts=8))

    # -- and at last

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.capacity = world.quota = 100
        world.silent, world.broken_image = False, set()
        world.edit(roles__rollout__minReplicas=1)
        while self.on_the_way:
            self.request_of_an_operator_before_arrives(0)
        for operator in self.operators:
            operator.finish()
            operator.follow()
        world.hangs = True
        self._settle()
        for operator in self.operators:
            operator.in_vain = 0
        if self._goes_on() and self.ending == "crash":
            self._crash_until_it_fails()
        elif self._goes_on() and self.ending == "suspend":
            self._suspend_and_resume()
        world.hangs = False
        self._take_steps()
        self._work_until(lambda: not self._goes_on())
        for _ in range(12):  # what is still there goes, and nothing comes back
            self._work(75)
        self._judge(world)

    def _work(self, seconds: int) -> None:
        self.world.taint_dead_nodes()
        for operator in self.operators:
            operator.turn()
        self.world.tick(seconds)

    def _work_until(self, holds: Any) -> None:
        for _ in range(LONGEST_S // 5):
            if holds():
                return
            self._work(5)
        raise AssertionError(f"no end: {self.world.job!r} {self.world.pods!r}")

    def _settle(self) -> None:
        """Until all pods are there, and have met."""
        self._work_until(self._has_settled)
        for _ in range(3):
            self._work(5)

    def _goes_on(self) -> bool:
        assert self.world.job is not None
        status = self.world.job.status
        held = self.world.job.spec["suspend"] and status.phase == "Suspended"
        return not (is_finished(status) or held)

    def _has_settled(self) -> bool:
        """Whether the job has come to rest, or runs with just the pods that its ledger names."""
        assert self.world.job is not None
        status = self.world.job.status
        if not self._goes_on():
            return True
        wanted = {
            (*split_name(unit.name), node, unit.incarnation, status.attempt)
            for unit in status.units
            if not unit.retired and unit.seen
            for node in range(2 if unit.name == "actor-0" else 1)
        }
        pods = self.world.pods.values()
        there = {(pod.role, pod.replica, pod.node, pod.incarnation, pod.attempt) for pod in pods}
        spec = self.world.job.spec["roles"]
        count = 3 + spec["rollout"]["replicas"] + spec.get("reward", {}).get("replicas", 1)
        return there == wanted and len(there) == len(pods) == count and all(map(is_alive, pods))

    def _crash_until_it_fails(self) -> None:
        """Without progress the budget is used up by just as many failures as it allows, and one more."""
        world = self.world
        assert world.job is not None
        left = self.max_restarts - world.job.status.budget.used
        for number in range(left + 1):
            assert self._goes_on(), f"gave up after {number} of {left + 1} failures"
            self._settle()
            world.crash(world.running()[number % len(world.running())])
            self.operators[0].decide()
            self.operators[0].restart()
            self._work(5)
        assert world.condition(ConditionType.FAILED) == ("True", "RestartsExhausted")

    def _suspend_and_resume(self) -> None:
        world = self.world
        step, starts = world.training.step, world.job.status.starts
        world.edit(suspend=True)
        self._work_until(lambda: not self._goes_on())
        assert world.job.status.phase == "Suspended" and not world.pods
        world.edit(suspend=False)
        self._settle()
        assert (world.job.status.starts, world.training.step) == (starts + 1, step), "steps were lost"

    def _take_steps(self) -> None:
        """Progress gives the budget back."""
        world = self.world
        for _ in range(4):
            self._work(5)
        assert world.job is not None
        budget = world.job.status.budget
        if self._goes_on() and world.training.step > budget.at_step + 1:
            assert budget.used == 0, "there was progress, and the budget is not given back"

    def _judge(self, world: World) -> None:
        assert world.job is not None
        assert not off_the_page(SAID)
        assert sum(operator.in_vain for operator in self.operators) == 0, "creates that could not be"
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


def _is_create_of(todo: Todo, role: str) -> bool:
    return isinstance(todo.action, CreatePod) and todo.action.plan.role == role


def _is_looked_for_first(todo: Todo) -> bool:
    """Whether nothing of it was sent before the look for other pods was answered."""
    return isinstance(todo.action, CreatePod) and todo.action.exclusive


Job.TestCase.settings = settings(
    max_examples=250, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestJob = Job.TestCase
