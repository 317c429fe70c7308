"""Members: who counts as present, who is refused, what is to be started again."""

import asyncio

import pytest

from trimtab.comm.control import WorkerKey
from trimtab.errors import DeadlineError
from trimtab.roles.coordinator import membership
from trimtab.roles.coordinator.membership import Desired, Members, Sizes
from trimtab.v1 import control_pb2 as pb


def key(role: str, replica: int = 0, rank: int = 0, incarnation: int = 0) -> WorkerKey:
    return WorkerKey(role, replica, 0, rank, incarnation)


def register(worker: WorkerKey, world_size: int = 1, weight_version: int = 0) -> pb.Register:
    return pb.Register(
        worker=worker.to_proto(), world_size=world_size, weight_version=weight_version, capacity=4
    )


@pytest.fixture
def members() -> Members:
    return Members(Desired(actor_ranks=2, rollouts=2, min_rollouts=1, rewards=1, min_rewards=1))


def join(members: Members, worker: WorkerKey, world_size: int = 1) -> None:
    members.joined(worker, register(worker, world_size))


def test_actor_counts_only_when_all_ranks_of_one_incarnation_are_here(members):
    join(members, key("actor", rank=0), 2)
    assert members.actor_ranks() == []
    join(members, key("actor", rank=1, incarnation=1), 2)
    assert members.actor_ranks() == []  # rank 0 is of an older start
    join(members, key("actor", rank=0, incarnation=1), 2)
    assert [m.key.rank for m in members.actor_ranks()] == [0, 1]


@pytest.mark.parametrize(
    ("worker", "world_size", "text"),
    [
        (key("critic"), 1, "role 'critic' is not part of this job"),
        (key("rollout", replica=2), 1, "replica 2 is beyond the job's 2"),
        (key("actor"), 3, "world size 3; the job's actor has 2 ranks"),
    ],
    ids=["a role that the job lacks", "a replica too many", "another world size"],
)
def test_admit_refuses_with_what_would_be_right(members, worker, world_size, text):
    denied = members.admit(register(worker, world_size))
    assert text in denied.message
    assert denied.final != (worker.role == "rollout")  # that replica may be wanted in a moment


def test_admit_refuses_an_incarnation_older_than_one_that_was_here(members):
    join(members, key("rollout", incarnation=3))
    denied = members.admit(register(key("rollout", incarnation=2)))
    assert denied.final
    assert "incarnation 2 of rollout-0 is older than 3" in denied.message


def test_losing_a_rank_is_told_at_once_and_asked_for_only_after_the_grace(members, monkeypatch):
    join(members, key("actor"), 2)
    members.left(key("actor"), "its stream broke")
    assert members.actor_lost.is_set()
    assert members.restart_requests() == []
    monkeypatch.setattr(membership, "RECONNECT_GRACE_S", -1.0)
    assert [(r.role, r.incarnation) for r in members.restart_requests()] == [("actor", 0)]
    join(members, key("actor", incarnation=1), 2)
    assert members.restart_requests() == []
    assert members.num_restarts["actor"] == 1


def test_condemned_worker_is_asked_for_until_a_newer_incarnation_joins(members):
    join(members, key("rollout"))
    members.condemn(key("rollout"), "hangs")
    join(members, key("rollout"))  # it reconnects: that cures nothing
    assert [r.reason for r in members.restart_requests()] == ["rollout-0/rank-0: hangs"]
    join(members, key("rollout", incarnation=1))
    assert members.restart_requests() == []


async def _wait(members: Members, role: str, timeout_s: float) -> None:
    await members.wait_for_role(role, timeout_s=timeout_s)


def test_wait_names_who_is_missing_and_why_it_left(members):
    join(members, key("rollout"))
    members.left(key("rollout"), "its heartbeats stopped")
    with pytest.raises(
        DeadlineError, match=r"missing rollout-0 \(rollout-0/rank-0: its heartbeats stopped\), rollout-1"
    ):
        asyncio.run(_wait(members, "rollout", 0.01))


def test_wait_returns_as_soon_as_enough_are_here(members):
    async def scenario() -> None:
        members.resize(Sizes(rollouts=2, min_rollouts=2, rewards=1, min_rewards=1))
        waiting = asyncio.create_task(_wait(members, "rollout", 30.0))
        await asyncio.sleep(0)
        join(members, key("rollout"))
        join(members, key("rollout", replica=1))
        await asyncio.wait_for(waiting, 5.0)

    asyncio.run(scenario())


def test_wait_follows_a_resize_that_needs_fewer(members):
    async def scenario() -> None:
        members.resize(Sizes(rollouts=2, min_rollouts=2, rewards=1, min_rewards=1))
        join(members, key("rollout"))
        waiting = asyncio.create_task(_wait(members, "rollout", 30.0))
        await asyncio.sleep(0)
        members.resize(Sizes(rollouts=2, min_rollouts=1, rewards=1, min_rewards=1))
        await asyncio.wait_for(waiting, 5.0)

    asyncio.run(scenario())


def test_shrinking_counts_out_the_highest_replicas_and_asks_for_none_of_them_again(members, monkeypatch):
    left = []
    members.on_leave.append(lambda member, reason: left.append((member.key.replica, reason)))
    for replica in (0, 1):
        join(members, key("rollout", replica=replica))
    members.condemn(key("rollout", replica=1), "hangs")
    assert members.resize(Sizes(rollouts=1, min_rollouts=1, rewards=1, min_rewards=1)) == [key("rollout", 1)]
    assert left == [(1, "the job has fewer replicas now")]
    monkeypatch.setattr(membership, "RECONNECT_GRACE_S", -1.0)
    assert members.restart_requests() == []
    assert members.missing("rollout") == []
    assert not members.admit(register(key("rollout", replica=1))).final


def test_growing_misses_the_new_replicas_and_admits_them(members):
    members.resize(Sizes(rollouts=3, min_rollouts=1, rewards=2, min_rewards=1))
    assert members.missing("rollout") == ["rollout-0", "rollout-1", "rollout-2"]
    assert members.admit(register(key("rollout", replica=2))) is None
    assert members.admit(register(key("reward", replica=1))) is None
    assert members.desired.actor_ranks == 2
