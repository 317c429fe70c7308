"""The coordinator process is killed in the middle of a command and started again on the same port."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trimtab.local.run_dir import reserved_port

SERVER = """
import asyncio, sys
from trimtab.comm.control import ControlServer
from trimtab.v1 import control_pb2 as pb

class NoJob:
    pass

async def main(port, instance):
    joined = asyncio.Queue()
    server = ControlServer(
        training_identity="t", attempt=1, heartbeat_interval_s=0.1, heartbeat_timeout_s=60,
        experience_address="tcp://127.0.0.1:1", coordinator_instance=instance, admit=lambda register: None,
        on_join=lambda worker, register: joined.put_nowait(worker), on_leave=lambda worker, reason: None,
        on_failed=lambda worker, message, kind: None, job_control=NoJob(),
    )
    await server.start(f"127.0.0.1:{port}")
    worker = await joined.get()
    print("joined", worker, flush=True)
    result = await server.call(worker, pb.Command(key="step-1", update=pb.Update(step=1)), timeout_s=120)
    print("result", int(result.metrics["runs"]), flush=True)
    await server.shutdown_all("done", 0, timeout_s=60)

asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
"""

WORKER = """
import sys
from trimtab.comm.control import WorkerSession
from trimtab.v1 import control_pb2 as pb

register = pb.Register(
    protocol_version=1, attempt=1, training_identity="t", worker=pb.WorkerId(role="actor"), applied_step=-1
)
runs = 0
session = WorkerSession(
    register, f"127.0.0.1:{sys.argv[1]}", dial_timeout_s=60,
    on_new_coordinator=lambda welcome: print("moved to", welcome.coordinator_instance, flush=True),
)
with session:
    session.start()
    for command in session.commands():
        runs += 1
        print("running", command.key, flush=True)
        assert sys.stdin.readline() == "finish\\n"
        session.reply(pb.CommandResult(key=command.key, ok=True, metrics={"runs": runs}))
        print("replied", flush=True)
print("left with", session.shutdown.exit_code, flush=True)
"""


class Process:
    """A script whose lines the test reads; killed at the end of the test."""

    def __init__(self, folder: Path, name: str, script: str, *arguments: str) -> None:
        path = folder / f"{name}.py"
        path.write_text(script)
        self.child = subprocess.Popen(
            [sys.executable, str(path), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()

    def write(self, text: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(text)
        self.child.stdin.flush()

    def end(self) -> None:
        self.child.kill()
        self.child.communicate()


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.end()


@pytest.fixture
def port() -> Iterator[str]:
    with reserved_port() as number:
        yield str(number)


@pytest.mark.parametrize("finished_while_away", [True, False], ids=["finished meanwhile", "still running"])
def test_command_runs_once_when_the_coordinator_is_killed_and_returns(
    tmp_path: Path, processes: list[Process], port: str, finished_while_away: bool
) -> None:
    first = Process(tmp_path, "server", SERVER, port, "first")
    worker = Process(tmp_path, "worker", WORKER, port)
    processes += [first, worker]
    assert first.line() == "joined actor-0/rank-0"
    assert worker.line() == "running step-1"
    first.end()
    if finished_while_away:
        worker.write("finish\n")
        assert worker.line() == "replied"
    second = Process(tmp_path, "server", SERVER, port, "second")
    processes.append(second)
    assert second.line() == "joined actor-0/rank-0"
    assert worker.line() == "moved to second"
    if not finished_while_away:
        worker.write("finish\n")
        assert worker.line() == "replied"
    assert second.line() == "result 1"
    assert worker.line() == "left with 0"
    assert worker.child.wait(timeout=60) == 0
    assert second.child.wait(timeout=60) == 0
