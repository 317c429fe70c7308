"""Which attempt a checkpoint folder belongs to."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trimtab import checkpoint
from trimtab.checkpoint import StaleAttemptError


def test_last_attempt_of_a_folder_that_nobody_has_used_is_0(tmp_path: Path) -> None:
    assert checkpoint.last_attempt(str(tmp_path / "nowhere")) == 0
    assert checkpoint.last_attempt(str(tmp_path)) == 0


def test_last_attempt_counts_the_fence_and_the_commits(tmp_path: Path) -> None:
    checkpoint.fence(str(tmp_path), 3)
    assert checkpoint.last_attempt(str(tmp_path)) == 3
    path = checkpoint.begin(str(tmp_path), 10, identity="mine", attempt=5)
    checkpoint.commit(path, step=10, identity="mine", attempt=5, coordinator_state={})
    assert checkpoint.last_attempt(str(tmp_path)) == 5
    with pytest.raises(StaleAttemptError):
        checkpoint.fence(str(tmp_path), 4)
    checkpoint.fence(str(tmp_path), checkpoint.last_attempt(str(tmp_path)) + 1)


def test_claims_at_the_same_instant_get_different_numbers(tmp_path: Path) -> None:
    checkpoint.fence(str(tmp_path), 3)
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda _: checkpoint.claim_attempt(str(tmp_path)), range(40)))
    assert sorted(claims) == list(range(4, 44))


def test_claim_is_above_what_the_run_directory_counts_and_above_every_claim(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoints")
    assert checkpoint.claim_attempt(folder) == 1
    assert checkpoint.claim_attempt(folder, above=6) == 7
    assert checkpoint.claim_attempt(folder) == 8
    assert checkpoint.last_attempt(folder) == 8


def test_claim_alone_takes_the_folder_from_nobody(tmp_path: Path) -> None:
    running = checkpoint.claim_attempt(str(tmp_path))
    checkpoint.fence(str(tmp_path), running)
    later = checkpoint.claim_attempt(str(tmp_path))
    path = checkpoint.begin(str(tmp_path), 10, identity="mine", attempt=running)
    checkpoint.commit(path, step=10, identity="mine", attempt=running, coordinator_state={})
    checkpoint.fence(str(tmp_path), later)
    with pytest.raises(StaleAttemptError):
        checkpoint.fence(str(tmp_path), running)
    assert [item.name for item in tmp_path.glob("attempt-*")] == [f"attempt-{later:08d}"]
