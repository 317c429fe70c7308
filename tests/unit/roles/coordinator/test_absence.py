"""A role that nobody plays any more ends the job, at its deadline and not before."""

import asyncio

import pytest

from trimtab.comm.control import WorkerKey
from trimtab.errors import DeadlineError
from trimtab.roles.coordinator import absence
from trimtab.roles.coordinator.absence import watch_absence
from trimtab.roles.coordinator.membership import Desired, Members
from trimtab.v1 import control_pb2 as pb

TIMEOUT_S = 0.3


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Members:
    monkeypatch.setattr(absence, "LOOK_EVERY_S", 0.01)
    made = Members(Desired(actor_ranks=1, rollouts=2, min_rollouts=1, rewards=1, min_rewards=1))
    for role in ("rollout", "reward"):
        key = WorkerKey(role, 0, 0, 0, 1)
        made.joined(key, pb.Register(worker=key.to_proto()))
    return made


async def outcome(members: Members, in_use: asyncio.Event, *, within_s: float) -> DeadlineError | None:
    try:
        async with asyncio.timeout(within_s):
            await watch_absence(members, timeout_s=TIMEOUT_S, in_use=in_use.is_set)
    except DeadlineError as error:
        return error
    except TimeoutError:
        return None


async def test_role_whose_last_worker_does_not_come_back_is_named(members: Members) -> None:
    in_use = asyncio.Event()
    in_use.set()
    assert await outcome(members, in_use, within_s=2 * TIMEOUT_S) is None
    members.left(WorkerKey("rollout", 0, 0, 0, 1), "killed")
    error = await outcome(members, in_use, within_s=20)
    assert error is not None
    assert "no rollout has been here" in str(error)
    assert "rollout-0 (rollout-0/rank-0: killed), rollout-1" in str(error)


async def test_role_that_the_job_does_not_need_yet_may_be_absent(members: Members) -> None:
    members.left(WorkerKey("reward", 0, 0, 0, 1), "killed")
    assert await outcome(members, asyncio.Event(), within_s=3 * TIMEOUT_S) is None
