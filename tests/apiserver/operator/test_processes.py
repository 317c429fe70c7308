"""Operators that end, are killed, stand by, run twice, or have few rights: nothing is lost or done twice."""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from trimtab_operator.adapter.permissions import (
    IN_JOB_NAMESPACES,
    IN_OWN_NAMESPACE,
    OF_EVERYBODY,
    Permission,
)

CRD_FILE = Path(__file__).resolve().parents[3] / "charts" / "trimtab" / "files" / "crd.yaml"

SELDOM = {
    ("pods", "get"),  # a create that meets a pod of that name
    ("rltrainingjobs", "get"),  # a write that meets a newer version
    ("configmaps", "get"),  # after a restart of the operator
    ("persistentvolumeclaims", "get"),  # claims that a job's volumes name
    ("persistentvolumeclaims", "patch"),
    ("resourceclaimtemplates", "create"),
    ("resourceclaimtemplates", "patch"),
    ("events", "patch"),
    # A server-side apply of what is not there yet needs both, and is logged as a patch.
    ("services", "create"),
    ("secrets", "create"),
    ("networkpolicies", "create"),
    ("poddisruptionbudgets", "create"),
}
"""Rights that the life of one job may not touch."""


async def test_second_operator_stands_by_and_takes_over_at_once_from_one_that_ends(world, operator):
    await world.running()
    second = world.start_operator()
    await second.logged("standing by: .* leads")
    assert (await second.get("/readyz"))[0] == 200
    assert await second.metric("trimtab_operator_leading") == 0
    begun = time.monotonic()
    assert await operator.end() == 0
    assert time.monotonic() - begun < 10
    assert operator.lines()[-1]["message"] == "stopped on request"
    await second.logged("leading as", timeout_s=8)
    lost = await world.pod("rollout-1")
    await world.api.delete("Pod", lost)
    await world.pods_are(5, without=lost)
    assert await second.end() == 0


async def test_two_operators_that_act_at_once_do_no_harm(world):
    for _ in range(2):
        await world.start_operator("--no-leader-elect").ready()
    made = [await world.api.create(world.job(f"job-{number}")) for number in range(4)]
    for each in made:
        await world.bring_up(each)
    for number, unit in enumerate(("rollout-0", "actor-0", "coordinator-0", "reward-0")):
        await world.api.delete("Pod", await world.pod(unit, f"job-{number}"))
    for number, unit in enumerate(("rollout-0", "actor-0", "coordinator-0", "reward-0")):
        raw = await world.job_until(
            f"job-{number}",
            lambda raw, unit=unit: any(
                each["name"] == unit and each["incarnation"] == 2 and each["seen"]
                for each in raw["status"]["units"]
            ),
            "whole again",
        )
        assert raw["status"]["starts"] == 1
        assert sum(each["incarnation"] - 1 for each in raw["status"]["units"]) == 1
        assert len(await world.pods(f"job-{number}")) == 5
    await world.ran(4 * 6)


async def test_operator_that_is_killed_in_the_middle_loses_nothing(world):
    first = world.start_operator("--no-leader-elect")
    await first.ready()
    made = [await world.api.create(world.job(f"job-{number}")) for number in range(6)]
    await world.told(lambda: world.kubelet.ran, "begun")
    await first.end(signal.SIGKILL)
    second = world.start_operator("--no-leader-elect")
    await second.ready()
    for each in made:
        await world.pods_are(5, each["metadata"]["name"])
    for each in made:
        raw, peer = await world.bring_up(each)
        assert raw["status"]["starts"] == 1
        assert {unit["incarnation"] for unit in raw["status"]["units"]} == {1}
        assert peer.stops == []
    await world.ran(6 * 5)


async def test_operator_that_is_killed_while_a_job_is_stopped_goes_on_with_it(world):
    first = world.start_operator("--no-leader-elect")
    await first.ready()
    _, peer = await world.running()
    await world.api.patch("RLTrainingJob", "job", {"spec": {"suspend": True}})
    await world.told(lambda: peer.stops, "told to stop")
    await first.end(signal.SIGKILL)
    word = {"phase": "Stopped", "step": 3, "totalSteps": 8, "checkpointStep": 3, "checkpointPath": "/c/3"}
    await world.kubelet.ends(await world.pod("coordinator-0"), 0, word)
    await world.start_operator("--no-leader-elect").ready()
    held = await world.job_is("job", Suspended="True/SuspendRequested")
    assert held["status"]["checkpoint"] == {"step": 3, "path": "/c/3"}
    await world.pods_are(0)


