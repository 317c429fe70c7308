"""Whole looks at a job: what is seen, decided, written and done, against a peer that keeps objects."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.operator.adapter.world import JOB, SETTINGS, Connect, World

from trimtab_operator.adapter.apply import Hands
from trimtab_operator.adapter.children import Children
from trimtab_operator.adapter.controller import Controller
from trimtab_operator.adapter.jobs import JobCache
from trimtab_operator.adapter.memory import Memories
from trimtab_operator.adapter.observe import Observer
from trimtab_operator.adapter.pods import PodCache
from trimtab_operator.adapter.progress import Coordinators
from trimtab_operator.adapter.queue import RetryError
from trimtab_operator.certs import JobCredentials, MasterKey
from trimtab_operator.model.actions import Event
from trimtab_operator.model.observed import Job, Progress


class Heard:
    """Records the events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def publish(self, job: Job, event: Event) -> None:
        self.events.append(event)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def jobs() -> JobCache:
    return JobCache(lambda uid: None)


@pytest.fixture
async def controller(connect: Connect, world: World, heard: Heard, jobs: JobCache) -> Controller:
    client, memories, pods = await connect(world.answer), Memories(), PodCache(lambda old, new: None)
    coordinators = Coordinators(changed=lambda uid: None)

    def credentials(job: Job) -> JobCredentials:
        return JobCredentials(MasterKey(b"m" * 32), job_uid=job.uid, namespace="ns", job_name=job.name)

    return Controller(
        client,
        jobs=jobs,
        observer=Observer(
            client,
            pods=pods,
            coordinators=coordinators,
            memories=memories,
            settings=SETTINGS,
            credentials=credentials,
        ),
        hands=Hands(
            client,
            jobs=jobs,
            pods=pods,
            children=Children(client, memories=memories, credentials=credentials),
            coordinators=coordinators,
            memories=memories,
        ),
        coordinators=coordinators,
        events=heard,
        memories=memories,
    )


class Numbers:
    """Coordinators that say how far they have come when they are asked."""

    def __init__(self) -> None:
        self.attempt = self.step = self.said = 0

    async def ask_now(self, uid: str) -> None:
        self.said = self.step

    def latest(self, uid: str) -> Progress:
        return Progress(attempt=self.attempt, phase="Running", step=self.said, received=datetime.now(UTC))

    def follow(self, *_: object) -> None:
        pass

    def drop(self, uid: str) -> None:
        pass


JOB_PATH = "/apis/trimtab.dev/v1alpha1/namespaces/ns/rltrainingjobs/job"


@pytest.fixture
def submit(jobs: JobCache, world: World) -> Callable[..., None]:
    """Apply the small job, with other fields of its spec."""

    def put(**spec: Any) -> None:
        metadata = {"name": "job", "uid": "uid-1", "generation": 1}
        jobs.put(world.put(JOB_PATH, {"metadata": metadata, "spec": {**JOB.spec, **spec}}))

    return put


async def test_first_look_makes_pods_and_children_and_says_so(controller, submit, jobs, world, heard) -> None:
    submit()
    assert await controller.look("uid-1") > 0
    assert world.count("POST", "/pods") == 4
    assert world.count("PATCH", "/services/job") == 1
    assert jobs.get("uid-1").status.starts == 1
    assert "PodsCreated" in [event.reason for event in heard.events]


async def test_object_of_somebody_else_is_told_to_the_jobs_people(controller, submit, world, heard) -> None:
    theirs = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "job-run"}}
    world.put("/api/v1/namespaces/ns/persistentvolumeclaims/job-run", theirs)
    submit()
    with pytest.raises(RetryError):
        await controller.look("uid-1")
    (told,) = [event for event in heard.events if event.reason == "ObjectNotMade"]
    assert told.type == "Warning"
    assert "PersistentVolumeClaim job-run which is not the job's" in told.message


