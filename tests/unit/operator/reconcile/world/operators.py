"""One operator's adapter: looks, decides, writes the status, and carries out what was decided.

Each operator looks at the job again only when what it decided before is done, or its process is another
one. In between every action is a step of its own, in any order but for the resolved spec, which comes
first; the look for other pods of the unit and the create after it are two.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tests.unit.operator.reconcile.world.accounts import check_creates
from tests.unit.operator.reconcile.world.caches import JobCache, PodCache
from tests.unit.operator.reconcile.world.cluster import ConflictError
from tests.unit.operator.reconcile.world.job import SETTINGS
from tests.unit.operator.reconcile.world.training import Words, World

from trimtab_operator.model.actions import (
    ACT_WITHIN_S,
    Action,
    CreatePod,
    CreateResolved,
    Decision,
    DeleteJob,
    DeletePod,
    EnsureChildren,
    Event,
    Resize,
    StopTraining,
)
from trimtab_operator.model.observed import Job, Observed, Pod, Progress
from trimtab_operator.model.plan import PodPlan
from trimtab_operator.model.resolved import Settings
from trimtab_operator.reconcile import reconcile
from trimtab_operator.reconcile.finishing import is_finished
from trimtab_operator.reconcile.units import has_ended


@dataclass(frozen=True)
class Todo:
    """An action that is under way."""

    action: Action
    decided: datetime


class Operator:
    """One operator process after another."""

    def __init__(self, world: World, settings: Settings = SETTINGS, *, ahead_s: int = 0) -> None:
        """`ahead_s`: by how much its clock is wrong."""
        self.world = world
        self.settings = settings
        self.ahead_s = ahead_s
        self.jobs = JobCache(world)
        self.pods = PodCache(world)
        self.hears = True
        """Whether it asks the coordinator whenever it looks; else when it is told to."""
        self.heard: Progress | None = None
        self._link: str | None = None
        """Uid of the coordinator's pod that it asks."""
        self.refused = ""
        self.todo: list[Todo] = []
        self.events: list[Event] = []
        self.writes = 0
        self.in_vain = 0
        """Creates that were not carried out, as another pod of the unit still ran."""

    def restart(self) -> list[Todo]:
        """The process ends and another one begins; what it was about to do, which nobody does now."""
        lost, self.todo = self.todo, []
        self.heard, self._link, self.refused = None, None, ""
        self.jobs.read()
        self.pods.relist()
        return lost

    def follow(self, *, follows: bool = True) -> None:
        """Have every change delivered at once from now on, or none until it is told to."""
        self.jobs.watch.follows = self.pods.watch.follows = self.hears = follows

    # -- looking

    def observe(self, *, listed: bool = False) -> Observed | None:
        """What its caches say; `listed`: the pods as the API server has them."""
        if listed:
            self.pods.list()
        job = self.jobs.get()
        if job is None:
            return None
        pods, state = self.pods.all(), job.status.resolved
        return Observed(
            job=job,
            pods=pods,
            pods_listed=listed,
            progress=self._progress(job, pods),
            resolved=None if state is None else self.world.config_maps.get(state.name),
            claims=self.world.claims,
            settings=self.settings,
            refused=self.refused,
        )

    def ask(self) -> None:
        """Ask the coordinator, if it runs and can be reached."""
        pod = next((pod for pod in self.world.running("coordinator") if pod.uid == self._link), None)
        if pod is not None and not self.world.silent:
            self.heard = self.world.progress(pod, self._now)

    def _progress(self, job: Job, pods: tuple[Pod, ...]) -> Progress | None:
        mine = [pod for pod in pods if pod.role == "coordinator" and pod.attempt == job.status.attempt]
        if not mine or is_finished(job.status):
            self.heard = self._link = None
            return None
        newest = max(mine, key=lambda pod: pod.incarnation)
        if has_ended(newest):
            self._link = None
        elif newest.phase == "Running" and self._link != newest.uid:
            self.heard, self._link = None, newest.uid
        if self.hears:
            self.ask()
        words = {pod.uid: self._final_word(pod) for pod in mine}
        complete = next((word for word in words.values() if word and word.phase == "Complete"), None)
        return complete or words[newest.uid] or self.heard

    def _final_word(self, pod: Pod) -> Progress | None:
        said = self.world.words.get(pod.uid)
        return said.final if said is not None and has_ended(pod) else None

    @property
    def _now(self) -> datetime:
        return self.world.now + timedelta(seconds=self.ahead_s)

    # -- deciding

    def decide(self) -> Decision | None:
        """Look, decide, write the status; what is to be done waits in `todo`."""
        assert not self.todo, "what was decided before is not done"
        observed = self.observe()
        if observed is None:
            return None
        decision = reconcile(observed, self._now)
        if decision.list_pods:
            observed = self.observe(listed=True)
            assert observed is not None
            decision = reconcile(observed, self._now)
            assert not decision.list_pods
        job = observed.job
        if decision.status != job.status:
            try:
                self.jobs.put_own(self.world.put_status(job, decision.status))
            except ConflictError:
                self.jobs.read()
                return None
            self.writes += 1
        self.events += decision.events
        self._promise(decision)
        return decision

    def _promise(self, decision: Decision) -> None:
        creates = [action for action in decision.actions if isinstance(action, CreatePod)]
        check_creates(self.world.creates_under_way(), creates)
        there = [create.plan.name for create in creates if create.plan.name in self.world.pods]
        assert not there, f"asked for, and there already: {there}"
        self.world.promised += [(create, self.world.now.timestamp()) for create in creates]
        self.todo = [Todo(action, self.world.now) for action in decision.actions]
        self.todo.sort(key=lambda todo: not isinstance(todo.action, CreateResolved))

    def act(self, number: int = 0) -> None:
        """Carry one of the actions out, or the first half of it."""
        if not self.todo:
            return
        first = isinstance(self.todo[0].action, CreateResolved)
        todo = self.todo.pop(0 if first else number % len(self.todo))
        rest = self.do(todo)
        if rest is not None:
            self.todo.append(rest)
        self.world.check()

    def turn(self) -> Decision | None:
        """One look, and all that follows; what was decided before comes first."""
        self.finish()
        decision = self.decide()
        self.finish()
        return decision

    def finish(self) -> None:
        """Carry out all that was decided."""
        while self.todo:
            self.act()

    # -- acting

    def do(self, todo: Todo) -> Todo | None:
        """Carry an action out; what is still to be done of it."""
        world = self.world
        match todo.action:
            case CreateResolved(resolved=resolved):
                world.config_maps.setdefault(resolved.name, resolved)
            case CreatePod(plan=plan, exclusive=exclusive) as create:
                late = (world.now - todo.decided).total_seconds() > ACT_WITHIN_S
                if exclusive and not late:
                    if not self._another(plan):
                        return replace(todo, action=replace(create, exclusive=False))
                    self.in_vain += 1
                elif not late:
                    refused = world.create_pod(plan) == "refused"
                    self.refused = "exceeded quota: pods=0" if refused else ""
                    self.pods.answer(plan.name, "")
                self._forget(create)
            case DeletePod(name=name, uid=uid, grace_s=grace_s):
                world.delete_pod(name, uid, grace_s)
                self.pods.answer(name, uid)
            case StopTraining(grace_s=grace_s):
                self._tell(lambda words: _stop(words, world.now, grace_s))
            case Resize() as sizes:
                self._tell(lambda words: setattr(words, "sizes", sizes))
            case DeleteJob(uid=uid):
                if world.job is not None and world.job.uid == uid:
                    world.delete_job()
            case EnsureChildren():
                pass
        return None

    def _forget(self, create: CreatePod) -> None:
        """The create is done."""
        name = create.plan.name
        self.world.promised = [item for item in self.world.promised if item[0].plan.name != name]

    def _another(self, plan: PodPlan) -> bool:
        place, this = (plan.role, plan.replica), (plan.attempt, plan.incarnation)
        pods = [pod for pod in self.world.pods.values() if (pod.role, pod.replica) == place]
        for pod in pods:
            self.pods.answer(pod.name, pod.uid)
        return any((pod.attempt, pod.incarnation) != this and not has_ended(pod) for pod in pods)

    def _tell(self, what: Callable[[Words], None]) -> None:
        for pod in self.world.running("coordinator"):
            if pod.uid == self._link and not self.world.silent:
                what(self.world.words.setdefault(pod.uid, Words()))


def _stop(words: Words, now: datetime, grace_s: float) -> None:
    if words.stop_since is None:
        words.stop_since, words.grace_s, words.phase = now, grace_s, "Stopping"


def run(world: World, operator: Operator, *, seconds: int, until: Callable[[], bool] | None = None) -> None:
    """Let everybody work for so long, or until something holds."""
    for _ in range(seconds // 5):
        operator.turn()
        if until is not None and until():
            return
        world.tick(5)
    if until is not None:
        raise AssertionError(f"not within {seconds} s: {world.job and world.job.status!r}")
