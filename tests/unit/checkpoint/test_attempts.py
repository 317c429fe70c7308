"""Which attempt a checkpoint folder belongs to."""

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
    path = checkpoint.begin(str(tmp_path), 10, identity="mine")
    checkpoint.commit(path, step=10, identity="mine", attempt=5, coordinator_state={})
    assert checkpoint.last_attempt(str(tmp_path)) == 5
    with pytest.raises(StaleAttemptError):
        checkpoint.fence(str(tmp_path), 4)
    checkpoint.fence(str(tmp_path), checkpoint.last_attempt(str(tmp_path)) + 1)
