"""The launcher with real agents and real control plane; the ranks are a small script of this file.

The script's coordinator waits until every worker has come, takes the job's steps (each a command to every
worker), and ends; `scenario.json` says who does what wrong.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from trimtab import checkpoint
from trimtab.api import ResolvedJob, load_job
from trimtab.cli.main import main
from trimtab.errors import ExitCode, UserError
from trimtab.local import run_job
from trimtab.v1 import job_control_pb2 as jc

FAKE_AGENT = """
import os, sys
from pathlib import Path
from trimtab.api import ResolvedJob
from trimtab.roles.agent import rank_environments, run
from trimtab.roles.environment import PodEnvironment

env = PodEnvironment.from_environ(os.environ)
ranks = rank_environments(env, ResolvedJob.load(env.job_path))
command = [sys.executable, str(Path(__file__).with_name("role.py"))]
sys.exit(run(env, ranks, environ=os.environ, command=command, peer_grace_s=0.5))
"""

FAKE_ROLE = """
import asyncio, json, os, signal, sys, time
from pathlib import Path
from trimtab.api import ResolvedJob
from trimtab.comm.control import ControlServer, WorkerSession
from trimtab.roles.environment import WorkerEnvironment
from trimtab.roles.registration import registration
from trimtab.roles.worker import leave_signals_to_the_coordinator
from trimtab.v1 import control_pb2 as pb, job_control_pb2 as jc

env = WorkerEnvironment.from_environ(os.environ)
job = ResolvedJob.load(env.job_path)
spec = job.job.spec
scenario = json.loads(Path(__file__).with_name("scenario.json").read_text())
steps_file = Path(job.run_dir) / "steps"
seen_file = Path(__file__).with_name("seen")
name = f"{env.worker_name}#{env.incarnation}"

