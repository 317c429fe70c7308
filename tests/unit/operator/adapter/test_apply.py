"""The acts of a decision against a peer that keeps objects as the API server does, as far as needed here."""

from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from tests.unit.operator.adapter.world import JOB, RESOLVED, Connect, World, plan, status

from trimtab.api.status import JobStatus
from trimtab_operator.adapter.apply import Hands
from trimtab_operator.adapter.children import Children
from trimtab_operator.adapter.jobs import JobCache
from trimtab_operator.adapter.memory import Memories
from trimtab_operator.adapter.pods import PodCache
from trimtab_operator.adapter.progress import Coordinators
from trimtab_operator.builders.claim import run_claim
from trimtab_operator.builders.config_map import resolved_manifest
from trimtab_operator.certs import JobCredentials, MasterKey
from trimtab_operator.kube.election import boot_clock
from trimtab_operator.kube.errors import ConflictError
from trimtab_operator.model.actions import (
    CreatePod,
    CreateResolved,
    DeleteJob,
    DeletePod,
    EnsureChildren,
    StopTraining,
)
from trimtab_operator.model.observed import Job


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def pods() -> PodCache:
    return PodCache(lambda old, new: None)


@pytest.fixture
def jobs() -> JobCache:
    return JobCache(lambda uid: None)


@pytest.fixture
def memories() -> Memories:
    return Memories()


@pytest.fixture
async def hands(connect: Connect, world: World, jobs: JobCache, pods: PodCache, memories: Memories) -> Hands:
    client = await connect(world.answer)

    def credentials(job: Job) -> JobCredentials:
        return JobCredentials(MasterKey(b"m" * 32), job_uid=job.uid, namespace="ns", job_name=job.name)

    return Hands(
        client,
        jobs=jobs,
        pods=pods,
        children=Children(client, memories=memories, credentials=credentials),
        coordinators=Coordinators(changed=lambda uid: None),
        memories=memories,
    )


async def test_pod_is_created_and_known_at_once(hands, world, pods) -> None:
    outcome = await hands.carry_out(JOB, [CreatePod(plan=plan(), resolved=RESOLVED)], decided_at=boot_clock())
    assert (outcome.failed, outcome.refused, outcome.look_again) == ([], "", False)
    assert [known.pod.name for known in pods.of_job("uid-1")] == [plan().name]


async def test_pod_that_is_there_already_is_success_where_it_is_the_jobs(hands, world, pods) -> None:
    world.put_pod(plan())
    outcome = await hands.carry_out(JOB, [CreatePod(plan=plan(), resolved=RESOLVED)], decided_at=boot_clock())
    assert outcome.failed == []
    assert [known.pod.phase for known in pods.of_job("uid-1")] == ["Running"]


async def test_pod_of_that_name_which_is_another_jobs_is_left_and_named(hands, world, pods) -> None:
    theirs = world.put_pod(plan())
    theirs["metadata"]["labels"] = theirs["metadata"]["labels"] | {"trimtab.dev/job-uid": "another"}
    outcome = await hands.carry_out(JOB, [CreatePod(plan=plan(), resolved=RESOLVED)], decided_at=boot_clock())
    assert outcome.failed == [f"pod {plan().name}: there is a pod of that name which is not the job's"]
    assert pods.of_job("uid-1") == []


@pytest.mark.parametrize(
    ("other", "created"),
    [({}, 0), ({"phase": "Failed"}, 1)],
    ids=["the other one runs", "the other one has ended"],
)
async def test_exclusive_pod_waits_for_the_end_of_the_other_incarnation(
    hands, world, pods, other: dict[str, Any], created: int
) -> None:
    world.put_pod(plan(incarnation=1), **other)
    action = CreatePod(plan=plan(incarnation=2), resolved=RESOLVED, exclusive=True)
    outcome = await hands.carry_out(JOB, [action], decided_at=boot_clock())
    assert world.count("POST", "/pods") == created
    assert outcome.look_again is (created == 0)
    assert len(pods.of_job("uid-1")) == 1 + created, "what was found is known from now on"


