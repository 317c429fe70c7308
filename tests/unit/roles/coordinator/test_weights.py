"""WeightSync: who is told what, in which order, and what becomes of a group. The workers are scripted."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.api import ResolvedJob, parse_job
from trimtab.comm.control import CommandError, WorkerKey
from trimtab.errors import DeadlineError, TrimtabError, WorkerLostError
from trimtab.roles.coordinator.actors import ActorLostError, ActorUnit
from trimtab.roles.coordinator.membership import Desired, Member, Members
from trimtab.roles.coordinator.weights import WeightSync
from trimtab.v1 import control_pb2 as pb

JOIN, TRANSFER, LEAVE = "join_weight_group", "transfer_weights", "leave_weight_group"
Behaviour = Callable[[pb.Command], Awaitable[pb.CommandResult]]


class Workers:
    """Carries out everything at once, but for what a test scripts by worker and kind of command."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        """Worker and kind of each command, in order."""
        self.commands: list[tuple[str, pb.Command]] = []
        self.scripts: dict[tuple[str, str], Behaviour] = {}

    async def call(self, worker: WorkerKey, command: pb.Command, *, timeout_s: float) -> pb.CommandResult:
        name, kind = f"{worker.role}-{worker.replica}.{worker.rank}", command.WhichOneof("body") or ""
        self.sent.append((name, kind))
        self.commands.append((name, command))
        script = self.scripts.get((name, kind))
        if script is not None:
            return await script(command)
        return pb.CommandResult(key=command.key, ok=True, metrics={"bytes": 100.0})

    def of(self, kind: str) -> list[tuple[str, Any]]:
        """The bodies of one kind, with whom they went to."""
        return [(name, getattr(c, kind)) for name, c in self.commands if c.WhichOneof("body") == kind]


def resolved_job(folder: Path, **roles: Any) -> ResolvedJob:
    spec = {
        "model": {"path": "m"},
        "data": {"train": {"path": "p.jsonl"}, "maxPromptTokens": 16},
        "algorithm": {"grpo": {"groupSize": 4}},
        "training": {"steps": 1, "promptsPerStep": 1, "maxResponseTokens": 16, "maxTokensPerMicroBatch": 64},
        "rewards": [{"function": "length"}],
        "roles": roles,
    }
    body = {"apiVersion": "trimtab.dev/v1alpha1", "kind": "RLTrainingJob", "metadata": {"name": "w"}}
    return ResolvedJob.resolve(parse_job({**body, "spec": spec}), attempt=1, base_dir=folder, run_dir=folder)


class Scene:
    """A WeightSync with an actor of two ranks; rollouts join as the test says."""

    def __init__(self, folder: Path, **roles: Any) -> None:
        job = resolved_job(folder, **roles)
        self.members = Members(Desired(actor_ranks=2, rollouts=8, min_rollouts=1, rewards=1, min_rewards=1))
        self.workers = Workers()
        self.condemned: list[tuple[str, str]] = []
        server: Any = self.workers
        hub: Any = None
        actor = ActorUnit(job, self.members, server, hub, instance="c1")
        self.weights = WeightSync(job, self.members, server, actor, instance="c1", condemn=self.condemn)
        self.weights.version = 1
        for rank in range(2):
            key = WorkerKey("actor", 0, 0, rank, 1)
            self.members.joined(key, pb.Register(worker=key.to_proto(), world_size=2, host="10.0.0.1"))

    def condemn(self, member: Member, reason: str) -> None:
        self.condemned.append((member.place, reason))
        self.members.left(member.key, reason)

    def join(self, replica: int, *, places: int = 1, version: int = 0) -> WorkerKey:
        key = WorkerKey("rollout", replica, 0, 0, 1)
        register = pb.Register(worker=key.to_proto(), world_size=places, capacity=1, weight_version=version)
        self.members.joined(key, register)
        return key

    def versions(self) -> dict[int, int]:
        return {m.key.replica: m.weight_version for m in self.members.of_role("rollout")}

    def publish(self) -> dict[str, float]:
        return asyncio.run(self.weights.publish())

    def lose(self, key: WorkerKey) -> Behaviour:
        """The worker's stream breaks at this command."""

        async def broken(command: pb.Command) -> pb.CommandResult:
            self.members.left(key, "killed")
            raise WorkerLostError(f"{key} was lost during {command.key}: killed")

        return broken


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_all_join_before_anybody_transfers_and_are_stamped_with_the_version(scene: Scene) -> None:
    scene.join(0)
    scene.join(1, places=2)
    metrics = scene.publish()
    assert scene.workers.sent == [
        ("actor-0.0", JOIN),
        ("rollout-0.0", JOIN),
        ("rollout-1.0", JOIN),
        ("actor-0.0", TRANSFER),
        ("actor-0.1", TRANSFER),  # not in the group: it takes part in gathering
        ("rollout-0.0", TRANSFER),
        ("rollout-1.0", TRANSFER),
    ]
    places = [(name, body.first_rank, body.world_size) for name, body in scene.workers.of(JOIN)]
    assert places == [("actor-0.0", 0, 4), ("rollout-0.0", 1, 4), ("rollout-1.0", 2, 4)]
    assert {body.version for _, body in scene.workers.of(TRANSFER)} == {1}
    assert scene.versions() == {0: 1, 1: 1}
    assert sorted(metrics) == ["weights/bytes_per_s", "weights/sync_s"]


