"""Which backend the coordinator tells the members of a weight group to use. The server records commands."""

import asyncio
from pathlib import Path

import pytest

from trimtab.api import ResolvedJob, parse_job
from trimtab.comm.control import WorkerKey
from trimtab.roles.coordinator.actors import ActorUnit
from trimtab.roles.coordinator.membership import Members, desired_members
from trimtab.roles.coordinator.weights import WeightSync
from trimtab.v1 import control_pb2 as pb


class RecordingServer:
    """Every worker carries out everything at once."""

    def __init__(self) -> None:
        self.joins: list[pb.JoinWeightGroup] = []

    async def call(self, worker: WorkerKey, command: pb.Command, *, timeout_s: float) -> pb.CommandResult:
        if command.WhichOneof("body") == "join_weight_group":
            self.joins.append(command.join_weight_group)
        return pb.CommandResult(key=command.key, ok=True)


def job_with(actor_gpus: int, rollout_gpus: int, folder: Path) -> ResolvedJob:
    spec = {
        "model": {"path": "m"},
        "data": {"train": {"path": "p.jsonl"}, "maxPromptTokens": 16},
        "algorithm": {"grpo": {"groupSize": 4}},
        "training": {"steps": 1, "promptsPerStep": 1, "maxResponseTokens": 16, "maxTokensPerMicroBatch": 64},
        "rewards": [{"function": "length"}],
        "roles": {"actor": {"gpusPerNode": actor_gpus}, "rollout": {"gpusPerNode": rollout_gpus}},
    }
    body = {"apiVersion": "trimtab.dev/v1alpha1", "kind": "RLTrainingJob", "metadata": {"name": "w"}}
    return ResolvedJob.resolve(parse_job({**body, "spec": spec}), attempt=1, base_dir=folder, run_dir=folder)


@pytest.mark.parametrize(
    ("actor_gpus", "rollout_gpus", "backend"),
    [(1, 1, "nccl"), (1, 0, "gloo"), (0, 1, "gloo"), (0, 0, "gloo")],
    ids=["both on GPUs", "rollout on the CPU", "actor on the CPU", "no GPUs"],
)
def test_nccl_is_used_only_where_both_sides_have_gpus(
    actor_gpus: int, rollout_gpus: int, backend: str, tmp_path: Path
) -> None:
    job = job_with(actor_gpus, rollout_gpus, tmp_path)
    members = Members(desired_members(job))
    server = RecordingServer()
    actor = ActorUnit(job, members, server, None, instance="c1")  # type: ignore[arg-type]
    weights = WeightSync(job, members, server, actor, instance="c1", condemn=lambda member, reason: None)  # type: ignore[arg-type]
    weights.version = 1
    for role in ("actor", "rollout"):
        key = WorkerKey(role, 0, 0, 0, 0)
        members.joined(key, pb.Register(worker=key.to_proto(), world_size=1, capacity=1))
    asyncio.run(weights.publish())
    assert [join.backend for join in server.joins] == [backend, backend]