async def test_restart_is_counted_by_how_far_the_job_has_come_by_now(
    controller, submit, jobs, world, monkeypatch
) -> None:
    numbers = Numbers()
    monkeypatch.setattr(controller, "_coordinators", numbers)
    monkeypatch.setattr(controller._observer, "_coordinators", numbers)
    submit(failurePolicy={"maxRestarts": 1})
    await controller.look("uid-1")
    numbers.attempt = jobs.get("uid-1").status.attempt
    pods = {path: raw for path, raw in world.objects.items() if "/pods/" in path}

    def now(role: str, **status: Any) -> None:
        for path, raw in pods.items():
            if raw["metadata"]["labels"]["trimtab.dev/role"] == role:
                controller._observer._pods.put(world.put(path, raw | {"status": status}))

    for role in ("coordinator", "actor", "rollout", "reward"):
        now(role, phase="Running", podIP="127.0.0.1")
    await controller.look("uid-1")
    crashed = {"name": "trimtab", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    numbers.step = 4
    now("rollout", phase="Failed", containerStatuses=[crashed])
    await controller.look("uid-1")
    budget = jobs.get("uid-1").status.budget
    assert (budget.used, budget.at_step) == (1, 4), "not what it said a minute ago"

    numbers.step = 6
    now("reward", phase="Failed", containerStatuses=[crashed])
    await controller.look("uid-1")
    status = jobs.get("uid-1").status
    assert status.phase != "Failed", status.message
    assert (status.budget.used, status.budget.at_step) == (1, 6)


UNKNOWN = {"kind": "Status", "code": 400, "reason": "BadRequest", "message": 'unknown field "spec.tolerate"'}
MISSING = {
    "kind": "Status",
    "code": 422,
    "reason": "Invalid",
    "message": "spec.containers[1].image: Required value",
    "details": {"causes": [{"field": "spec.containers[1].image", "reason": "FieldValueRequired"}]},
}
QUOTA = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "exceeded quota"}
POLICY = {"kind": "Status", "code": 422, "reason": "Invalid", "details": {"causes": [{"message": "no"}]}}
TEMPLATE = {"actor": {"podTemplate": {"spec": {"tolerate": []}}}}


@pytest.mark.parametrize(
    ("refusals", "words"),
    [
        ([UNKNOWN], 'the pods of actor: unknown field "spec.tolerate"'),
        ([MISSING], "the pods of actor: spec.containers[1].image: Required value"),
        ([QUOTA], ""),
        ([POLICY], ""),
        ([UNKNOWN, UNKNOWN], ""),
    ],
    ids=["an unknown field", "a missing field", "a quota", "a policy", "a webhook that knows no dry run"],
)
async def test_pod_template_is_tried_before_anything_is_made(
    controller, submit, jobs, world, refusals: list[dict[str, Any]], words: str
) -> None:
    world.dry_run_refusals = list(refusals)
    submit(roles=TEMPLATE)
    await controller.look("uid-1")
    validated = next(each for each in jobs.get("uid-1").status.conditions if each.type == "Validated")
    assert validated.message == words
    if not words:
        assert validated.status == "True"
        assert len(world.objects) > 4
        return
    assert (validated.status, validated.reason) == ("False", "InvalidSpec")
    assert set(world.objects) == {JOB_PATH}
    calls = len(world.calls)
    await controller.look("uid-1")
    assert len(world.calls) == calls, "asked once for each generation"


async def test_job_without_free_form_parts_is_not_tried(controller, submit, world) -> None:
    world.dry_run_refusals = [UNKNOWN] * 9
    submit()
    await controller.look("uid-1")
    assert len(world.dry_run_refusals) == 9


async def test_claim_of_one_node_that_is_replaced_is_seen(
    controller, submit, jobs, world, monkeypatch
) -> None:
    monkeypatch.setattr("trimtab_operator.adapter.observe.CLAIMS_S", 0.0)
    path = "/api/v1/namespaces/ns/persistentvolumeclaims/runs"
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "runs"}}
    world.put(path, claim | {"spec": {"accessModes": ["ReadWriteOnce"]}})
    volume = {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}
    submit(storage={"volume": {"name": "runs"}}, volumes=[volume])
    assert await controller.look("uid-1") <= 60, "no event tells that a claim is another one"
    assert jobs.get("uid-1").status.conditions[0].reason == "StorageNotShared"
    world.put(path, claim | {"spec": {"accessModes": ["ReadWriteMany"]}})
    await controller.look("uid-1")
    assert jobs.get("uid-1").status.conditions[0].reason == "Accepted"
