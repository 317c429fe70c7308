import errno
import json
import os
from pathlib import Path

import pytest

from trimtab import checkpoint
from trimtab.checkpoint import CheckpointStorageError, StaleAttemptError
from trimtab.errors import UserError


def save(root: Path, step: int, *, identity: str = "mine", attempt: int = 1) -> Path:
    path = checkpoint.begin(str(root), step, identity=identity, attempt=attempt)
    (path / "actor" / "shard.distcp").write_bytes(b"x" * 2_000_000)
    (path / "actor" / "actor.json").write_text(json.dumps({"world_size": 2}))
    state = {"step": step}
    checkpoint.commit(path, step=step, identity=identity, attempt=attempt, coordinator_state=state)
    return path


def test_latest_valid_newest_committed_is_returned_with_its_state(tmp_path: Path) -> None:
    save(tmp_path, 5)
    path = save(tmp_path, 10)
    found, refused = checkpoint.latest_valid(str(tmp_path), "mine")
    assert found is not None
    assert (found.path, found.step, found.actor_path, refused) == (path, 10, path / "actor", [])
    assert found.coordinator_state() == {"step": 10}
    assert found.manifest.world_size == 2
    assert path.name == "step-00000010"


def test_begin_never_removes_a_checkpoint_of_another_training(tmp_path: Path) -> None:
    path = save(tmp_path, 10, identity="theirs")
    with pytest.raises(UserError, match=r"belongs to training theirs, this job is mine"):
        checkpoint.begin(str(tmp_path), 10, identity="mine", attempt=1)
    assert (path / "manifest.json").exists()


def test_latest_valid_without_directory_is_none(tmp_path: Path) -> None:
    assert checkpoint.latest_valid(str(tmp_path / "nowhere"), "mine") == (None, [])


def test_latest_valid_save_cut_off_before_the_manifest_takes_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, 5)
    cut_off = checkpoint.begin(str(tmp_path), 10, identity="mine", attempt=1)
    found, refused = checkpoint.latest_valid(str(tmp_path), "mine")
    assert found is not None
    assert found.step == 5
    assert refused == [f"{cut_off}: it has no manifest (its save was cut off)"]


def truncate(path: Path) -> None:
    os.truncate(path / "actor" / "shard.distcp", 1_000_000)


def spoil_state(path: Path) -> None:
    (path / "coordinator.json").write_text('{"step": 107}')


def spoil_state_same_size(path: Path) -> None:
    text = (path / "coordinator.json").read_text()
    (path / "coordinator.json").write_text(text.replace("10", "11"))


def remove_shard(path: Path) -> None:
    (path / "actor" / "shard.distcp").unlink()


def spoil_manifest(path: Path) -> None:
    (path / "manifest.json").write_text("{")