def test_group_is_kept_for_as_long_as_its_members_are(scene: Scene) -> None:
    scene.join(0)
    scene.publish()
    assert scene.publish() == {}  # all are up to date
    scene.weights.version = 2
    scene.publish()
    assert len(scene.workers.of(JOIN)) == 2
    assert scene.workers.of(LEAVE) == []
    sent = [(body.group, body.version) for name, body in scene.workers.of(TRANSFER) if name == "rollout-0.0"]
    assert sent == [("weights-c1-1", 1), ("weights-c1-1", 2)]
    assert scene.versions() == {0: 2}


def test_engine_that_joins_late_is_brought_up_to_date_alone(scene: Scene) -> None:
    scene.join(0)
    scene.publish()
    scene.join(1)
    assert [m.key.replica for m in scene.weights.late()] == [1]
    before = len(scene.workers.sent)
    scene.publish()
    assert scene.workers.sent[before:] == [
        ("actor-0.0", LEAVE),
        ("rollout-0.0", LEAVE),
        ("actor-0.0", JOIN),
        ("rollout-1.0", JOIN),
        ("actor-0.0", TRANSFER),
        ("actor-0.1", TRANSFER),
        ("rollout-1.0", TRANSFER),
    ]
    assert scene.versions() == {0: 1, 1: 1}
    scene.weights.version = 2
    scene.publish()
    assert scene.workers.of(JOIN)[-1][1].group == "weights-c1-3"  # all of them again
    assert scene.versions() == {0: 2, 1: 2}


def test_engine_lost_before_it_has_joined_ends_the_others_wait_at_once(scene: Scene) -> None:
    lost = scene.join(0)
    scene.join(1)
    told = asyncio.Event()

    async def waits_for_all(command: pb.Command) -> pb.CommandResult:
        if command.join_weight_group.group == "weights-c1-1":
            await told.wait()
            raise CommandError("actor-0/rank-0", "timeout", "rank 0 waited for rank 1 of 3")
        return pb.CommandResult(key=command.key, ok=True)

    async def leaves(command: pb.Command) -> pb.CommandResult:
        told.set()
        return pb.CommandResult(key=command.key, ok=True)

    scene.workers.scripts = {
        ("rollout-0.0", JOIN): scene.lose(lost),
        ("actor-0.0", JOIN): waits_for_all,
        ("rollout-1.0", JOIN): waits_for_all,
        ("actor-0.0", LEAVE): leaves,
    }
    asyncio.run(asyncio.wait_for(scene.weights.publish(), 60))
    assert [(name, body.group) for name, body in scene.workers.of(LEAVE)] == [
        ("actor-0.0", "weights-c1-1"),
        ("rollout-1.0", "weights-c1-1"),
    ]
    second = [name for name, body in scene.workers.of(JOIN) if body.group == "weights-c1-2"]
    assert second == ["actor-0.0", "rollout-1.0"]
    assert scene.versions() == {1: 1}
    assert scene.condemned == []


