"""The agent with real ranks: small Python scripts that are started in place of the worker."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from trimtab.errors import ExitCode

AGENT = """
import os, sys
from pathlib import Path
from typing import Any
from trimtab.roles.agent import run
from trimtab.roles.environment import PodEnvironment, WorkerEnvironment

folder, num_ranks, launcher = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
env = PodEnvironment(
    job_path=folder / "job.json", role="actor", replica=0, node=0, incarnation=2, coordinator="127.0.0.1:9",
    termination_log=folder / "termination", log_dir=folder, launcher_pid=launcher or None,
)
ranks = [
    WorkerEnvironment(**vars(env), rank=rank, local_rank=rank, world_size=num_ranks)
    for rank in range(num_ranks)
]
command = [sys.executable, str(folder / "rank.py")]
sys.exit(run(env, ranks, environ=os.environ, command=command, peer_grace_s=1.0))
"""

PREAMBLE = """
import os, signal, sys, subprocess, time
rank = int(os.environ["TRIMTAB_RANK"])
folder = os.path.dirname(__file__)
def ready():
    open(f"{folder}/ready-{rank}.tmp", "w").write(str(os.getpid()))
    os.rename(f"{folder}/ready-{rank}.tmp", f"{folder}/ready-{rank}")
"""


class Agent:
    def __init__(self, folder: Path, rank_script: str, *, num_ranks: int = 1, launcher: int = 0) -> None:
        self.folder = folder
        (folder / "rank.py").write_text(PREAMBLE + rank_script)
        (folder / "agent.py").write_text(AGENT)
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "agent.py"), str(folder), str(num_ranks), str(launcher)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def rank_pid(self, rank: int) -> int:
        return int(wait_for(lambda: read(self.folder / f"ready-{rank}"), f"rank {rank} to be ready"))

    def end(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=120)
        return self.process.returncode, output

    @property
    def termination_message(self) -> str:
        return (self.folder / "termination").read_text()


def read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def wait_for(probe: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 60
    while (value := probe()) is None:
        assert time.monotonic() < deadline, f"waited 60 s for {what}"
        time.sleep(0.01)
    return value


def gone(pid: int) -> bool | None:
    return (not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE) or None


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    agents: list[Agent] = []

    def start_agent(rank_script: str, **options: int) -> Agent:
        agents.append(Agent(tmp_path, rank_script, **options))
        return agents[-1]

    yield start_agent
    for agent in agents:
        agent.process.kill()
        if agent.process.stdout is not None and not agent.process.stdout.closed:
            agent.process.communicate()


def test_ranks_that_all_succeed_end_the_pod_with_0(start: Callable[..., Agent], tmp_path: Path) -> None:
    agent = start("print('rank', rank, os.environ['TRIMTAB_WORLD_SIZE'])", num_ranks=2)
    assert agent.end() == (0, "")
    for rank in range(2):
        log = (tmp_path / f"actor-0-0-{rank}.log").read_text().splitlines()
        assert log == [f"=== actor-0/rank-{rank} incarnation 2", f"rank {rank} 2"]
    assert not (tmp_path / "termination").exists()


def test_rank_that_fails_ends_its_peers_and_names_itself(start: Callable[..., Agent]) -> None:
    agent = start(
        """
