"""A whole job as in a cluster: certificates, pods that come and go at other addresses, and how it ends."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from trimtab.cli.main import main
from trimtab.errors import ExitCode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def steps_of(cluster: Any) -> list[int]:
    return [line["step"] for line in cluster.metrics()]


def ready(status: Any, role: str) -> tuple[int, int]:
    """Ready replicas and restarts."""
    return next((r.ready, r.restarts) for r in status.roles if r.role == role)


def test_pods_wait_for_the_coordinator_follow_it_to_another_address_and_end_with_its_final_word(cluster):
    workers = [cluster.start(role) for role in ("actor", "rollout", "reward")]
    stranger = cluster.start("rollout", 1, uid="another-job")
    first = cluster.start("coordinator")
    held = cluster.until_held_up(after_step=1)
    assert held.reason == ""
    first.terminate()
    assert first.wait() == ExitCode.RESTART_REQUESTED
    assert "the next coordinator takes up the journal" in first.env.termination_log.read_text()
    second = cluster.start("coordinator")
    assert second.env.host != first.env.host
    cluster.until(lambda s: s.step == held.step and ready(s, "actor") == (1, 0), what="all are back")
    cluster.open_gate()
    assert second.wait() == ExitCode.OK
    assert [pod.wait() for pod in workers] == [0, 0, 0]
    word = second.final_word
    assert (word["phase"], word["reason"], word["step"], word["totalSteps"]) == (
        "Complete",
        "StepsDone",
        8,
        8,
    )
    assert word["checkpointPath"] == str(cluster.run_dir / "checkpoints" / "step-00000008")
    assert word["metrics"]["critic/score/mean"] == cluster.metrics()[-1]["critic/score/mean"]
    assert steps_of(cluster) == list(range(1, 9))
    # Whoever has another job's certificates never got in, and nobody waited for it.
    assert stranger.process.poll() is None
    assert "Handshake failed" in stranger.log.read_text()
    assert not (cluster.run_dir / "coordinator.address").exists()
    # Another user of the volume's group, as which another role's pod may run, can read and write it all.
    modes = {path: path.stat().st_mode & 0o660 for path in cluster.run_dir.rglob("*")}
    assert [str(path) for path, mode in modes.items() if mode != 0o660] == []


def test_evicted_pods_leave_and_are_replaced_while_the_job_loses_no_step(cluster, monkeypatch, capsys):
    cluster.spec["spec"]["deadlines"]["stopGraceSeconds"] = 3
    cluster.begin()
    coordinator = cluster.start("coordinator")
    actor, rollout, reward = (cluster.start(role) for role in ("actor", "rollout", "reward"))

    held = cluster.until_held_up(after_step=1)
    for pod in (rollout, reward):
        pod.terminate()
        assert pod.wait() == ExitCode.RESTART_REQUESTED
        cluster.start(pod.env.role)
    both_back = "rollout and reward are back"
    cluster.until(lambda s: ready(s, "rollout") == ready(s, "reward") == (1, 1), what=both_back)
    assert cluster.status().step == held.step

    # Its step cannot end: after the grace it falls back to the boundary before, and that is saved.
    actor.terminate()
    assert actor.wait() == ExitCode.RESTART_REQUESTED
    left = cluster.until(lambda s: len(s.restart_requests) == 1, what="the actor is asked for")
    request = left.restart_requests[0]
    assert (request.worker.role, request.worker.incarnation) == ("actor", 1)
    assert "SIGTERM: its pod is being ended" in request.reason
    assert (left.phase, left.step, left.checkpoint_step) == ("Recovering", held.step, held.step)
    actor = cluster.start("actor")
    cluster.open_gate()
    again = cluster.until(lambda s: s.step > held.step, what="steps are taken again")
    assert not again.restart_requests
    assert f"(step {held.step})" in coordinator.log.read_text()

    # The command line inside the coordinator's pod has its certificate; in a worker's pod it may not command.
    monkeypatch.setenv("TRIMTAB_TLS_DIR", str(coordinator.env.tls_dir))
    assert main(["status", str(cluster.run_dir)]) == 0
    assert "e2e: " in capsys.readouterr().out
    monkeypatch.setenv("TRIMTAB_TLS_DIR", str(actor.env.tls_dir))
    assert main(["stop", str(cluster.run_dir)]) != 0
    assert "'worker' may not call JobControl.Stop" in capsys.readouterr().err

    assert coordinator.wait() == ExitCode.OK
    assert actor.wait() == ExitCode.OK
    assert steps_of(cluster) == list(range(1, 9))
    assert all(line["training/num_responses"] == 16 for line in cluster.metrics())
    assert all(line["rollout/logprob_diff_mean"] < 1e-3 for line in cluster.metrics())


def test_drain_of_either_pod_of_an_actor_takes_the_whole_actor_away_with_a_checkpoint(cluster):
    cluster.spec["spec"]["roles"]["actor"]["nodes"] = 2
    cluster.spec["spec"]["deadlines"]["stopGraceSeconds"] = 3
    cluster.begin()
    coordinator, rollout, reward = (cluster.start(role) for role in ("coordinator", "rollout", "reward"))
    actor = [cluster.start("actor", node=node) for node in range(2)]
    step = 0
    for drained in (1, 0):  # 0 is where the ranks meet
        held = cluster.until_held_up(after_step=step + 1)
        step = held.step
        actor[drained].terminate()
        assert [pod.wait() for pod in actor] == [ExitCode.RESTART_REQUESTED] * 2
        left = cluster.until(lambda s: len(s.restart_requests) == 1, what="the actor is asked for")
        assert (left.phase, left.step, left.checkpoint_step) == ("Recovering", step, step)
        record = json.loads((Path(left.checkpoint_path) / "actor" / "actor.json").read_text())
        assert (record["applied_step"], record["world_size"]) == (step, 2)
        assert "SIGTERM" in actor[drained].log.read_text()
        assert "SIGTERM" not in actor[1 - drained].log.read_text()
        actor = [cluster.start("actor", node=node) for node in range(2)]
        cluster.open_gate()
    assert coordinator.wait() == ExitCode.OK
    assert [pod.wait() for pod in (*actor, rollout, reward)] == [0, 0, 0, 0]
    assert steps_of(cluster) == list(range(1, 9))
    assert all(line["training/num_responses"] == 16 for line in cluster.metrics())


def test_job_is_resized_while_it_runs_and_stopped_and_resumed_by_another_attempt(cluster):
    pods = [cluster.start(role) for role in ("coordinator", "actor", "rollout", "reward")]
    early = cluster.start("rollout", 1)  # its pod may be up before the coordinator has heard of it
    cluster.until_held_up(after_step=1)
    cluster.resize(2)
    cluster.until(lambda s: ready(s, "rollout") == (2, 0), what="the second rollout is in")
    cluster.open_gate()
    grown = cluster.until_held_up(after_step=cluster.status().step + 1)
    assert "serving weights version" in early.log.read_text()
    # A coordinator that starts again knows the numbers that the one before was told.
    pods[0].terminate()
    assert pods[0].wait() == ExitCode.RESTART_REQUESTED
    coordinator = cluster.start("coordinator")
    cluster.until(lambda s: ready(s, "rollout") == (2, 0), what="both rollouts are back")
    cluster.resize(1)
    assert early.wait() == ExitCode.OK
    shrunk = cluster.until(lambda s: ready(s, "rollout") == (1, 0), what="one rollout is left")
    assert next((r.desired, r.min_desired) for r in shrunk.roles if r.role == "rollout") == (1, 1)
    assert not shrunk.missing
    assert not shrunk.restart_requests

    cluster.until_held_up(after_step=grown.step)
    with cluster.client() as client:
        client.stop(reason="spec.suspend", grace_s=60)
    cluster.open_gate()
    assert coordinator.wait() == ExitCode.OK
    assert [pod.wait() for pod in pods[1:]] == [0, 0, 0]
    word = coordinator.final_word
    assert (word["phase"], word["reason"]) == ("Stopped", "StopRequested")
    assert word["step"] == word["checkpointStep"] == grown.step + 1
    assert (Path(word["checkpointPath"]) / "manifest.json").exists()

    cluster.attempt = 2
    cluster.begin()
    pods = [cluster.start(role) for role in ("coordinator", "actor", "rollout", "reward")]
    assert [pod.wait(180) for pod in pods] == [0, 0, 0, 0]
    assert pods[0].final_word["phase"] == "Complete"
    assert steps_of(cluster) == list(range(1, 9))


def test_stop_of_a_coordinator_that_took_up_an_applied_update_saves_that_step(cluster):
    pods = [cluster.start(role) for role in ("coordinator", "actor", "rollout", "reward")]
    held = cluster.until_held_up(after_step=1)
    with pods[2].paused():  # the weights of the step that is now taken reach nobody
        cluster.open_gate()
        cluster.until(lambda s: s.activity == "publishing weights", what="the update is applied")
        pods[0].terminate()
        assert pods[0].wait() == ExitCode.RESTART_REQUESTED
        coordinator = cluster.start("coordinator")
        cluster.until(lambda s: s.phase == "Starting", what="the next coordinator listens")
        with cluster.client() as client:
            client.stop(reason="spec.suspend", grace_s=60)
    assert coordinator.wait() == ExitCode.OK
    word = coordinator.final_word
    assert (word["phase"], word["step"], word["checkpointStep"]) == ("Stopped", held.step + 1, held.step + 1)
    cluster.attempt = 2
    cluster.begin()
    pods = [cluster.start(role) for role in ("coordinator", "actor", "rollout", "reward")]
    assert [pod.wait(180) for pod in pods] == [0, 0, 0, 0]
    assert steps_of(cluster) == list(range(1, 9))


def test_mistake_of_the_user_is_the_final_word_of_the_coordinator(cluster):
    cluster.spec["spec"]["rewards"] = [{"function": "gated:no_such_thing"}]
    cluster.begin()
    coordinator = cluster.start("coordinator")
    assert coordinator.wait() == ExitCode.USER_ERROR
    word = coordinator.final_word
    assert (word["phase"], word["reason"], word["checkpointStep"]) == ("Failed", "UserError", -1)
    assert "gated:no_such_thing" in word["message"] or "no 'no_such_thing'" in word["message"]


def test_run_directory_that_cannot_be_made_is_named(cluster):
    cluster.run_dir.parent.write_text("a file is in the way")
    coordinator = cluster.start("coordinator")
    assert coordinator.wait() == ExitCode.USER_ERROR
    assert (
        f"the run directory {cluster.run_dir} cannot be made" in coordinator.env.termination_log.read_text()
    )
    assert os.fspath(cluster.run_dir) in coordinator.log.read_text()


def test_actor_that_is_killed_while_it_is_drained_is_replaced_once(cluster):
    cluster.spec["spec"]["deadlines"]["stopGraceSeconds"] = 3
    cluster.begin()
    coordinator, actor, rollout, reward = (
        cluster.start(role) for role in ("coordinator", "actor", "rollout", "reward")
    )
    cluster.until_held_up(after_step=1)
    actor.terminate()
    cluster.until(lambda s: "is about to go" in coordinator.log.read_text(), what="it has said so")
    actor.end()  # before its grace is over
    successor = cluster.start("actor")
    cluster.open_gate()
    assert [pod.wait() for pod in (coordinator, successor, rollout, reward)] == [0, 0, 0, 0]
    assert steps_of(cluster) == list(range(1, 9))
