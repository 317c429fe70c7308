"""A coordinator whose machine vanishes is noticed, and the next one is found elsewhere by the same name."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trimtab.comm.control import WorkerSession
from trimtab.v1 import control_pb2 as pb

PORT = 7071
SILENCE_S = 3.0
SERVER = """
import asyncio, sys
from trimtab.comm.control import ControlServer

async def main(address, instance):
    server = ControlServer(
        training_identity="t", attempt=1, heartbeat_interval_s=0.2, heartbeat_timeout_s=60,
        experience_address=f"tcp://{instance}", coordinator_instance=instance, admit=lambda register: None,
        on_join=lambda worker, register: print("joined", flush=True), on_leave=lambda worker, reason: None,
        on_failed=lambda worker, message, kind: None, job_control=None,
    )
    await server.start(address)
    print("listening", flush=True)
    await asyncio.sleep(120)

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


class Server:
    def __init__(self, script: Path, host: str, instance: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(script), f"{host}:{PORT}", instance], stdout=subprocess.PIPE, text=True
        )
        assert self.line() == "listening"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Any]:
    started: list[Server] = []
    script = tmp_path / "server.py"
    script.write_text(SERVER)

    def start(host: str, instance: str) -> Server:
        started.append(Server(script, host, instance))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.communicate()


def test_worker_finds_the_next_coordinator_within_the_heartbeat_deadline_of_the_last_ones_silence(
    servers: Any, service_names: Any
) -> None:
    moved: list[tuple[float, str]] = []
    session = WorkerSession(
        pb.Register(protocol_version=1, attempt=1, training_identity="t", worker=pb.WorkerId(role="reward")),
        service_names.target(PORT),
        dial_timeout_s=60,
        silence_s=SILENCE_S,
        on_new_coordinator=lambda welcome: moved.append((time.monotonic(), welcome.experience_address)),
    )
    first = servers("127.0.1.1", "first")
    service_names.address = "127.0.1.1"
    with session:
        assert session.start().coordinator_instance == "first"
        assert first.line() == "joined"
        second = servers("127.0.1.2", "second")
        first.process.send_signal(signal.SIGSTOP)  # its connections stand, and nothing comes over them
        vanished = time.monotonic()
        service_names.address = "127.0.1.2"
        assert second.line() == "joined"
    [(at, address)] = moved
    assert address == "tcp://second"
    assert at - vanished < 5 * SILENCE_S  # gRPC's own pings would take 20 s


def test_worker_waits_for_a_name_that_does_not_exist_yet(servers: Any, service_names: Any) -> None:
    session = WorkerSession(
        pb.Register(protocol_version=1, attempt=1, training_identity="t", worker=pb.WorkerId(role="reward")),
        service_names.target(PORT),
        dial_timeout_s=60,
    )
    server = servers("127.0.1.3", "late")
    with session:
        session._thread.start()
        time.sleep(1.0)  # the first lookups find nothing
        assert not session._welcomed.done()
        service_names.address = "127.0.1.3"
        assert session._welcomed.result(timeout=30).coordinator_instance == "late"
        assert server.line() == "joined"