class Coordinator:
    def __init__(self):
        self.stopping = None
        self.changed = asyncio.Event()
        self.step = int(steps_file.read_text()) if steps_file.exists() else 0
        self.condemned = []

    async def get_status(self):
        requests = [jc.RestartRequest(worker=w.to_proto(), reason="it hangs") for w in self.condemned]
        return jc.JobStatus(name=job.job.name, step=self.step, total_steps=spec.training.steps,
                            restart_requests=requests)

    async def watch(self):
        yield await self.get_status()
        while True:
            self.changed.clear()
            await self.changed.wait()
            yield await self.get_status()

    async def stop(self, request):
        self.stopping = request.reason
        return jc.StopResponse()

    async def run(self):
        roles = spec.roles
        wanted = roles.actor.num_ranks + roles.rollout.replicas + roles.reward.replicas
        here = asyncio.Event()

        def joined(worker, register):
            print("joined", worker, worker.incarnation, flush=True)
            self.condemned = [w for w in self.condemned if w.place != worker.place]
            here.set()

        self.server = ControlServer(
            training_identity=job.training_identity, attempt=job.attempt, heartbeat_interval_s=0.2,
            heartbeat_timeout_s=120, experience_address="tcp://127.0.0.1:1",
            coordinator_instance=str(os.getpid()), admit=lambda register: None, on_join=joined,
            on_leave=lambda worker, reason: here.set(), on_failed=lambda *args: None, job_control=self)
        await self.server.start(env.coordinator)
        while self.step < spec.training.steps and not self.stopping:
            while len(self.server.workers()) < wanted and not self.stopping:
                here.clear()
                await asyncio.wait([asyncio.create_task(here.wait())], timeout=0.2)
            await self.take_step()
            if env.incarnation == 1 and self.step == scenario.get("coordinator_dies_after"):
                os.kill(os.getpid(), signal.SIGKILL)
        # A launcher that sees the coordinator end follows its stream no further.
        while scenario.get("ends_when_seen") and not seen_file.exists():
            await asyncio.sleep(0.01)
        await self.server.shutdown_all("done", 0, timeout_s=60)
        (Path(job.run_dir) / "ended").write_text(self.stopping or "complete")

    async def take_step(self):
        command = pb.Command(key=f"step-{self.step}", update=pb.Update(step=self.step))
        workers = list(self.server.workers())
        hangs = scenario.get("hangs")
        calls = [
            self.server.call(w, command, timeout_s=1 if f"{w}#{w.incarnation}" == hangs else 120)
            for w in workers
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for worker, result in zip(workers, results):
            if isinstance(result, TimeoutError) or type(result).__name__ == "DeadlineError":
                self.condemned.append(worker)
        if any(isinstance(result, Exception) for result in results):
            await asyncio.sleep(0.1)
            return
        self.step += 1
        steps_file.write_text(str(self.step))
        self.changed.set()
        await asyncio.sleep(scenario.get("pause_s", 0.05))

def work():
    leave_signals_to_the_coordinator()
    if scenario.get("user_error") == env.worker_name:
        print("error: model.path is /nowhere: there is no such folder", flush=True)
        sys.exit(64)
    if scenario.get("always_dies") == env.worker_name:
        os.kill(os.getpid(), signal.SIGKILL)
    with WorkerSession(registration(env, job), env.coordinator, dial_timeout_s=120) as session:
        session.start()
        for command in session.commands():
            if scenario.get("dies") == name:
                os.kill(os.getpid(), signal.SIGKILL)
            if scenario.get("hangs") == name:
                time.sleep(600)
            session.reply(pb.CommandResult(key=command.key, ok=True))
    print("left", session.shutdown.reason, flush=True)
    sys.exit(session.shutdown.exit_code)

print("started", name, flush=True)
if env.role == "coordinator":
    if scenario.get("never_listens"):
        time.sleep(600)
    asyncio.run(Coordinator().run())
else:
    work()
"""

JOB = """
apiVersion: trimtab.dev/v1alpha1
kind: RLTrainingJob
metadata: {name: fake}
spec:
  model: {path: model}
  data: {train: {path: train.jsonl}}
  algorithm: {grpo: {groupSize: 2}}
  training: {steps: STEPS, promptsPerStep: 4, maxResponseTokens: 8}
  rewards: [{function: exact_match}]
  roles: {actor: {nodes: 2}, rollout: {replicas: 1}}
  checkpoint: {resume: RESUME}
  failurePolicy: {maxRestarts: 2}
  deadlines: {stopGraceSeconds: 5, checkpointSeconds: 5}
"""


pytestmark = pytest.mark.slow


class RecordingView:
    def __init__(self, total_steps: int, seen: Path) -> None:
        self.total_steps = total_steps
        self.seen = seen
        self.lines: list[str] = []
        self.last = jc.JobStatus()
        self.summary: Mapping[str, object] | None = None

    def update(self, status: jc.JobStatus) -> None:
        self.last = status
        if status.step == self.total_steps:
            self.seen.touch()

    def log_line(self, text: str) -> None:
        self.lines.append(text)

    def close(self, summary: Mapping[str, object] | None = None) -> None:
        self.summary = summary


def take_interrupts() -> None:
    """Runs in the child: tests started in the background of a shell inherit an ignored SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Run:
    """A folder with a job and its scenario, and what came of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.view = RecordingView(0, folder / "seen")
        (folder / "agent.py").write_text(FAKE_AGENT)
        (folder / "role.py").write_text(FAKE_ROLE)
        self.write()

    def write(self, *, steps: int = 3, resume: str = "auto", **scenario: Any) -> None:
        text = JOB.replace("STEPS", str(steps)).replace("RESUME", resume)
        (self.folder / "job.yaml").write_text(text)
        (self.folder / "scenario.json").write_text(json.dumps(scenario))

    @property
    def agent_command(self) -> list[str]:
        return [sys.executable, str(self.folder / "agent.py")]

    def run(self, *, resume: bool = False) -> int:
        def make_view(total_steps: int, name: str) -> RecordingView:
            self.view = RecordingView(total_steps, self.folder / "seen")
            return self.view

        return run_job(
            self.folder / "job.yaml",
            run_dir=self.run_dir,
            resume=resume,
            make_view=make_view,
            agent_command=self.agent_command,
        )

    def start(self) -> "subprocess.Popen[str]":
        """The same in a process of its own, for signals."""
        script = (
            "import sys; from pathlib import Path; from trimtab.local import run_job; "
            f"sys.exit(run_job(Path({str(self.folder / 'job.yaml')!r}), run_dir=Path({str(self.run_dir)!r}), "
            f"agent_command={self.agent_command!r}))"
        )
        return subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=take_interrupts,
        )

    def starts(self) -> list[str]:
        """Every start of a rank, from the logs."""
        lines = [line for log in self.run_dir.glob("logs/*.log") for line in log.read_text().splitlines()]
        return sorted(line.removeprefix("started ") for line in lines if line.startswith("started "))


@pytest.fixture
def fake(tmp_path: Path) -> Run:
    return Run(tmp_path)


FIRST_STARTS = [
    "actor-0/rank-0#1",
    "actor-0/rank-1#1",
    "coordinator-0/rank-0#1",
    "reward-0/rank-0#1",
    "rollout-0/rank-0#1",
]


def test_attempt_is_above_that_of_whoever_used_the_checkpoint_folder_before(fake: Run) -> None:
    checkpoint.fence(str(fake.run_dir / "checkpoints"), 3)
    fake.write(steps=1, resume="never")
    assert fake.run() == 0
    assert json.loads((fake.run_dir / "attempt.json").read_text()) == {"attempt": 4}
    assert ResolvedJob.load(fake.run_dir / "resolved.json").attempt == 4


def test_checkpoint_folder_given_as_a_uri_is_claimed_where_it_says(fake: Run) -> None:
    shared = fake.folder / "shared"
    fake.write(steps=1)
    job = fake.folder / "job.yaml"
    job.write_text(job.read_text().replace("{resume: auto}", f"{{resume: auto, uri: 'file://{shared}'}}"))
    assert fake.run() == 0
    assert [path.name for path in shared.iterdir()] == ["attempt-00000001"]
    assert not (fake.run_dir / "file:").exists()


def test_gpus_that_are_not_here_are_refused_before_anything_starts(
    fake: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    job = fake.folder / "job.yaml"
    job.write_text(job.read_text().replace("actor: {nodes: 2}", "actor: {nodes: 2, gpusPerNode: 1}"))
    with pytest.raises(UserError, match=r"spec\.roles\.actor\.gpusPerNode 1 in each of 2 pods: 2 GPUs"):
        fake.run()
    assert fake.starts() == []
    assert not (fake.run_dir / "attempt.json").exists()


def test_job_runs_to_its_end_and_a_second_run_continues_it(fake: Run) -> None:
    fake.write(ends_when_seen=True)
    assert fake.run() == 0
    assert fake.starts() == FIRST_STARTS
    assert (fake.run_dir / "ended").read_text() == "complete"
    assert fake.view.summary is not None
    assert fake.view.last.step == 3
    assert not (fake.run_dir / "coordinator.address").exists()
    log = (fake.run_dir / "logs" / "rollout-0-0.log").read_text()
    assert log.startswith("=== rollout-0-0 incarnation 1 20")
    assert log.endswith("left done\n")
    fake.write(steps=4, resume="never")
    assert fake.run(resume=True) == 0
    assert json.loads((fake.run_dir / "attempt.json").read_text()) == {"attempt": 2}
    assert (fake.run_dir / "steps").read_text() == "4"


def test_rollout_that_dies_is_started_again_alone(fake: Run) -> None:
    fake.write(dies="rollout-0/rank-0#1")
    assert fake.run() == 0
    assert fake.starts() == sorted([*FIRST_STARTS, "rollout-0/rank-0#2"])
    told = "rollout-0 was ended by SIGKILL; starting it again in 0.5 s (1 of 2 restarts without progress)"
    assert told in fake.view.lines


def test_actor_that_loses_a_rank_is_started_again_as_a_whole(fake: Run) -> None:
    fake.write(dies="actor-0/rank-1#1")
    assert fake.run() == 0
    assert fake.starts() == sorted([*FIRST_STARTS, "actor-0/rank-0#2", "actor-0/rank-1#2"])


def test_coordinator_that_dies_is_started_again_and_the_workers_stay(fake: Run) -> None:
    fake.write(coordinator_dies_after=2)
    assert fake.run() == 0
    assert fake.starts() == sorted([*FIRST_STARTS, "coordinator-0/rank-0#2"])
    assert (fake.run_dir / "steps").read_text() == "3"


def test_worker_that_hangs_is_restarted_at_the_coordinator_s_request(fake: Run) -> None:
    fake.write(hangs="reward-0/rank-0#1")
    assert fake.run() == 0
    assert fake.starts() == sorted([*FIRST_STARTS, "reward-0/rank-0#2"])
    assert any("reward-0 is to start again (it hangs)" in line for line in fake.view.lines)


def test_mistake_of_the_user_fails_the_job_at_once_with_its_message(fake: Run) -> None:
    fake.write(user_error="rollout-0/rank-0")
    assert fake.run() == ExitCode.USER_ERROR
    assert set(fake.starts()) <= set(FIRST_STARTS)  # nothing was started again
    error = fake.view.lines[-1]
    assert error.startswith("error: rollout-0: model.path is /nowhere: there is no such folder\nlogs: ")


def test_worker_that_always_dies_uses_up_the_restarts(fake: Run) -> None:
    fake.write(always_dies="reward-0/rank-0")
    assert fake.run() == ExitCode.JOB_FAILED
    assert [start for start in fake.starts() if start.startswith("reward")] == [
        f"reward-0/rank-0#{incarnation}" for incarnation in (1, 2, 3)
    ]
    assert "all 2 restarts without progress are used up" in fake.view.lines[-1]


def earlier_run(fake: Run, *, group_size: int = 2) -> None:
    """What a first start leaves behind, as far as the next one looks at it."""
    job = fake.folder / "job.yaml"
    text = job.read_text()
    job.write_text(text.replace("groupSize: 2", f"groupSize: {group_size}"))
    fake.run_dir.mkdir()
    resolved = ResolvedJob.resolve(load_job(job), attempt=1, base_dir=fake.folder, run_dir=fake.run_dir)
    resolved.save(fake.run_dir / "resolved.json")
    (fake.run_dir / "attempt.json").write_text('{"attempt": 1}')
    job.write_text(text)


def test_resume_of_nothing_is_refused(fake: Run) -> None:
    with pytest.raises(UserError, match=r"--resume: .* holds no run to continue"):
        fake.run(resume=True)


def test_run_directory_in_use_with_resume_never_is_refused(fake: Run) -> None:
    fake.write(resume="never")
    earlier_run(fake)
    with pytest.raises(UserError, match=r"spec.checkpoint.resume is never, and .* \(attempt 1\)"):
        fake.run()


def test_run_directory_of_another_training_is_refused(fake: Run) -> None:
    earlier_run(fake, group_size=4)
    with pytest.raises(UserError, match="holds another training"):
        fake.run()


def wait_for_a_step(process: "subprocess.Popen[str]") -> None:
    """By the launcher's own output, one plain line per step; pytest's timeout is the deadline."""
    assert process.stdout is not None
    for line in process.stdout:
        if re.match(r"step [1-9]", line):
            return
    raise AssertionError(f"the launcher ended with {process.wait()} before a step")


def descendants(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    found = psutil.Process(process.pid).children(recursive=True)
    assert len(found) >= 10  # five agents and their ranks
    return found


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def test_interrupt_before_the_coordinator_listens_ends_the_job(fake: Run) -> None:
    fake.write(never_listens=True)
    with fake.start() as process:
        log = fake.run_dir / "logs" / "coordinator-0-0.log"
        while not (log.exists() and "started" in log.read_text()) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "coordinator-0 was ended by SIGTERM before it had saved a checkpoint" in output
    assert not (fake.run_dir / "ended").exists()


def test_job_that_runs_into_its_active_deadline_fails(fake: Run) -> None:
    fake.write(steps=10_000)
    job = fake.folder / "job.yaml"
    job.write_text(job.read_text() + "  activeDeadlineSeconds: 1\n")
    assert fake.run() == ExitCode.JOB_FAILED
    assert fake.view.lines[-1] == "error: spec.activeDeadlineSeconds is 1: the job ran into it"


def test_interrupt_stops_the_job_with_the_coordinator_s_blessing(fake: Run) -> None:
    fake.write(steps=10_000)
    with fake.start() as process:
        wait_for_a_step(process)
        running = descendants(process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "SIGINT: stopping with a checkpoint" in output
    assert (fake.run_dir / "ended").read_text() == "SIGINT"
    assert_gone(running)


def test_commands_find_the_running_job_by_its_folder(fake: Run, capsys: pytest.CaptureFixture[str]) -> None:
    fake.write(steps=10_000)
    with fake.start() as process:
        wait_for_a_step(process)
        assert main(["status", str(fake.run_dir)]) == 0
        assert re.match(r"fake: .*, step \d+ of 10000", capsys.readouterr().out)
        assert main(["run", str(fake.folder / "job.yaml"), "--run-dir", str(fake.run_dir)]) == 64
        assert "is in use by another `trimtab run`" in capsys.readouterr().err
        assert main(["stop", str(fake.run_dir), "--grace", "3"]) == 0
        process.communicate(timeout=120)
    assert process.returncode == 0
    assert (fake.run_dir / "ended").read_text() == "trimtab stop"
    assert main(["stop", str(fake.run_dir)]) == 64
    assert "this run is not running" in capsys.readouterr().err


@pytest.mark.parametrize("end", ["a second signal", "kill -9 of the launcher"])
def test_launcher_that_ends_early_leaves_no_process_behind(fake: Run, end: str) -> None:
    fake.write(steps=10_000, pause_s=600)  # the coordinator is deaf to a stop
    with fake.start() as process:
        wait_for_a_step(process)
        running = descendants(process)
        if end == "a second signal":
            process.send_signal(signal.SIGTERM)
            assert process.stdout is not None
            while "stopping with a checkpoint" not in process.stdout.readline():
                continue
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=120)
            assert process.returncode == 128 + signal.SIGTERM
        else:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate(timeout=120)
    assert_gone(running)