async def test_pod_is_not_created_after_its_time(hands, world) -> None:
    late = boot_clock() - 16
    outcome = await hands.carry_out(JOB, [CreatePod(plan=plan(), resolved=RESOLVED)], decided_at=late)
    assert outcome.failed == [f"pod {plan().name}: not created in time"]
    assert world.calls == []


async def test_create_without_an_answer_is_sent_again_within_its_time(
    hands, world, pods, monkeypatch
) -> None:
    monkeypatch.setattr("trimtab_operator.adapter.apply.AGAIN_S", 0.001)
    world.fails["POST", "/pods"] = [web.Response(text="cut off")]
    outcome = await hands.carry_out(JOB, [CreatePod(plan=plan(), resolved=RESOLVED)], decided_at=boot_clock())
    assert outcome.failed == []
    assert world.count("POST", "/pods") == 2


async def test_refused_pod_does_not_keep_others_from_being_created(hands, world) -> None:
    world.fails["POST", "/pods"] = [status(422, "Invalid", "admission webhook says no")]
    actions = [CreatePod(plan=plan(role), resolved=RESOLVED) for role in ("actor", "rollout", "reward")]
    outcome = await hands.carry_out(JOB, actions, decided_at=boot_clock())
    assert outcome.refused == "admission webhook says no"
    assert outcome.failed == []
    assert world.count("POST", "/pods") == 3


async def test_resolved_spec_comes_first_and_a_stored_one_counts(hands, world, memories) -> None:
    other = RESOLVED.model_copy(update={"generation": 9})
    world.put(f"/api/v1/namespaces/ns/configmaps/{RESOLVED.name}", resolved_manifest(other))
    actions = [CreatePod(plan=plan(), resolved=RESOLVED), CreateResolved(resolved=RESOLVED)]
    outcome = await hands.carry_out(JOB, actions, decided_at=boot_clock())
    assert outcome.look_again
    assert memories.of("uid-1").resolved.generation == 9
    assert world.count("POST", "/pods") == 0, "decided from another resolved spec"


async def test_resolved_spec_that_is_another_jobs_is_named(hands, world) -> None:
    stored = resolved_manifest(RESOLVED)
    stored["metadata"] = stored["metadata"] | {"ownerReferences": [{"uid": "another"}]}
    world.put(f"/api/v1/namespaces/ns/configmaps/{RESOLVED.name}", stored)
    outcome = await hands.carry_out(JOB, [CreateResolved(resolved=RESOLVED)], decided_at=boot_clock())
    assert outcome.failed == [f"resolved spec: there is a ConfigMap {RESOLVED.name} which is not the job's"]


@pytest.mark.parametrize("uid", ["gone", "another"], ids=["gone", "another pod of that name"])
async def test_deletion_of_a_pod_that_is_gone_is_success(hands, world, pods, uid: str) -> None:
    raw = world.put_pod(plan())
    pods.put(raw | {"metadata": raw["metadata"] | {"uid": "u"}})
    if uid == "gone":
        world.objects.clear()
    action = DeletePod(name=plan().name, uid="u", why="replaced")
    outcome = await hands.carry_out(JOB, [action], decided_at=boot_clock())
    assert outcome.failed == []
    assert pods.of_job("uid-1") == []


async def test_job_that_is_gone_when_its_time_is_up_is_forgotten(hands, world, jobs) -> None:
    outcome = await hands.carry_out(JOB, [DeleteJob(uid="uid-1")], decided_at=boot_clock())
    assert outcome.failed == []


async def test_coordinator_that_cannot_be_told_is_a_failure_in_words(hands) -> None:
    outcome = await hands.carry_out(
        JOB, [StopTraining(reason="suspended", grace_s=30)], decided_at=boot_clock()
    )
    assert outcome.failed == ["stop: the coordinator does not run"]
    assert outcome.told == []


