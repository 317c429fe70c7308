import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from trimtab.comm.control.constants import SERVER_OPTIONS
from trimtab.errors import UserError
from trimtab.local.run_dir import RunDirectory, coordinator_address, reserved_port


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


def test_reserved_port_is_for_one_listener_after_another_and_nobody_else() -> None:
    with reserved_port() as port, ThreadPoolExecutor(1) as pool:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        for _ in range(2):
            server = grpc.server(pool, options=SERVER_OPTIONS)
            assert server.add_insecure_port(f"127.0.0.1:{port}") == port
            server.start()
            second = grpc.server(pool, options=SERVER_OPTIONS)
            with pytest.raises(RuntimeError, match="Failed to bind"):
                second.add_insecure_port(f"127.0.0.1:{port}")
            server.stop(grace=None).wait(10)
