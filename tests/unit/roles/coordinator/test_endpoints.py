"""The file that tells Prometheus where the processes of a job serve their gauges."""

import json
from pathlib import Path

from trimtab.comm.control import WorkerKey
from trimtab.roles.coordinator.endpoints import ENDPOINTS_FILE, MetricsEndpoints
from trimtab.roles.coordinator.membership import Desired, Members
from trimtab.v1 import control_pb2 as pb


def rollout(incarnation: int) -> WorkerKey:
    return WorkerKey("rollout", 0, 0, 0, incarnation)


def join(members: Members, worker: WorkerKey, port: int) -> None:
    members.joined(worker, pb.Register(worker=worker.to_proto(), host="10.0.0.7", metrics_port=port))


def test_file_follows_who_is_here_and_ends_with_the_job(tmp_path: Path) -> None:
    def written() -> dict[str, str]:
        groups = json.loads((tmp_path / ENDPOINTS_FILE).read_text())
        return {group["labels"]["worker"]: group["targets"][0] for group in groups}

    members = Members(Desired(actor_ranks=1, rollouts=1, min_rollouts=1, rewards=1, min_rewards=1))
    endpoints = MetricsEndpoints(tmp_path)
    endpoints.follow(members)
    endpoints.add(WorkerKey("coordinator", 0, 0, 0, 1), "127.0.0.1", 4000)
    join(members, rollout(1), 4001)
    join(members, WorkerKey("reward", 0, 0, 0, 1), 0)  # serves none
    both = {"coordinator-0/rank-0": "127.0.0.1:4000", "rollout-0/rank-0": "10.0.0.7:4001"}
    assert written() == both

    join(members, rollout(2), 4002)
    members.left(rollout(1), "its stream broke late")
    assert written() == both | {"rollout-0/rank-0": "10.0.0.7:4002"}
    members.left(rollout(2), "done")
    assert written() == {"coordinator-0/rank-0": "127.0.0.1:4000"}
    join(members, rollout(3), 4003)
    endpoints.close()
    members.left(rollout(3), "the job is complete")
    assert not (tmp_path / ENDPOINTS_FILE).exists()


def test_file_that_cannot_be_written_does_not_stop_a_worker_from_joining(tmp_path: Path) -> None:
    members = Members(Desired(actor_ranks=1, rollouts=1, min_rollouts=1, rewards=1, min_rewards=1))
    MetricsEndpoints(tmp_path / "nowhere").follow(members)
    join(members, rollout(1), 4001)
    assert len(members.of_role("rollout")) == 1
