"""docs/reference/conditions.md is what the operator does: jobs are led into every phase, in every state."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.operator.reconcile import world as worlds
from tests.unit.operator.reconcile.looks import phase
from tests.unit.operator.reconcile.page import SCRIPT, off_the_page
from tests.unit.operator.reconcile.world import Operator, World, run

from trimtab.api.conditions import Phase, Reason
from trimtab_operator.reconcile import reconcile

METRICS: dict[str, dict[str, float]] = {
    "none yet": {},
    "finite": {"critic/rewards/mean": 0.5},
    "not finite": {"critic/rewards/mean": math.nan},
}
LONG = {"training__steps": 400}


class Story:
    """One job, whose metrics and whose spec are of some kind all along."""

    def __init__(self, metrics: dict[str, float], *, edited: bool, **changes: Any) -> None:
        self.world = World(**changes)
        self.world.metrics = metrics
        self.operator = Operator(self.world)
        self.operator.turn()
        if edited:
            self.world.edit(training__miniBatchPrompts=3)
            self.operator.turn()

    def until(self, wanted: Phase, seconds: int = 400) -> None:
        run(self.world, self.operator, seconds=seconds, until=lambda: phase(self.world) == wanted)

    def report(self, **changes: Any) -> None:
        """The operator hears something else of the coordinator for once, and writes what follows."""
        observed = self.operator.observe()
        assert observed is not None and observed.progress is not None
        decision = reconcile(
            replace(observed, progress=replace(observed.progress, **changes)), self.world.now
        )
        self.world.put_status(observed.job, decision.status)

    def start(self) -> None:
        """Pending, Starting (with and without all workers), Running."""
        self.world.tick(5)
        self.world.silent = True
        self.world.tick(5)
        self.operator.turn()
        self.world.silent = False
        self.report(phase="Starting", ready={"actor": 2, "rollout": 2, "reward": 1}, missing="")
        self.until(Phase.RUNNING)


def train(story: Story) -> None:
    world = story.world
    story.start()
    for role in ("rollout", "actor", "coordinator"):
        world.crash(world.running(role)[0])
        story.until(Phase.RUNNING)
    story.report(phase="Recovering")
    story.until(Phase.RUNNING)
    story.report(phase="Stopping")
    story.report(phase="Stopping", missing="rollout-1", ready={"actor": 2, "rollout": 1, "reward": 1})
    story.until(Phase.RUNNING)


def degrade(story: Story) -> None:
    world = story.world
    story.start()
    for pod in world.running("rollout"):
        world.remove(pod)
    story.operator.turn()


def wait_for_quota(story: Story) -> None:
    """While it starts, runs, recovers and is suspended."""
    world, operator = story.world, story.operator
    story.start()
    world.quota = 0
    world.remove(world.running("rollout")[0])
    run(world, operator, seconds=60)
    world.remove(world.running("actor")[0])
    run(world, operator, seconds=60)
    world.edit(suspend=True)
    operator.turn()


def suspend_and_resume(story: Story) -> None:
    world = story.world
    story.start()
    world.edit(suspend=True)
    story.operator.turn()
    story.until(Phase.SUSPENDED)
    world.edit(training__miniBatchPrompts=3)
    story.operator.turn()
    world.edit(suspend=False)
    story.operator.turn()
    assert phase(world) == Phase.INVALID
    world.edit(training__miniBatchPrompts=None)
    story.until(Phase.RUNNING)


def suspend_while_a_replica_is_missing(story: Story) -> None:
    story.start()
    story.world.remove(story.world.running("rollout")[0])
    story.operator.turn()
    story.world.edit(suspend=True)
    story.operator.turn()


def find_no_node(story: Story) -> None:
    """When it starts, and when it recovers; until all pods are released."""
    world = story.world
    story.start()
    for capacity in (3, 0):
        world.remove(world.running("actor")[0])
        world.capacity = capacity
        run(world, story.operator, seconds=200)
        world.capacity = 100
        story.until(Phase.RUNNING)


def pull_no_image(story: Story) -> None:
    story.world.broken_image = {"rollout"}
    story.until(Phase.FAILED, 900)


def have_no_key(story: Story) -> None:
    world = story.world
    world.tick(5)
    pod = next(pod for pod in world.pods.values() if pod.role == "reward")
    world._put(replace(pod, waiting_reason="CreateContainerConfigError"))
    story.operator.turn()
    world.tick(600)
    world._put(replace(world.pods[pod.name], phase="Pending", waiting_reason="CreateContainerConfigError"))
    story.operator.turn()
    assert phase(world) == Phase.FAILED


def complete(story: Story) -> None:
    story.until(Phase.COMPLETE)


def wait_for_quota_and_fail(story: Story) -> None:
    story.world.quota = 0
    for pod in list(story.world.pods.values()):
        story.world.remove(pod)
    run(story.world, story.operator, seconds=60)
    story.until(Phase.FAILED, 600)


def fail(code: int, times: int = 1) -> Callable[[Story], None]:
    def story_of(story: Story) -> None:
        story.start()
        story.world.hangs = True
        for _ in range(times):
            run(story.world, story.operator, seconds=400, until=lambda: story.world.running("reward"))
            story.world.crash(story.world.running("reward")[0], code)
            story.operator.turn()
        assert phase(story.world) == Phase.FAILED

    return story_of


STORIES: tuple[tuple[Callable[[Story], None], dict[str, Any]], ...] = (
    (train, LONG),
    (degrade, LONG),
    (wait_for_quota, LONG),
    (suspend_and_resume, LONG),
    (suspend_while_a_replica_is_missing, LONG),
    (find_no_node, {**LONG, "pendingDeadlineSeconds": 60}),
    (pull_no_image, {}),
    (have_no_key, {}),
    (complete, {}),
    (wait_for_quota_and_fail, {"activeDeadlineSeconds": 300}),
    (fail(64), LONG),
    (fail(66, 4), LONG),
    (fail(69), LONG),
    (fail(1, 4), LONG),
)


def never_started() -> None:
    """Refused, or held, from the start."""
    for changes in (
        {"training__miniBatchPrompts": 3},
        {"training__miniBatchPrompts": 3, "suspend": True},
        {"suspend": True},
        {"storage": {"claim": {"size": "1Gi", "accessModes": ["ReadWriteOnce"]}}},
    ):
        Operator(World(**changes)).turn()


def held_with_metrics(metrics: dict[str, float]) -> None:
    story = Story(metrics, edited=False, **LONG)
    story.start()
    story.world.edit(suspend=True)
    story.until(Phase.SUSPENDED)


@pytest.fixture(scope="module")
def said() -> set[tuple[str, str, str, str]]:
    """Everything that any of the stories wrote."""
    before = set(worlds.SAID)
    worlds.SAID.clear()
    never_started()
    for metrics in METRICS.values():
        held_with_metrics(metrics)
        for edited in (False, True):
            for tell, changes in STORIES:
                if not (edited and tell is suspend_and_resume):
                    tell(Story(metrics, edited=edited, **changes))
    found = set(worlds.SAID)
    worlds.SAID |= before
    return found


def test_every_value_in_every_phase_is_as_the_page_says(said):
    seen = {
        name: tuple(
            frozenset(status for p, kind, status, _ in said if (p, kind) == (name, column))
            for column in SCRIPT.COLUMNS
        )
        for name in {p for p, *_ in said}
    }
    expected = {name.value: tuple(map(frozenset, row)) for name, row in SCRIPT.MATRIX.items()}
    assert seen == expected


def test_every_reason_of_every_value_is_as_the_page_says(said):
    ended = (Phase.COMPLETE, Phase.FAILED)
    while_it_lasts = {
        (kind, status, reason)
        for name, kind, status, reason in said
        if not (name in ended and kind in SCRIPT.AFTER_THE_END)
    }
    while_it_lasts |= {(kind, "True", reason) for _, kind, status, reason in said if status == "True"}
    expected = {
        (kind.value, status, reason.value)
        for kind, by_status in SCRIPT.REASONS.items()
        for status, reasons in by_status.items()
        for reason in reasons
    }
    assert while_it_lasts == expected
    assert not off_the_page(said)
    assert {
        reason for name, kind, _, reason in said if name == Phase.COMPLETE and kind in SCRIPT.AFTER_THE_END
    } == {Reason.STEPS_DONE}


def test_page_is_up_to_date():
    assert SCRIPT.PAGE.read_text(encoding="utf-8") == SCRIPT.page()


def test_every_reason_has_a_place_on_the_page():
    page = SCRIPT.page()
    assert all(f"| `{reason.value}` |" in page for reason in Reason)