async def test_operator_without_its_lease_ends_with_an_error(world, operator):
    await world.api.patch("Lease", "trimtab-operator", {"spec": {"holderIdentity": "somebody"}})
    assert await operator.ended(15) == 1
    assert "somebody took the lease" in operator.lines()[-1]["message"]


async def test_crd_is_waited_for_and_a_restart_of_the_api_server_loses_nothing(own_world):
    operator = own_world.start_operator(everywhere=True)
    await operator.logged("waiting for the CRD")
    assert (await operator.get("/readyz"))[0] == 503
    await own_world.api.install_crd(YAML(typ="safe", pure=True).load(CRD_FILE))
    await operator.ready()
    await own_world.running()
    await asyncio.to_thread(own_world.api.server.restart)
    if operator.process.poll() is not None:  # it took longer than the lease holds, and a pod is started again
        assert operator.process.returncode == 1
        operator = own_world.start_operator(everywhere=True)
    await own_world.running("later")
    lost = await own_world.pod("rollout-0")
    await own_world.api.delete("Pod", lost)
    await own_world.pods_are(5, without=lost)
    assert await operator.end() == 0


async def test_api_server_that_stays_away_ends_the_operator_and_another_one_goes_on(own_world):
    await own_world.api.install_crd(YAML(typ="safe", pure=True).load(CRD_FILE))
    operator = own_world.start_operator()
    await operator.ready()
    await own_world.running()
    await asyncio.to_thread(own_world.api.server.stop_apiserver)
    assert await operator.ended(30) == 1
    assert "lost the lease" in operator.lines()[-1]["message"]
    again = own_world.start_operator()
    await again.logged("the lease .*: ")
    await asyncio.to_thread(own_world.api.server.restart)
    await again.logged("leading as")
    lost = await own_world.pod("rollout-0")
    await own_world.api.delete("Pod", lost)
    await own_world.pods_are(5, without=lost)


async def test_operator_uses_the_rights_that_it_names_and_no_others(world, make_user):
    user = await make_user("operator", _rules(IN_JOB_NAMESPACES | IN_OWN_NAMESPACE))
    operator = world.start_operator(user=user)
    await operator.ready()
    _, peer = await world.running(ttlSecondsAfterFinished=0)
    await world.api.patch("RLTrainingJob", "job", {"spec": {"roles": {"rollout": {"replicas": 3}}}})
    await world.told(lambda: peer.sizes, "resized")
    lost = await world.pod("actor-0")
    await world.api.delete("Pod", lost)
    await world.pods_are(6, without=lost)
    await world.api.patch("RLTrainingJob", "job", {"spec": {"roles": {"rollout": {"replicas": 2}}}})
    await world.pods_are(5)
    word = {"phase": "Complete", "reason": "StepsDone", "step": 8, "totalSteps": 8}
    await world.kubelet.ends(await world.pod("coordinator-0"), 0, word)
    await world.job_gone()
    assert await operator.end() == 0
    account = f"system:serviceaccount:{world.api.namespace}:operator"
    used, denied = set(), []
    for event in _calls(world.api.server.audit(account)):
        reference = event["objectRef"]
        resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
        used.add(Permission(reference.get("apiGroup", ""), resource, event["verb"]))
        if event["responseStatus"]["code"] in (401, 403):
            denied.append(event["requestURI"])
    assert denied == []
    assert used <= IN_JOB_NAMESPACES | IN_OWN_NAMESPACE | OF_EVERYBODY
    touched = {(each.resource, each.verb) for each in used}
    named = {(each.resource, each.verb) for each in IN_JOB_NAMESPACES | IN_OWN_NAMESPACE}
    assert named - touched <= SELDOM


def _rules(permissions: frozenset[Permission]) -> list[dict[str, Any]]:
    return [
        {"apiGroups": [each.group], "resources": [each.resource], "verbs": [each.verb]}
        for each in sorted(permissions)
    ]


def _calls(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Calls to resources; discovery is open to everybody."""
    return (event for event in events if "objectRef" in event and "responseStatus" in event)
