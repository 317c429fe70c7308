"""Operators that end, are killed, stand by, run twice or lose the API server: nothing is lost or doubled."""

import asyncio
import signal
import time

from ruamel.yaml import YAML
from tests.apiserver.chart import CHART
from tests.apiserver.operator.stage import together

CRD_FILE = CHART / "files" / "crd.yaml"


@together(alone=True)
async def test_second_operator_stands_by_and_takes_over_at_once_from_one_that_ends(world):
    operator = world.start_operator()
    await operator.logged("leading as")
    await world.running()
    second = world.start_operator()
    await second.logged("standing by: .* leads")
    assert (await second.get("/readyz"))[0] == 200
    assert await second.metric("trimtab_operator_leading") == 0
    begun = time.monotonic()
    assert await operator.end() == 0
    assert time.monotonic() - begun < 30
    assert operator.lines()[-1]["message"] == "stopped on request"
    await second.logged("leading as")
    lost = await world.pod("rollout-1")
    await world.api.delete("Pod", lost)
    await world.pods_are(5, without=lost)
    assert await second.end() == 0


@together(alone=True)
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


@together(alone=True)
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


@together(alone=True)
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


@together(alone=True)
async def test_operator_without_its_lease_ends_with_an_error(world):
    operator = world.start_operator()
    await operator.logged("leading as")
    await world.api.patch("Lease", "trimtab-operator", {"spec": {"holderIdentity": "somebody"}})
    assert await operator.ended(60) == 1
    assert "somebody took the lease" in operator.lines()[-1]["message"]


@together(own=True)
async def test_crd_is_waited_for_and_a_restart_of_the_api_server_loses_nothing(world):
    operator = world.start_operator(everywhere=True)
    await operator.logged("waiting for the CRD")
    assert (await operator.get("/readyz"))[0] == 503
    await world.api.install_crd(YAML(typ="safe", pure=True).load(CRD_FILE))
    await operator.ready()
    await world.running()
    await asyncio.to_thread(world.api.server.restart)
    if operator.process.poll() is not None:  # it took longer than the lease holds, and a pod is started again
        assert operator.process.returncode == 1
        operator = world.start_operator(everywhere=True)
    await world.running("later")
    lost = await world.pod("rollout-0")
    await world.api.delete("Pod", lost)
    await world.pods_are(5, without=lost)
    assert await operator.end() == 0


@together(own=True)
async def test_api_server_that_stays_away_ends_the_operator_and_another_one_goes_on(world):
    await world.api.install_crd(YAML(typ="safe", pure=True).load(CRD_FILE))
    operator = world.start_operator()
    await operator.ready()
    await world.running()
    await asyncio.to_thread(world.api.server.stop_apiserver)
    assert await operator.ended(90) == 1
    assert "lost the lease" in operator.lines()[-1]["message"]
    again = world.start_operator()
    await again.logged("the lease .*: ")
    await asyncio.to_thread(world.api.server.restart)
    await again.logged("leading as")
    lost = await world.pod("rollout-0")
    await world.api.delete("Pod", lost)
    await world.pods_are(5, without=lost)
