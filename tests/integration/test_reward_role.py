"""The reward role as the agent starts it: a process that dials a coordinator, which the test plays."""

import asyncio
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from trimtab.api import ResolvedJob, parse_job
from trimtab.comm.control import WorkerKey
from trimtab.comm.experience import Message
from trimtab.errors import ExitCode
from trimtab.local.run_dir import reserved_port
from trimtab.roles.environment import REWARD
from trimtab.testing.coordinator import PlayedCoordinator, start_worker
from trimtab.v1 import control_pb2 as pb

WORKER = "reward-0/rank-0"
TIMEOUT_S = 90.0

USER_CODE = """
import os, sys, time

def odd(*, prompt, response, fields):
    print("noise", prompt)
    if response == "raise":
        raise RuntimeError("no")
    if response == "hang":
        time.sleep(3600)
    if response == "exit":
        os._exit(1)
    if response == "nan":
        return float("nan")
    if response == "modules":
        return sum(name in sys.modules for name in ("torch", "transformers", "vllm"))
    return {"length": len(response), "pid": os.getpid()}
"""


class Coordinator(PlayedCoordinator):
    """The test's part: asks for scores and waits for them."""

    def __init__(self, job: ResolvedJob, instance: str) -> None:
        super().__init__(job, instance=instance)
        self.job = job

    async def ask(self, episode_id: str, response: str, *, rewards: str = "train", **fields: Any) -> None:
        meta = {
            "episode_id": episode_id,
            "prompt": "p",
            "response": response,
            "finish_reason": "stop",
            "fields": fields,
            "rewards": rewards,
        }
        await self.hub.send(WORKER, Message("score", meta), timeout_s=TIMEOUT_S)

    async def answers(self, count: int) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        async with asyncio.timeout(TIMEOUT_S):
            while len(found) < count:
                worker, message = await self.hub.recv()
                assert (worker, message.kind) == (WORKER, "scores")
                found[str(message.meta["episode_id"])] = dict(message.meta)
        return found


def resolved_job(folder: Path, function: str = "odd_rewards:odd") -> ResolvedJob:
    (folder / "odd_rewards.py").write_text(USER_CODE)
    job = parse_job(
        {
            "apiVersion": "trimtab.dev/v1alpha1",
            "kind": "RLTrainingJob",
            "metadata": {"name": "test"},
            "spec": {
                "model": {"path": "model"},
                "code": {"path": "."},
                "data": {"train": {"path": "a.jsonl"}},
                "algorithm": {"grpo": {}},
                "training": {"steps": 1},
                "rewards": [
                    {"function": "exact_match", "weight": 2.0},
                    {"function": function, "name": "odd", "timeoutSeconds": 5.0},
                ],
                "validation": {
                    "everySteps": 1,
                    "data": {"path": "b.jsonl"},
                    "rewards": [{"function": "numeric_match"}],
                },
            },
        }
    )
    return ResolvedJob.resolve(job, attempt=1, base_dir=folder, run_dir=folder / "run")


def run_role(
    tmp_path: Path,
    body: Callable[[Coordinator, "subprocess.Popen[bytes]"], Awaitable[Any]],
    job: ResolvedJob | None = None,
) -> tuple[int, Any]:
    """Start the role against a coordinator, run the test's body; returns the exit code and body's result."""

    async def main() -> tuple[int, Any]:
        resolved = job or resolved_job(tmp_path)
        resolved.save(tmp_path / "resolved.json")
        coordinator = Coordinator(resolved, "first")
        with reserved_port() as port:
            await coordinator.start(port)
            process = start_worker(REWARD, tmp_path / "resolved.json", port)
            try:
                result = await body(coordinator, process)
                return await asyncio.to_thread(process.wait, TIMEOUT_S), result
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    return asyncio.run(asyncio.wait_for(main(), 3 * TIMEOUT_S))


async def joined(coordinator: Coordinator) -> pb.Register:
    _, register = await asyncio.wait_for(coordinator.joined.get(), TIMEOUT_S)
    return register


async def leave(coordinator: Coordinator) -> None:
    assert not await coordinator.server.shutdown_all("the test is over", ExitCode.OK, timeout_s=TIMEOUT_S)
    await coordinator.close()


def values(answer: dict[str, Any]) -> dict[str, tuple[float, float]]:
    return {score["name"]: (score["value"], score["weight"]) for score in answer["scores"]}


