"""The small decisions of the coordinator that are easy to get wrong."""

import asyncio
import time

import pytest

from trimtab.api import ResolvedJob, parse_job
from trimtab.api.conditions import Phase
from trimtab.comm.control import WorkerKey
from trimtab.errors import UserError
from trimtab.roles.coordinator import membership
from trimtab.roles.coordinator.control import JobControl, StopNow, Wishes
from trimtab.roles.coordinator.journal import Journal, Record
from trimtab.roles.coordinator.membership import Desired, Members, Sizes
from trimtab.roles.coordinator.saving import CheckpointKeeper
from trimtab.roles.coordinator.state import TrainingState
from trimtab.roles.coordinator.status import StatusBoard
from trimtab.v1 import control_pb2 as pb
from trimtab.v1 import job_control_pb2 as job_pb

JOB = {
    "apiVersion": "trimtab.dev/v1alpha1",
    "kind": "RLTrainingJob",
    "metadata": {"name": "state"},
    "spec": {
        "model": {"path": "m"},
        "data": {"train": {"path": "x"}, "maxPromptTokens": 8},
        "algorithm": {"grpo": {}},
        "training": {"steps": 4, "maxResponseTokens": 8},
        "rewards": [{"function": "exact_match"}],
        "checkpoint": {"everySteps": 2},
    },
}


@pytest.fixture
def board(tmp_path):
    job = ResolvedJob.resolve(parse_job(JOB), attempt=1, base_dir=tmp_path, run_dir=tmp_path)
    members = Members(Desired(actor_ranks=1, rollouts=1, min_rollouts=1, rewards=1, min_rewards=1))
    return StatusBoard(job, members, total_steps=4), job


def test_record_knows_the_highest_version_that_an_engine_may_have():
    record = Record(1, 1, "", "publishing", {"weight_version": 4}, {"weights/version": 5.0})
    assert record.weight_version == 5
    assert Record(1, 1, "", "idle", {}).weight_version == 0


def test_state_survives_json():
    state = TrainingState(step=3, sampler={"next": 4}, rollout_changes={"temperature": 0.5})
    assert TrainingState.from_json(state.to_json()) == state


def test_checkpoint_before_the_first_step_waits_for_it(board):
    async def scenario() -> None:
        wishes = Wishes()
        keeper = CheckpointKeeper(board[1], None, board[0], wishes)  # type: ignore[arg-type]
        control = JobControl(board[0], wishes, max_response_tokens=8)
        asked = asyncio.create_task(control.checkpoint(job_pb.CheckpointRequest(timeout_s=30)))
        await asyncio.sleep(0)
        assert not keeper.due(0)
        await keeper.save_if_new(TrainingState())
        await asyncio.sleep(0)
        assert not asked.done()
        assert keeper.due(1)
        asked.cancel()

    asyncio.run(scenario())


def test_status_of_an_ended_job_keeps_those_who_were_there(board, monkeypatch):
    status_board, members = board[0], board[0]._members
    keys = [WorkerKey(role, 0, 0, 0, 1) for role in ("actor", "rollout", "reward")]
    for key in keys:
        members.joined(key, pb.Register(worker=key.to_proto(), world_size=1, capacity=1))
    status_board.phase = Phase.COMPLETE
    status_board.keep_members()
    for key in keys:
        members.left(key, "told to leave: the job is complete")
    monkeypatch.setattr(membership, "RECONNECT_GRACE_S", -1.0)
    status = status_board.render()
    assert [(role.role, role.ready, role.desired) for role in status.roles] == [
        ("actor", 1, 1),
        ("rollout", 1, 1),
        ("reward", 1, 1),
    ]
    assert {c.type: c.status for c in status.conditions}["WorkersReady"] == "True"
    assert not status.restart_requests


@pytest.mark.parametrize(
    ("outstanding", "activity"),
    [
        ({}, "generating"),
        ({"reward-0/rank-0": 1, "rollout-1/rank-0": 7}, "generating; rollout-1 has 7, reward-0 has 1"),
        (
            {f"rollout-{n}/rank-0": 9 - n for n in range(5)},
            "generating; rollout-0 has 9, rollout-1 has 8, rollout-2 has 7, 2 more have some",
        ),
    ],
    ids=["nobody", "two workers", "more than are named"],
)
def test_activity_names_those_who_are_waited_for(board, outstanding, activity):
    board[0].activity = "generating"
    board[0].outstanding = lambda: outstanding
    assert board[0].render().activity == activity