def other_version(path: Path) -> None:
    (path / "manifest.json").write_text('{"format_version": 99}')


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "actor/shard.distcp has 1000000 bytes, the manifest says 2000000"),
        (spoil_state, "coordinator.json has 13 bytes"),
        (spoil_state_same_size, "coordinator.json has other contents"),
        (remove_shard, "actor/shard.distcp is missing"),
        (spoil_manifest, "its manifest is not readable JSON"),
        (other_version, "its format is version 99"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_latest_valid_damaged_is_refused_by_name(tmp_path: Path, damage: object, reason: str) -> None:
    assert callable(damage)
    save(tmp_path, 5)
    path = save(tmp_path, 10)
    damage(path)
    found, refused = checkpoint.latest_valid(str(tmp_path), "mine")
    assert found is not None
    assert found.step == 5
    assert len(refused) == 1
    assert refused[0].startswith(f"{path}: ")
    assert reason in refused[0]


def test_latest_valid_of_another_training_is_refused_by_name(tmp_path: Path) -> None:
    path = save(tmp_path, 5, identity="theirs")
    found, refused = checkpoint.latest_valid(str(tmp_path), "mine")
    assert found is None
    assert refused == [f"{path}: it belongs to training theirs, this job is mine"]


def test_latest_valid_of_a_later_attempt_is_newer_whatever_its_step(tmp_path: Path) -> None:
    """As after a start that resumed nothing; `prune` goes by the same order."""
    earlier, later = save(tmp_path, 100), save(tmp_path, 10, attempt=2)
    found, refused = checkpoint.latest_valid(str(tmp_path), "mine")
    assert found is not None
    assert (found.path, refused) == (later, [])
    (later / "coordinator.json").unlink()
    before, _ = checkpoint.latest_valid(str(tmp_path), "mine")
    assert before is not None
    assert before.path == earlier
    nothing, refused = checkpoint.latest_valid(str(tmp_path), "mine", since=2)
    assert (nothing, len(refused)) == (None, 1)


def test_save_of_an_earlier_attempt_leaves_what_a_later_one_has_saved(tmp_path: Path) -> None:
    begun = checkpoint.begin(str(tmp_path), 10, identity="mine", attempt=1)
    kept = save(tmp_path, 10, attempt=2)
    assert begun == kept
    with pytest.raises(StaleAttemptError):
        checkpoint.commit(begun, step=10, identity="mine", attempt=1, coordinator_state={})
    with pytest.raises(StaleAttemptError, match="belongs to attempt 2 of this job; attempt 1"):
        checkpoint.begin(str(tmp_path), 10, identity="mine", attempt=1)
    found, refused = checkpoint.latest_valid(str(tmp_path), "mine")
    assert found is not None
    assert (found.path, found.manifest.attempt, refused) == (kept, 2, [])


def test_prune_keeps_the_newest_and_leaves_the_uncommitted(tmp_path: Path) -> None:
    paths = [save(tmp_path, step) for step in (1, 2, 3, 4)]
    running = checkpoint.begin(str(tmp_path), 5, identity="mine", attempt=1)
    assert checkpoint.prune(str(tmp_path), 2, identity="mine", committed=paths[3]) == paths[:2]
    assert checkpoint.list_checkpoints(str(tmp_path)) == paths[2:]
    assert running.is_dir()


def test_prune_other_trainings_in_the_folder_are_neither_counted_nor_touched(tmp_path: Path) -> None:
    foreign = [save(tmp_path, step, identity="theirs") for step in (1, 60, 100)]
    old, new = save(tmp_path, 2), save(tmp_path, 4)
    assert checkpoint.prune(str(tmp_path), 1, identity="mine", committed=new) == [old]
    assert checkpoint.list_checkpoints(str(tmp_path)) == [foreign[0], new, *foreign[1:]]
    assert checkpoint.prune(str(tmp_path), 1, identity="mine", committed=new) == []


def test_prune_unreadable_manifest_is_left_alone(tmp_path: Path) -> None:
    damaged, new = save(tmp_path, 1), save(tmp_path, 2)
    (damaged / "manifest.json").write_text("{")
    assert checkpoint.prune(str(tmp_path), 1, identity="mine", committed=new) == []
    assert damaged.is_dir()


def test_prune_spares_the_one_just_committed_whatever_has_a_higher_number(tmp_path: Path) -> None:
    """As after a damaged newest checkpoint, or after a start that resumed nothing."""
    earlier, earlier_higher = save(tmp_path, 60), save(tmp_path, 100)
    higher = save(tmp_path, 50, attempt=2)
    new = save(tmp_path, 2, attempt=2)
    assert checkpoint.prune(str(tmp_path), 2, identity="mine", committed=new) == [earlier, earlier_higher]
    assert checkpoint.list_checkpoints(str(tmp_path)) == [new, higher]
    assert checkpoint.prune(str(tmp_path), 1, identity="mine", committed=new) == [higher]
    assert checkpoint.list_checkpoints(str(tmp_path)) == [new]


def test_prune_interrupted_leaves_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = save(tmp_path, 1), save(tmp_path, 2)

    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trimtab.checkpoint.store.shutil.rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.prune(str(tmp_path), 1, identity="mine", committed=new)
    assert old.is_dir()
    assert checkpoint.list_checkpoints(str(tmp_path)) == [new]


def test_prune_none_to_keep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"checkpoint\.keep: 0"):
        checkpoint.prune(str(tmp_path), 0, identity="mine", committed=tmp_path / "step-00000001")


def test_begin_same_step_again_starts_clean(tmp_path: Path) -> None:
    save(tmp_path, 5)
    path = checkpoint.begin(str(tmp_path), 5, identity="mine", attempt=1)
    assert list(path.iterdir()) == [path / "actor"]
    assert not any((path / "actor").iterdir())


def test_commit_of_an_older_attempt_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    checkpoint.fence(str(tmp_path), 1)
    path = checkpoint.begin(str(tmp_path), 5, identity="mine", attempt=1)
    checkpoint.fence(str(tmp_path), 2)  # the job was started again meanwhile
    with pytest.raises(StaleAttemptError, match="belongs to attempt 2 of this job; attempt 1"):
        checkpoint.commit(path, step=5, identity="mine", attempt=1, coordinator_state={})
    assert not path.exists()
    with pytest.raises(StaleAttemptError):
        checkpoint.fence(str(tmp_path), 1)


def test_commit_older_than_a_checkpoint_there_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 5, attempt=3)
    with pytest.raises(StaleAttemptError):
        save(tmp_path, 6, attempt=2)


def test_commit_full_disk_says_so_and_leaves_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 5)
    path = checkpoint.begin(str(tmp_path), 10, identity="mine", attempt=1)

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("trimtab.checkpoint.manifest.os.fsync", no_space)
        with pytest.raises(
            CheckpointStorageError, match=r"checkpoint\.uri: cannot write .*step-00000010.*full"
        ):
            checkpoint.commit(path, step=10, identity="mine", attempt=1, coordinator_state={})
    found, refused = checkpoint.latest_valid(str(tmp_path), "mine")
    assert found is not None
    assert (found.step, refused) == (5, [])


def test_directory_of_object_store_names_what_is_allowed() -> None:
    with pytest.raises(UserError, match=r"checkpoint\.uri: 's3://bucket/run' has the scheme 's3'"):
        checkpoint.directory_of("s3://bucket/run")
    assert checkpoint.directory_of("file:///runs/a") == Path("/runs/a")
