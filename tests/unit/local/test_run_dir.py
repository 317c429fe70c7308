from pathlib import Path

import pytest

from trimtab.errors import UserError
from trimtab.local.run_dir import RunDirectory, coordinator_address


def test_run_directory_counts_attempts(tmp_path: Path) -> None:
    for attempt in (1, 2):
        with RunDirectory(tmp_path / "run") as directory:
            assert directory.last_attempt() == attempt - 1
            directory.raise_attempt(attempt)


def test_run_directory_is_for_one_launcher_at_a_time(tmp_path: Path) -> None:
    with (
        RunDirectory(tmp_path),
        pytest.raises(UserError, match=r"in use by another `trimtab run` \(process \d+"),
    ):
        RunDirectory(tmp_path).__enter__()
    with RunDirectory(tmp_path):
        pass


def test_run_directory_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be used .* choose another --run-dir"):
        RunDirectory(tmp_path / "file" / "run").__enter__()


def test_attempt_file_that_is_damaged_is_not_taken_for_a_first_start(tmp_path: Path) -> None:
    (tmp_path / "attempt.json").write_text("{")
    with RunDirectory(tmp_path) as directory, pytest.raises(UserError, match="write the number of the last"):
        directory.last_attempt()


def test_address_stands_while_the_run_is_held(tmp_path: Path) -> None:
    job = tmp_path / "my.yaml"
    job.write_text("kind: RLTrainingJob\n")
    run = tmp_path / "run"
    with RunDirectory(run) as directory:
        directory.begin(job, "127.0.0.1:7000")
        assert coordinator_address(run) == "127.0.0.1:7000"
        assert (run / "job.yaml").read_text() == job.read_text()
    with pytest.raises(UserError, match="is not running"):
        coordinator_address(run)
    with pytest.raises(UserError, match="no such run directory"):
        coordinator_address(tmp_path / "elsewhere")


def test_begin_with_the_job_of_the_run_directory_itself_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("kind: RLTrainingJob\n")
    with RunDirectory(tmp_path) as directory:
        directory.begin(tmp_path / "job.yaml", "127.0.0.1:7000")
    assert (tmp_path / "job.yaml").read_text() == "kind: RLTrainingJob\n"