def ensure(**counts: int) -> EnsureChildren:
    return EnsureChildren(
        resolved=RESOLVED,
        **{"rollout_replicas": 2, "min_rollout_replicas": 1, "reward_replicas": 1, "min_reward_replicas": 1}
        | counts,
    )


async def test_children_are_applied_once_and_again_when_something_changes(hands, world) -> None:
    for action in (ensure(), ensure(), ensure(rollout_replicas=3)):
        outcome = await hands.carry_out(JOB, [action], decided_at=boot_clock())
        assert outcome.failed == []
    assert world.count("PATCH", "/services/job") == 2
    assert world.count("PATCH", "/secrets/job-tls") == 2
    budget = world.objects["/apis/policy/v1/namespaces/ns/poddisruptionbudgets/job-rollout"]
    assert budget["spec"]["minAvailable"] == 2
    assert world.count("GET", "/secrets") == 0


async def test_children_of_a_job_that_runs_are_left_for_later_after_a_restart(hands, world) -> None:
    registered = JobStatus.model_validate(
        {
            "conditions": [
                {
                    "type": "WorkersReady",
                    "status": "True",
                    "reason": "AllRegistered",
                    "lastTransitionTime": "2026-11-30T10:00:00Z",
                }
            ]
        }
    )
    outcome = await hands.carry_out(replace(JOB, status=registered), [ensure()], decided_at=boot_clock())
    assert outcome.failed == []
    assert world.calls == []


async def test_child_that_is_refused_is_told(hands, world) -> None:
    world.fails["PATCH", "/networkpolicies"] = [status(422, "Invalid", "spec.egress[0].ports: no such port")]
    outcome = await hands.carry_out(JOB, [ensure()], decided_at=boot_clock())
    assert outcome.told == ["children: spec.egress[0].ports: no such port"]


async def test_claim_of_somebody_else_is_neither_adopted_nor_changed(hands, world) -> None:
    theirs = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "job-run"}}
    world.put("/api/v1/namespaces/ns/persistentvolumeclaims/job-run", theirs)
    outcome = await hands.carry_out(JOB, [ensure()], decided_at=boot_clock())
    assert outcome.failed == ["children: there is a PersistentVolumeClaim job-run which is not the job's"]
    assert outcome.told == outcome.failed, "its people can do something about it"
    assert world.count("PATCH", "/persistentvolumeclaims") == 0


@pytest.mark.parametrize(
    ("size", "patches"),
    [("512Mi", 1), ("1Gi", 0), ("1024Mi", 0), ("1.5Gi", 0), ("2Ei", 0)],
    ids=["smaller", "the same", "the same in other words", "larger", "far larger"],
)
async def test_claim_of_the_job_grows_and_is_never_made_smaller(
    hands, world, size: str, patches: int
) -> None:
    manifest = run_claim(RESOLVED) | {"spec": {"resources": {"requests": {"storage": size}}}}
    world.put("/api/v1/namespaces/ns/persistentvolumeclaims/job-run", manifest)
    outcome = await hands.carry_out(JOB, [ensure()], decided_at=boot_clock())
    assert outcome.failed == []
    assert world.count("PATCH", "/persistentvolumeclaims") == patches


async def test_status_goes_with_version_and_uid_and_becomes_what_is_known(hands, world, jobs) -> None:
    metadata = {"name": "job", "namespace": "ns", "uid": "uid-1", "resourceVersion": "5"}
    jobs.put({"metadata": metadata | {"creationTimestamp": "2026-11-30T10:00:00Z"}, "spec": {}})
    await hands.write_status(JOB, JobStatus(phase="Pending", attempt=7001))
    assert world.put_bodies[0]["metadata"] == metadata
    assert world.put_bodies[0]["status"]["attempt"] == 7001
    known = jobs.get("uid-1")
    assert (known.resource_version, known.status.attempt) == ("101", 7001)


async def test_conflict_of_a_status_is_told(hands, world) -> None:
    world.fails["PUT", "/status"] = [status(409, "Conflict")]
    with pytest.raises(ConflictError):
        await hands.write_status(JOB, JobStatus(phase="Pending"))
