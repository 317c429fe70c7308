"""Whole looks at a job: what is seen, decided, written and done, against a peer that keeps objects."""

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
from trimtab_operator.model.observed import Job


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


def raw_job(**spec: Any) -> dict[str, Any]:
    """The small job as the API server sends it."""
    metadata = {"name": "job", "namespace": "ns", "uid": "uid-1", "resourceVersion": "5", "generation": 1}
    return {
        "metadata": metadata | {"creationTimestamp": "2026-11-30T10:00:00Z"},
        "spec": {**JOB.spec, **spec},
    }


async def test_first_look_makes_pods_and_children_and_says_so(controller, jobs, world, heard) -> None:
    jobs.put(raw_job())
    assert await controller.look("uid-1") > 0
    assert world.count("POST", "/pods") == 4
    assert world.count("PATCH", "/services/job") == 1
    assert jobs.get("uid-1").status.starts == 1
    assert "PodsCreated" in [event.reason for event in heard.events]


async def test_object_of_somebody_else_is_told_to_the_jobs_people(controller, jobs, world, heard) -> None:
    theirs = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "job-run"}}
    world.put("/api/v1/namespaces/ns/persistentvolumeclaims/job-run", theirs)
    jobs.put(raw_job())
    with pytest.raises(RetryError):
        await controller.look("uid-1")
    (told,) = [event for event in heard.events if event.reason == "ObjectNotMade"]
    assert told.type == "Warning"
    assert "PersistentVolumeClaim job-run which is not the job's" in told.message