if rank == 1:
    while not os.path.exists(f"{folder}/ready-0"):
        time.sleep(0.01)
    print("noise", flush=True)
    print("error: the disk is full", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready()
time.sleep(600)
""",
        num_ranks=2,
    )
    code, output = agent.end()
    assert code == 7
    assert "actor-0/rank-1 exited with code 7" in output
    assert "actor-0/rank-0 was ended by signal 9 (SIGKILL)" in output
    assert agent.termination_message == (
        "actor-0/rank-1 (node 0, incarnation 2) exited with code 7\nerror: the disk is full"
    )


def test_rank_that_is_killed_gives_128_and_the_signal(start: Callable[..., Agent]) -> None:
    agent = start("print('about to wait', flush=True); ready(); time.sleep(600)")
    os.kill(agent.rank_pid(0), signal.SIGKILL)
    code, _ = agent.end()
    assert code == 128 + signal.SIGKILL
    assert agent.termination_message == (
        "actor-0/rank-0 (node 0, incarnation 2) was ended by signal 9 (SIGKILL)\nabout to wait"
    )


@pytest.mark.parametrize(
    ("in_pod", "code"), [(True, ExitCode.RESTART_REQUESTED), (False, 128 + signal.SIGTERM)],
    ids=["in a pod", "on a laptop"],
)  # fmt: skip
def test_rank_that_sigterm_ends_before_it_can_handle_it_leaves_where_pods_go(
    start: Callable[..., Agent], in_pod: bool, code: int
) -> None:
    agent = start("ready(); time.sleep(600)", launcher=0 if in_pod else os.getpid())
    agent.rank_pid(0)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.end()[0] == code


def test_final_word_of_a_coordinator_is_not_written_over(start: Callable[..., Agent], tmp_path: Path) -> None:
    word = b'{"trimtab":1,"phase":"Failed","reason":"UserError"}'
    (tmp_path / "termination").write_bytes(word)
    agent = start("print('error: wrong', flush=True); sys.exit(64)")
    assert agent.end()[0] == 64
    assert (tmp_path / "termination").read_bytes() == word


def test_termination_log_that_cannot_be_written_leaves_the_exit_code(
    start: Callable[..., Agent], tmp_path: Path
) -> None:
    (tmp_path / "termination").symlink_to(tmp_path / "nowhere" / "termination")
    code, output = start("sys.exit(64)").end()
    assert code == 64
    assert "termination could not be written" in output


def test_empty_termination_log_of_a_pod_is_filled(start: Callable[..., Agent], tmp_path: Path) -> None:
    (tmp_path / "termination").touch()  # as the kubelet mounts it
    agent = start("print('error: wrong', flush=True); sys.exit(64)")
    assert agent.end()[0] == 64
    assert agent.termination_message.endswith("error: wrong")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_the_agent_reaches_every_rank(start: Callable[..., Agent], number: int) -> None:
    agent = start(
        f"""
signal.signal({int(number)}, lambda *_: sys.exit(0))
ready()
time.sleep(600)
""",
        num_ranks=2,
    )
    agent.rank_pid(0)
    agent.rank_pid(1)
    agent.process.send_signal(number)
    assert agent.end() == (0, "")


GRANDCHILD = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(f"{folder}/child", "w").write(str(child.pid))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready()
"""


@pytest.mark.parametrize("end", ["sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_process_that_a_rank_leaves_behind_ends_with_the_pod(
    start: Callable[..., Agent], tmp_path: Path, end: str
) -> None:
    agent = start(GRANDCHILD + end)
    agent.end()
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: gone(child), "the grandchild's end")


def test_sigquit_to_the_agent_ends_everything_at_once(start: Callable[..., Agent], tmp_path: Path) -> None:
    agent = start(GRANDCHILD + "time.sleep(600)")
    rank = agent.rank_pid(0)
    agent.process.send_signal(signal.SIGQUIT)
    assert agent.end()[0] == 128 + signal.SIGKILL
    for pid in (rank, int((tmp_path / "child").read_text())):
        wait_for(lambda pid=pid: gone(pid), "everything's end")


def test_agent_that_is_killed_takes_its_ranks_along(start: Callable[..., Agent]) -> None:
    agent = start("signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); time.sleep(600)", num_ranks=2)
    ranks = [agent.rank_pid(rank) for rank in range(2)]
    agent.process.kill()
    for pid in ranks:
        wait_for(lambda pid=pid: gone(pid), "the ranks' end")


def test_agent_whose_launcher_is_killed_ends_everything(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(
        PREAMBLE + "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); time.sleep(600)"
    )
    (tmp_path / "agent.py").write_text(AGENT)
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, subprocess, sys, time\n"
            f"subprocess.Popen([sys.executable, {str(tmp_path / 'agent.py')!r}, {str(tmp_path)!r}, '1',"
            " str(os.getpid())], start_new_session=True)\n"
            "time.sleep(600)",
        ]
    )
    rank = int(wait_for(lambda: read(tmp_path / "ready-0"), "the rank to be ready"))
    agent = psutil.Process(rank).ppid()
    launcher.kill()
    launcher.wait()
    for pid in (rank, agent):
        wait_for(lambda pid=pid: gone(pid), "the pod's end")
