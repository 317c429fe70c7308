"""The small decisions of the coordinator that are easy to get wrong."""

import asyncio

import pytest

from trimtab.api import ResolvedJob, parse_job
from trimtab.errors import UserError
from trimtab.roles.coordinator.control import JobControl, StopNow, Wishes
from trimtab.roles.coordinator.journal import Record
from trimtab.roles.coordinator.membership import Desired, Members
from trimtab.roles.coordinator.saving import CheckpointKeeper
from trimtab.roles.coordinator.state import TrainingState
from trimtab.roles.coordinator.status import Phase, StatusBoard
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
