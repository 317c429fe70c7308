"""Scale, suspend and resume, deletion, TTL and clean-up of running jobs; a job as part of a helm release."""

import json
from pathlib import Path

from tests.cluster.jobs import Job, Space, paced_job
from tests.cluster.kube import owned_by, run, until

CHILDREN = ("pod", "service", "configmap", "secret", "networkpolicy")


def registered(job: Job, role: str) -> int:
    """Workers of a role that are registered, by the status."""
    roles = {entry["name"]: entry for entry in job.status().get("roles", ())}
    return int(roles.get(role, {}).get("ready", 0))


def children(job: Job) -> dict[str, list[str]]:
    """What the job owns, by kind."""
    found = {kind: owned_by(job.kube.list(kind), job.uid) for kind in CHILDREN}
    return {kind: names for kind, names in found.items() if names}


def test_rollout_scaled_up_and_down_while_the_job_runs(space: Space):
    job = space.start(paced_job("scaled", steps=18, pause_s=0.25))
    job.until_step(1)
    before = {pod["metadata"]["uid"] for pod in job.pods()}
    space.kube("scale", "rltj", job.name, "--replicas=2")
    job.until(lambda: registered(job, "rollout") == 2, "two rollouts registered")
    assert job.status()["rolloutReplicas"] == 2
    assert before < {pod["metadata"]["uid"] for pod in job.pods()}, "nothing else was started again"
    assert owned_by(space.kube.list("poddisruptionbudget"), job.uid) == [f"{job.name}-rollout"]
    step = job.step()
    job.until_step(min(step + 3, 15))
    space.kube("scale", "rltj", job.name, "--replicas=1")
    job.until(lambda: len(job.pods("rollout")) == 1, "one rollout is left")
    job.is_complete_and_whole(steps=18)
    assert {pod["metadata"]["uid"] for pod in job.pods()} == before
    ready = {record["step"]: record["rollout/replicas_ready"] for record in job.records("metrics.jsonl")}
    assert 2.0 in ready.values()
    assert all(record["rollout/logprob_diff_mean"] < 1e-3 for record in job.records("metrics.jsonl"))


def test_suspended_job_has_no_pods_and_resumes_from_its_checkpoint(space: Space):
    job = space.start(paced_job("paused"))
    job.until_step(3)
    space.kube.patch("rltj", job.name, {"spec": {"suspend": True}})
    job.until_condition("Suspended")
    job.until(lambda: not job.pods(), "no pods while suspended")
    status = job.status()
    assert status["phase"] == "Suspended"
    at = status["checkpoint"]["step"]
    assert at >= 3, "the stop wrote a checkpoint of its own"
    attempt = status["attempt"]
    space.kube.patch("rltj", job.name, {"spec": {"suspend": False}})
    job.until_condition("Running")
    assert job.status()["attempt"] > attempt
    job.is_complete_and_whole()
    assert job.condition("Suspended")[0] == "False"
    log = space.kube("logs", job.pods("coordinator")[0]["metadata"]["name"])
    assert f"(step {at})" in log.split("resuming from")[1]


def test_finished_job_is_deleted_after_its_ttl_with_everything_it_owned(space: Space):
    manifest = paced_job("shortlived", steps=6, pause_s=0.0)
    manifest["spec"]["ttlSecondsAfterFinished"] = 60
    manifest["spec"]["cleanupPolicy"] = "All"
    job = space.start(manifest)
    job.until_step(1)
    assert set(children(job)) == set(CHILDREN)
    job.until_condition("Complete")
    job.until(lambda: not job.pods(), "clean-up policy All removes finished pods", timeout_s=50)
    until(lambda: space.kube.get("rltj", job.name) is None, "the job is gone", timeout_s=120)
    until(lambda: not children(job), "what it owned is gone", timeout_s=60)
    assert space.kube.get("pvc", "trimtab"), "a claim of the user's own stays"


def test_deleted_job_leaves_nothing_and_its_successor_starts_afresh(space: Space):
    job = space.start(paced_job("deleted"))
    job.until_step(2)
    attempt = job.status()["attempt"]
    space.kube("delete", "rltj", job.name)
    until(lambda: not children(job), "what it owned is gone", timeout_s=90)
    successor = space.start(paced_job("deleted", steps=6, pause_s=0.0))
    successor.is_complete_and_whole(steps=6)
    assert successor.status()["attempt"] > attempt
    assert successor.folder != job.folder


def test_helm_waits_for_a_release_with_a_job_also_once_that_has_finished(space: Space, tmp_path: Path):
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: experiment\nversion: 1.0.0\n")
    (tmp_path / "templates" / "job.yaml").write_text(json.dumps(paced_job("released", steps=6, pause_s=0.0)))
    command = ("helm", "upgrade", "--install", "experiment", str(tmp_path), "-n", space.kube.namespace)
    run(*command, "--wait", "--timeout=60s", timeout_s=90)
    job = Job(space, "released")
    job.is_complete_and_whole(steps=6)
    run(*command, "--wait", "--timeout=60s", timeout_s=90)
    assert job.condition("Complete")[0] == "True"
    run("helm", "uninstall", "experiment", "-n", space.kube.namespace, "--wait", "--timeout=60s")
    until(lambda: not children(job), "what it owned is gone", timeout_s=90)
