"""How a coordinator's process begins."""

from pathlib import Path

import pytest
from tests.unit.small_job import small_job

from trimtab.errors import UserError
from trimtab.roles.coordinator import main
from trimtab.roles.coordinator.journal import Journal, SupersededError
from trimtab.roles.environment import COORDINATOR, WorkerEnvironment


def environment(folder: Path, incarnation: int) -> WorkerEnvironment:
    return WorkerEnvironment(
        job_path=folder / "resolved.json",
        role=COORDINATOR,
        replica=0,
        node=0,
        incarnation=incarnation,
        coordinator="127.0.0.1:0",
        rank=0,
        local_rank=0,
        world_size=1,
    )


def test_coordinator_that_starts_after_its_successor_ends_and_leaves_the_successors_files_alone(
    tmp_path: Path,
) -> None:
    journal = tmp_path / "run" / "journal"
    Journal(journal).take(attempt=1, incarnation=2)
    (journal / "experience.address").write_text("tcp://10.0.0.2:4321")
    (tmp_path / "run" / "metrics-endpoints.json").write_text("[]")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(SupersededError, match="attempt 1, incarnation 2 of the coordinator"):
        main.run(environment(tmp_path, 1), small_job(tmp_path))
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_disk_that_is_full_at_the_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Journal, *, attempt: int, incarnation: int) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "run" / "journal" / "owner.json.new"))

    monkeypatch.setattr(Journal, "take", full)
    with pytest.raises(UserError, match=r"cannot write .*owner.json.new: No space left .* another --run-dir"):
        main.run(environment(tmp_path, 1), small_job(tmp_path))
