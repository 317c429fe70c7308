"""A user's mistake: one clear message, at once, and an exit code that is not 0. No traceback."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trimtab.api import ResolvedJob, load_job
from trimtab.roles.environment import WorkerEnvironment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def fails(run: Any, *expected: str) -> None:
    code = run.wait()
    assert code not in (0, 1), run.output
    for text in expected:
        assert text in run.output, run.output
    # A traceback may be of the user's own code, never of ours.
    assert "/trimtab/" not in run.output, run.output


def test_model_path_that_does_not_exist(jobs):
    job = jobs.spec()
    job["spec"]["model"]["path"] = "no-such-model"
    fails(jobs.start(job), "model.path", "no-such-model")


def test_empty_dataset(jobs):
    job = jobs.spec()
    Path(job["spec"]["data"]["train"]["path"]).write_text("")
    fails(jobs.start(job), "data.train", "empty")


def test_chat_messages_with_a_tokenizer_that_has_no_template(jobs, tmp_path):
    job = jobs.spec()
    model = tmp_path / "model"
    shutil.copytree(job["spec"]["model"]["path"], model)
    (model / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    job["spec"]["model"]["path"] = str(model)
    job["spec"]["data"]["applyChatTemplate"] = "auto"
    rows = [{"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}]
    Path(job["spec"]["data"]["train"]["path"]).write_text(json.dumps(rows[0]) + "\n")
    fails(jobs.start(job), "chat template")


def test_reward_function_that_cannot_be_imported(jobs, tmp_path):
    job = jobs.spec()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my_rewards.py").write_text("import no_such_package\n")
    job["spec"]["code"] = {"path": str(tmp_path / "code")}
    job["spec"]["rewards"] = [{"function": "my_rewards:score"}]
    fails(jobs.start(job), "my_rewards:score", "no_such_package")


def test_reward_that_always_raises_fails_the_job_above_the_share(jobs, tmp_path):
    job = jobs.spec()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my_rewards.py").write_text(
        "def score(*, prompt, response, fields):\n    raise ZeroDivisionError('by design')\n"
    )
    job["spec"]["code"] = {"path": str(tmp_path / "code")}
    job["spec"]["rewards"] = [{"function": "my_rewards:score"}]
    fails(jobs.start(job), "maxFailedRewardShare", "by design")


def test_every_problem_of_a_file_is_named_before_anything_starts(jobs):
    job = jobs.spec()
    job["spec"]["trainin"] = job["spec"].pop("training")
    job["spec"]["algorithm"]["grpo"]["groupSize"] = 1
    run = jobs.start(job)
    fails(run, "spec.trainin", "training", "groupSize")
    assert not (run.run_dir / "logs").exists() or not any((run.run_dir / "logs").iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 600 KiB, which no checkpoint fits into."""
    if shutil.which("mount") is None:
        pytest.skip("needs mount(8), to make a small file system")
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"needs the right to mount a tmpfs (run as root): {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_full_disk_while_saving_is_named_and_leaves_no_half_checkpoint(jobs, small_disk):
    job = jobs.spec()
    job["spec"]["checkpoint"] = {"everySteps": 1, "uri": str(small_disk / "checkpoints")}
    fails(jobs.start(job), str(small_disk), "No space left")
    assert not list(small_disk.glob("checkpoints/step-*/manifest.json"))


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))


def test_full_disk_below_the_run_directory_is_named(jobs, small_disk):
    job = jobs.spec()
    job["spec"]["training"]["steps"] = 100_000
    job["spec"]["checkpoint"] = {"everySteps": None, "uri": str(jobs.folder / "checkpoints")}
    run = jobs.start(job, folder=small_disk)
    with run.held_up("reward"):
        fill(small_disk / "filling")
    fails(run, f"cannot write {small_disk}", "No space left", "choose another --run-dir")


def test_foreign_checkpoint_is_not_taken(jobs):
    job = jobs.spec()
    job["spec"]["training"]["steps"] = 2
    run = jobs.start(job)
    assert run.wait() == 0
    other = jobs.spec()
    other["spec"]["seed"] = 4
    other["spec"]["checkpoint"] = {"resume": "required", "uri": str(run.run_dir / "checkpoints")}
    fails(jobs.start(other, name="other"), "belongs to training", "spec.checkpoint.resume is required")
    fails(jobs.start(other), "holds another training")


def test_run_directory_in_use_by_another_run(jobs):
    job = jobs.spec()
    job["spec"]["training"]["steps"] = 100_000
    run = jobs.start(job)
    run.until(lambda s: True, what="the first run is up")
    fails(jobs.start(job), "in use")


def test_coordinator_port_that_is_taken(jobs, tmp_path):
    resolved = ResolvedJob.resolve(
        load_job(jobs.write(jobs.spec())), attempt=1, base_dir=tmp_path, run_dir=tmp_path / "run"
    )
    resolved.save(tmp_path / "resolved.json")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        env = WorkerEnvironment(
            job_path=tmp_path / "resolved.json",
            role="coordinator",
            replica=0,
            node=0,
            incarnation=1,
            coordinator=f"127.0.0.1:{taken.getsockname()[1]}",
            rank=0,
            local_rank=0,
            world_size=1,
        )
        ended = subprocess.run(
            [sys.executable, "-m", "trimtab.roles.worker"],
            env={**os.environ, **env.to_environ()},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert ended.returncode == 64
    assert "the port is in use" in ended.stderr
    assert "Traceback" not in ended.stderr
