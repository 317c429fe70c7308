"""Which checkpoint a start goes on from."""

from pathlib import Path

import pytest
from tests.unit.small_job import small_job

from trimtab import checkpoint
from trimtab.api import ResolvedJob
from trimtab.roles.coordinator.actors import ActorUnit
from trimtab.roles.coordinator.control import Wishes
from trimtab.roles.coordinator.membership import Members, desired_members
from trimtab.roles.coordinator.saving import CheckpointKeeper
from trimtab.roles.coordinator.status import StatusBoard


def keeper(job: ResolvedJob) -> CheckpointKeeper:
    members = Members(desired_members(job))
    actor = ActorUnit(job, members, None, None, instance="i")  # type: ignore[arg-type] # nothing is sent
    return CheckpointKeeper(job, actor, StatusBoard(job, members, total_steps=1), Wishes())


def save(job: ResolvedJob, step: int) -> None:
    uri, identity = str(Path(job.run_dir) / "checkpoints"), job.training_identity
    path = checkpoint.begin(uri, step, identity=identity, attempt=job.attempt)
    checkpoint.commit(path, step=step, identity=identity, attempt=job.attempt, coordinator_state={})


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_start_that_lost_its_actor_goes_on_from_its_own_checkpoint_below_an_earlier_starts(
    tmp_path: Path, resume: str
) -> None:
    save(small_job(tmp_path, checkpoint={"resume": resume}, attempt=1), 100)
    mine = small_job(tmp_path, checkpoint={"resume": resume}, attempt=2)
    before = keeper(mine).find()
    assert (None if before is None else before.step) == (100 if resume == "auto" else None)
    save(mine, 10)
    found = keeper(mine).find()
    assert found is not None
    assert (found.step, found.manifest.attempt) == (10, 2)


def test_job_that_was_suspended_goes_on_from_its_own_checkpoint_though_it_resumes_nothing(
    tmp_path: Path,
) -> None:
    save(small_job(tmp_path, checkpoint={"resume": "never"}, attempt=1), 100)
    again = small_job(tmp_path, checkpoint={"resume": "never"}, attempt=3, first_attempt=2)
    assert keeper(again).find() is None
    save(small_job(tmp_path, checkpoint={"resume": "never"}, attempt=2), 10)
    found = keeper(again).find()
    assert found is not None
    assert (found.step, found.manifest.attempt) == (10, 2)