@pytest.mark.parametrize("kind", [JOIN, TRANSFER])
def test_engines_lost_one_after_another_do_not_use_up_the_tries(scene: Scene, kind: str) -> None:
    groups_with_a_loss: set[str] = set()

    def one_of_each_group_is_lost(key: WorkerKey) -> Behaviour:
        async def behaves(command: pb.Command) -> pb.CommandResult:
            group = getattr(command, kind).group
            if group in groups_with_a_loss or len(scene.versions()) == 1:
                return pb.CommandResult(key=command.key, ok=True)
            groups_with_a_loss.add(group)
            return await scene.lose(key)(command)

        return behaves

    for replica in range(6):
        script = one_of_each_group_is_lost(scene.join(replica))
        scene.workers.scripts[(f"rollout-{replica}.0", kind)] = script
    scene.publish()
    assert scene.versions() == {5: 1}
    assert len(groups_with_a_loss) == 5


def test_engine_that_does_not_answer_is_started_again_and_left_out(scene: Scene) -> None:
    scene.join(0)
    scene.join(1)

    async def silent(command: pb.Command) -> pb.CommandResult:
        raise DeadlineError("rollout-1/rank-0 did not finish transfer_weights within 310 s")

    scene.workers.scripts[("rollout-1.0", TRANSFER)] = silent
    scene.publish()
    assert scene.condemned == [("rollout-1", "rollout-1/rank-0 did not finish transfer_weights within 310 s")]
    assert scene.versions() == {0: 1}


def test_engine_that_fails_twice_by_itself_is_started_again(scene: Scene) -> None:
    scene.join(0)
    scene.join(1)

    async def fails(command: pb.Command) -> pb.CommandResult:
        raise CommandError("rollout-1/rank-0", "internal", "loading failed")

    async def told(command: pb.Command) -> pb.CommandResult:
        raise CommandError("rollout-0/rank-0", "timeout", "a member was lost")

    scene.workers.scripts[("rollout-1.0", TRANSFER)] = fails
    scene.workers.scripts[("rollout-0.0", TRANSFER)] = told

    def condemn(member: Member, reason: str) -> None:
        scene.condemn(member, reason)
        scene.workers.scripts.clear()

    scene.weights._condemn = condemn
    scene.publish()
    assert scene.condemned == [("rollout-1", "rollout-1/rank-0: loading failed")]
    assert scene.versions() == {0: 1}


def test_tries_that_all_fail_end_with_the_version_that_reached_nobody(scene: Scene) -> None:
    scene.join(0)

    async def fails(command: pb.Command) -> pb.CommandResult:
        raise CommandError("actor-0/rank-0", "timeout", "no store at 10.0.0.1:0")

    scene.workers.scripts[("actor-0.0", JOIN)] = fails
    with pytest.raises(TrimtabError, match="version 1 reached no group of rollouts in 3 tries"):
        scene.publish()
    assert scene.versions() == {0: 0}


def test_loss_of_the_actor_is_not_taken_for_a_rollouts(scene: Scene) -> None:
    scene.join(0)
    scene.workers.scripts[("actor-0.1", TRANSFER)] = scene.lose(WorkerKey("actor", 0, 0, 1, 1))
    with pytest.raises(ActorLostError, match="missing actor-0 rank 1"):
        scene.publish()


@pytest.mark.parametrize(
    ("actor_gpus", "rollout_gpus", "backend"),
    [(1, 1, "nccl"), (1, 0, "gloo"), (0, 1, "gloo"), (0, 0, "gloo")],
    ids=["both on GPUs", "rollout on the CPU", "actor on the CPU", "no GPUs"],
)
def test_nccl_is_used_only_where_both_sides_have_gpus(
    actor_gpus: int, rollout_gpus: int, backend: str, tmp_path: Path
) -> None:
    roles = {"actor": {"gpusPerNode": actor_gpus}, "rollout": {"gpusPerNode": rollout_gpus}}
    scene = Scene(tmp_path, **roles)
    scene.join(0)
    scene.publish()
    assert [body.backend for _, body in scene.workers.of(JOIN)] == [backend, backend]