def test_stop_is_shown_and_its_grace_ends_what_is_under_way(board):
    async def scenario() -> None:
        wishes = Wishes()
        control = JobControl(board[0], wishes, max_response_tokens=8)
        assert await wishes.within_grace(asyncio.sleep(0, "done")) == "done"
        control.request_stop("SIGTERM", 0.01)
        assert board[0].phase is Phase.STOPPING
        with pytest.raises(StopNow):
            await wishes.within_grace(asyncio.Event().wait())

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"temperature": 0.0}, "above 0"),
        ({"top_p": 1.5}, "at most 1"),
        ({"max_response_tokens": 9}, "1 to 8"),
    ],
    ids=["greedy training", "a share above 1", "longer than the engines were sized for"],
)
def test_rollout_change_out_of_bounds_is_refused(board, change, text):
    control = JobControl(board[0], Wishes(), max_response_tokens=8)
    with pytest.raises(UserError, match=text):
        asyncio.run(control.update_rollout(job_pb.UpdateRolloutRequest(**change)))


def test_leave_of_the_actor_ends_what_is_under_way_once(board):
    async def scenario() -> None:
        wishes = Wishes()
        wishes.leave("SIGTERM: its pod is being ended", 0.01, incarnation=1)
        wishes.leave("said by another rank", 30.0, incarnation=1)
        with pytest.raises(StopNow):
            await wishes.within_grace(asyncio.Event().wait())
        assert wishes.leave_reason == "SIGTERM: its pod is being ended"
        wishes.actor_left()
        assert await wishes.within_grace(asyncio.sleep(0.05, "done")) == "done"

    asyncio.run(scenario())


def test_leave_of_the_next_actor_counts_from_when_it_was_said():
    wishes = Wishes()
    wishes.leave("of one that was killed before it left", 0.0, incarnation=1)
    wishes.leave("of its successor", 30.0, incarnation=2)
    assert (wishes.leave_reason, wishes.leave_incarnation) == ("of its successor", 2)
    assert wishes.leave_deadline > time.monotonic() + 20


def test_resize_reaches_the_coordinator_as_sizes(board):
    async def scenario() -> None:
        taken: list[Sizes] = []
        control = JobControl(board[0], Wishes(), max_response_tokens=8)

        async def take(sizes: Sizes) -> None:
            taken.append(sizes)

        control.take_sizes = take
        request = job_pb.ResizeRequest(
            rollout_replicas=4, min_rollout_replicas=2, reward_replicas=1, min_reward_replicas=1
        )
        await control.resize(request)
        assert taken == [Sizes(rollouts=4, min_rollouts=2, rewards=1, min_rewards=1)]
        board[0].phase = Phase.COMPLETE
        await control.resize(request)  # too late to matter, and no error
        assert len(taken) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "sizes",
    [(0, 0, 1, 1), (2, 3, 1, 1), (1, 1, 2, 0)],
    ids=["no rollout", "more needed than wanted", "no least"],
)
def test_resize_that_makes_no_sense_is_refused(board, sizes):
    control = JobControl(board[0], Wishes(), max_response_tokens=8)
    names = ("rollout_replicas", "min_rollout_replicas", "reward_replicas", "min_reward_replicas")
    with pytest.raises(UserError, match="allowed"):
        asyncio.run(control.resize(job_pb.ResizeRequest(**dict(zip(names, sizes, strict=True)))))


def test_status_has_the_numbers_the_missing_and_the_names_that_are_not_finite(board):
    board[0].metrics = {"kl/actual": float("nan"), "actor/loss": 1.0}
    status = board[0].render()
    assert dict(status.metrics) == {"actor/loss": 1.0}
    assert list(status.not_finite) == ["kl/actual"]
    assert list(status.missing) == ["actor-0 rank 0", "rollout-0", "reward-0"]
    assert [(r.role, r.desired, r.min_desired, r.ready) for r in status.roles] == [
        ("actor", 1, 1, 0),
        ("rollout", 1, 1, 0),
        ("reward", 1, 1, 0),
    ]


def test_sizes_are_kept_for_the_coordinator_that_comes_next_and_for_no_other_attempt(tmp_path):
    journal = Journal(tmp_path)
    assert journal.read_sizes(attempt=1) is None
    journal.write_sizes({"rollouts": 3}, attempt=1)
    assert Journal(tmp_path).read_sizes(attempt=1) == {"rollouts": 3}
    assert Journal(tmp_path).read_sizes(attempt=2) is None
