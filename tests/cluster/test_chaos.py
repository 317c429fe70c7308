"""Faults of containers, pods, nodes, the API server and the operator: each job ends Complete, and whole."""

import threading

from tests.cluster.jobs import ROLES, Job, Space, paced_job
from tests.cluster.kube import HOST, Kube, Manifest, nodes, until
from tests.cluster.release import Faults, Operator

KILL_RANK = """
import os, pathlib, signal
for entry in pathlib.Path("/proc").iterdir():
    if entry.name.isdigit() and b"trimtab.roles.worker" in (entry / "cmdline").read_bytes():
        os.kill(int(entry.name), signal.SIGKILL)
        break
else:
    raise SystemExit("no rank runs here")
"""


def preferring(job: Manifest, node: str, *roles: str) -> Manifest:
    """The job with these roles' pods on a node as long as it takes pods."""
    term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}
    preferred = [{"weight": 100, "preference": term}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    for role in roles:
        job["spec"]["roles"][role]["podTemplate"] = {"spec": {"affinity": affinity}}
    return job


def node_of(job: Job, role: str) -> str:
    """Where a role's pod runs."""
    return str(job.pods(role)[0]["spec"].get("nodeName", ""))


def test_killed_containers_are_replaced_one_role_after_the_other(space: Space):
    job = space.start(paced_job("killed", steps=24, pause_s=0.15))
    for role in ROLES:
        job.until_step(job.step() + 2)
        space.kube.exec(job.running_pod(role), "python", "-c", KILL_RANK, container="trimtab")
        job.until(lambda role=role: job.restarts(role) >= 1, f"the {role} is started again")
        job.running_pod(role)
    job.is_complete_and_whole(steps=24)


def test_deleted_pods_are_replaced_one_role_after_the_other(space: Space):
    job = space.start(paced_job("deleted", steps=24, pause_s=0.15))
    for role in ROLES:
        job.until_step(job.step() + 2)
        space.kube("delete", "pod", job.running_pod(role), "--wait=false")
        job.until(lambda role=role: job.restarts(role) >= 1, f"the {role} is started again")
        job.running_pod(role)
    job.is_complete_and_whole(steps=24)
    assert job.status()["budget"]["used"] == 0, "a deleted pod is no failure of the job's"


def test_node_that_is_lost_for_good_is_done_without(space: Space, faults: Faults):
    faults.need("TRIMTAB_STOP_NODE", "TRIMTAB_START_NODE")
    stays, victim = nodes()[:2]
    job = space.start(preferring(paced_job("lostnode"), victim, "actor", "rollout"))
    job.until_step(3)
    assert node_of(job, "actor") == victim
    faults.stop_node(victim)
    try:
        job.until(lambda: job.restarts("actor") >= 1, "the actor is started elsewhere")
        job.is_complete_and_whole()
        assert {node_of(job, role) for role in ROLES} == {stays}
        assert job.status()["budget"]["used"] == 0, "a lost node is no failure of the job's"
    finally:
        faults.start_node(victim)


def test_node_that_dies_and_comes_back_is_used_again(space: Space, faults: Faults):
    faults.need("TRIMTAB_STOP_NODE", "TRIMTAB_START_NODE")
    victim = nodes()[1]
    job = space.start(preferring(paced_job("backagain"), victim, "actor", "rollout"))
    job.until_step(3)
    assert node_of(job, "actor") == victim
    faults.stop_node(victim)
    faults.start_node(victim)
    job.until(lambda: job.restarts("actor") >= 1, "the actor is started again")
    job.is_complete_and_whole()


def test_drained_node_gives_its_actor_time_for_a_checkpoint(space: Space):
    stays, drained = nodes()[:2]
    manifest = preferring(paced_job("drained"), drained, "actor", "rollout", "reward")
    manifest["spec"]["checkpoint"]["everySteps"] = 100
    job = space.start(manifest)
    job.until_step(4)
    assert node_of(job, "actor") == drained
    cluster = Kube("")
    try:
        cluster(
            "drain",
            drained,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            f"--pod-selector=trimtab.dev/job-uid={job.uid}",
            "--timeout=120s",
            timeout_s=130,
        )
        job.until(lambda: job.restarts("actor") >= 1, "the actor is started elsewhere")
        job.is_complete_and_whole()
        assert node_of(job, "actor") == stays
    finally:
        cluster("uncordon", drained)
    log = space.kube("logs", job.pods("coordinator")[0]["metadata"]["name"])
    assert "resuming from" in log, "the actor wrote a checkpoint before it left, and went on from there"


def test_restarted_api_server_is_not_noticed(space: Space, faults: Faults):
    faults.need("TRIMTAB_RESTART_API_SERVER")
    job = space.start(paced_job("apiserver"))
    job.until_step(2)
    before = {pod["metadata"]["uid"] for pod in job.pods()}
    faults.restart_api_server()
    job.is_complete_and_whole()
    assert {pod["metadata"]["uid"] for pod in job.pods()} == before


def test_operators_killed_in_the_middle_of_everything(space: Space, operator: Operator):
    """Two operators; the one that leads dies while a job starts, while a pod is replaced, and in between."""
    operator.upgrade(replicas="2")
    try:
        seen: dict[str, set[str]] = {}
        watching = threading.Event()
        job = space.start(paced_job("operators"))
        watcher = threading.Thread(target=_watch_pods, args=(job, seen, watching))
        watcher.start()
        try:
            operator.kill(operator.leader())
            job.until_step(3)
            operator.kill(operator.leader())
            space.kube("delete", "pod", job.running_pod("rollout"), "--wait=false")
            job.until(lambda: operator.leader(), "another operator leads", timeout_s=60)
            operator.kill(operator.leader())
            job.is_complete_and_whole()
        finally:
            watching.set()
            watcher.join(30)
        doubled = {place: uids for place, uids in seen.items() if len(uids) > 1}
        assert not doubled, "pods of one incarnation of one place that were created twice"
    finally:
        operator.upgrade()


def _watch_pods(job: Job, seen: dict[str, set[str]], ended: threading.Event) -> None:
    """Remember the uid of every pod by the place and incarnation that it is for."""
    while not ended.wait(0.5):
        for pod in job.kube.list("pod", f"trimtab.dev/job-uid={job.uid}"):
            seen.setdefault(pod["metadata"]["name"], set()).add(pod["metadata"]["uid"])


def test_used_up_budget_is_the_one_thing_that_fails_a_job(space: Space):
    manifest = paced_job("hopeless")
    manifest["spec"]["failurePolicy"] = {"maxRestarts": 1}
    manifest["spec"]["roles"]["rollout"]["podTemplate"] = {
        "spec": {"containers": [{"name": "trimtab", "command": ["python", "-c", "raise SystemExit(3)"]}]}
    }
    job = space.start(manifest)
    until(lambda: job.condition("Failed")[0] == "True", "Failed", timeout_s=180, explain=job.explain)
    assert job.condition("Failed")[1] == "RestartsExhausted"
    message = next(c["message"] for c in job.status()["conditions"] if c["type"] == "Failed")
    assert "rollout-0" in message
    assert "3" in message
