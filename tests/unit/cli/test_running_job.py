"""The commands that talk to a running job, against a real JobControl service on a loop of its own."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToJson

from trimtab.cli.main import main
from trimtab.comm.control import ControlServer
from trimtab.errors import ExitCode, UserError
from trimtab.v1 import job_control_pb2 as jc


class Job:
    """A handler whose job is where the test puts it."""

    def __init__(self) -> None:
        self.statuses = [jc.JobStatus(name="demo", phase="Running", step=3, total_steps=9)]
        self.updates: list[jc.UpdateRolloutRequest] = []

    async def get_status(self) -> jc.JobStatus:
        return self.statuses[-1]

    async def watch(self) -> AsyncIterator[jc.JobStatus]:
        for status in self.statuses:
            yield status

    async def checkpoint(self, request: jc.CheckpointRequest) -> jc.CheckpointResponse:
        raise UserError("not asked here")

    async def update_rollout(self, request: jc.UpdateRolloutRequest) -> jc.UpdateRolloutResponse:
        if request.HasField("top_p") and request.top_p > 1:
            raise UserError(f"top_p: {request.top_p:g}; allowed: above 0, at most 1")
        self.updates.append(request)
        return jc.UpdateRolloutResponse(effective_step=5)

    async def stop(self, request: jc.StopRequest) -> jc.StopResponse:
        raise UserError("not asked here")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    handler = Job()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> ControlServer:
        server = ControlServer(
            training_identity="a1b2",
            attempt=1,
            heartbeat_interval_s=1.0,
            heartbeat_timeout_s=10.0,
            experience_address="tcp://127.0.0.1:1",
            coordinator_instance="first",
            admit=lambda register: None,
            on_join=lambda worker, register: None,
            on_leave=lambda worker, reason: None,
            on_failed=lambda worker, message, kind: None,
            job_control=handler,
        )
        port = await server.start("127.0.0.1:0")
        (tmp_path / "coordinator.address").write_text(f"127.0.0.1:{port}\n")
        return server

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    yield handler
    asyncio.run_coroutine_threadsafe(server.close("over"), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def test_set_sends_what_is_given_and_says_from_which_step_on(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--temperature", "0.8", "--top-p", "0.9", "--top-k", "0", "--max-response-tokens", "64"]
    assert main(["set", str(tmp_path), *arguments]) == 0
    assert capsys.readouterr().out == "from step 5 on\n"
    assert job.updates == [
        jc.UpdateRolloutRequest(temperature=0.8, top_p=0.9, top_k=0, max_response_tokens=64)
    ]
    assert main(["set", str(tmp_path), "--temperature", "1"]) == 0
    assert not job.updates[-1].HasField("top_k")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "nothing to set; give at least one of --temperature"),
        (["--top-p", "1.5"], "top_p: 1.5; allowed: above 0, at most 1"),
        (["--max-response-tokens", "-1"], "--max-response-tokens -1: "),
    ],
)
def test_set_refuses_what_the_job_cannot_do(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert main(["set", str(tmp_path), *arguments]) == ExitCode.USER_ERROR
    assert text in capsys.readouterr().err
    assert job.updates == []


def test_status_names_who_is_missing_and_leaves_out_conditions_that_are_as_they_should_be(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = jc.Condition(
        type="WorkersReady", status="False", reason="WaitingForWorkers", message="missing: rollout-1"
    )
    healthy = jc.Condition(type="MetricsHealthy", status="True", reason="AllFinite")
    job.statuses[-1].conditions.extend([missing, healthy])
    assert main(["status", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "demo: Running, step 3 of 9\n" in out
    assert "  WorkersReady is False (WaitingForWorkers): missing: rollout-1\n" in out
    assert "MetricsHealthy" not in out


def test_status_of_a_run_that_failed_says_why_and_not_that_its_workers_have_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = jc.JobStatus(
        name="demo",
        phase="Failed",
        roles=[jc.RoleStatus(role="rollout", desired=2, ready=1, restarts=3)],
        conditions=[
            jc.Condition(type="WorkersReady", status="False", message="missing: rollout-0"),
            jc.Condition(type="Failed", status="True", reason="UserError", message="spec.model: no such"),
        ],
    )
    (tmp_path / "status.json").write_text(MessageToJson(status, preserving_proto_field_name=True))
    assert main(["status", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "  Failed is True (UserError): spec.model: no such\n" in out
    assert "missing" not in out
    assert "  rollout: 1 of 2 ready at the end, 3 restarts\n" in out
    assert main(["status", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["phase"] == "Failed"


def test_status_watch_follows_the_run_to_its_end(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.statuses.append(jc.JobStatus(name="demo", phase="Running", step=4, total_steps=9))
    job.statuses.append(jc.JobStatus(name="demo", phase="Complete", step=9, total_steps=9))
    assert main(["status", str(tmp_path), "--watch"]) == 0
    out = capsys.readouterr().out
    assert "step 4/9" in out
    assert out.endswith("demo: Complete, step 9 of 9\n")


def test_status_watch_of_a_run_that_is_over_shows_how_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "status.json").write_text('{"name": "demo", "phase": "Stopped", "step": "3"}')
    assert main(["status", str(tmp_path), "--watch"]) == 0
    assert "demo: Stopped, step 3 of 0\n" in capsys.readouterr().out