def test_scores_and_errors_come_back_by_episode(tmp_path: Path) -> None:
    async def body(coordinator: Coordinator, process: "subprocess.Popen[bytes]") -> Any:
        register = await joined(coordinator)
        for response in ("42", "raise", "hang", "exit", "nan", "modules"):
            await coordinator.ask(response, response, answer="42")
        await coordinator.ask("held-out", "it is 42", rewards="validation", answer="42")
        answers = await coordinator.answers(7)
        await leave(coordinator)
        return register, answers

    code, (register, answers) = run_role(tmp_path, body)
    assert code == 0
    assert register.capacity == 2
    assert values(answers["42"])["exact_match"] == (1.0, 2.0)
    assert values(answers["42"])["odd/length"] == (2.0, 1.0)
    assert answers["42"]["errors"] == []
    assert answers["42"]["latency_s"] >= 0
    assert values(answers["held-out"]) == {"numeric_match": (1.0, 1.0)}
    assert values(answers["modules"])["odd"] == (0.0, 1.0)
    kinds = {name: answers[name]["errors"][0]["kind"] for name in ("raise", "hang", "exit", "nan")}
    assert kinds == {"raise": "raised", "hang": "timeout", "exit": "died", "nan": "not_finite"}
    assert all(error["name"] == "odd" for name in kinds for error in answers[name]["errors"])


def test_coordinator_that_comes_back_elsewhere_is_followed(tmp_path: Path) -> None:
    async def body(coordinator: Coordinator, process: "subprocess.Popen[bytes]") -> Any:
        await joined(coordinator)
        await coordinator.ask("one", "42", answer="42")
        first = await coordinator.answers(1)
        await coordinator.close()
        second_coordinator = Coordinator(coordinator.job, "second")
        await second_coordinator.start(coordinator.port)
        await joined(second_coordinator)
        await second_coordinator.ask("two", "42", answer="42")
        second = await second_coordinator.answers(1)
        await leave(second_coordinator)
        return first, second

    code, (first, second) = run_role(tmp_path, body)
    assert code == 0
    assert values(second["two"])["odd/pid"][0] > 0
    assert values(first["one"])["exact_match"] == values(second["two"])["exact_match"]


def test_request_repeated_while_it_runs_is_answered_once(tmp_path: Path) -> None:
    async def body(coordinator: Coordinator, process: "subprocess.Popen[bytes]") -> Any:
        await joined(coordinator)
        for _ in range(3):
            await coordinator.ask("slow", "hang", answer="42")
        await coordinator.answers(1)
        await coordinator.ask("after", "42", answer="42")
        answers = await coordinator.answers(1)
        await leave(coordinator)
        return answers

    code, answers = run_role(tmp_path, body)
    assert code == 0
    assert list(answers) == ["after"]


def test_worker_processes_die_with_a_killed_role(tmp_path: Path) -> None:
    async def body(coordinator: Coordinator, process: "subprocess.Popen[bytes]") -> Any:
        await joined(coordinator)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 2
        process.send_signal(signal.SIGKILL)
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, TIMEOUT_S)
        await coordinator.close()
        return alive

    code, alive = run_role(tmp_path, body)
    assert code == -signal.SIGKILL
    assert not alive


def test_function_that_cannot_be_imported_is_told_to_the_coordinator(tmp_path: Path) -> None:
    async def body(coordinator: Coordinator, process: "subprocess.Popen[bytes]") -> Any:
        told = await asyncio.wait_for(coordinator.failed.get(), TIMEOUT_S)
        await asyncio.to_thread(process.wait, TIMEOUT_S)
        await coordinator.close()
        return told

    code, (message, kind) = run_role(tmp_path, body, resolved_job(tmp_path, "absent_rewards:score"))
    assert (code, kind) == (ExitCode.USER_ERROR, "user")
    assert "spec.rewards[1].function: cannot import 'absent_rewards:score'" in message


def test_unknown_command_is_answered_with_an_error(tmp_path: Path) -> None:
    async def body(coordinator: Coordinator, process: "subprocess.Popen[bytes]") -> Any:
        await joined(coordinator)
        with pytest.raises(Exception, match="takes no command such as update") as raised:
            await coordinator.server.call(
                WorkerKey(REWARD, 0, 0, 0, 1),
                pb.Command(key="k", update=pb.Update(step=1)),
                timeout_s=TIMEOUT_S,
            )
        await leave(coordinator)
        return raised.value

    code, error = run_role(tmp_path, body)
    assert code == 0
    assert error.kind == "internal"
