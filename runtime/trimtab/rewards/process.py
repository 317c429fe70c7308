"""One reward worker process, seen from its parent.

Used by `RewardPool` on the reward role's event loop. Whatever happens in the worker ends as a
`ScoreError` for the response at hand; afterwards `alive` says whether the worker can take another.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from trimtab.errors import DeadlineError, UserError, WorkerLostError
from trimtab.rewards.calls import (
    HEADER,
    RewardCall,
    Score,
    ScoreError,
    ScoreResult,
    decode,
    encode,
    setup_message,
)

EXIT_WAIT_S = 10.0

_SIGNAL_NAMES = {int(known): known.name for known in signal.Signals}


def worker_command() -> list[str]:
    """How a worker is started; `-P` keeps the current folder out of its import path."""
    return [sys.executable, "-P", "-u", "-m", "trimtab.rewards.worker", str(os.getpid())]


class RewardProcess:
    """Starts one worker, scores one response at a time, kills it past a deadline.

    `start`, then `score` as often as `alive` holds, then `kill`. Not for several tasks at once.
    """

    def __init__(
        self,
        lists: Mapping[str, Sequence[RewardCall]],
        *,
        code_paths: Sequence[str],
        memory_limit_bytes: int | None,
        start_timeout_s: float,
    ) -> None:
        self._lists = lists
        self._setup = setup_message(lists, code_paths=code_paths, memory_limit_bytes=memory_limit_bytes)
        self._start_timeout_s = start_timeout_s
        self._process: asyncio.subprocess.Process | None = None

    @property
    def alive(self) -> bool:
        """Whether it can take a response now."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process and import the functions in it. Raises `UserError` where one cannot be used."""
        await self.kill()
        self._process = await asyncio.create_subprocess_exec(
            *worker_command(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._write(self._setup)
                answer = await self._read()
        except TimeoutError:
            await self.kill()
            names = ", ".join({call.function for calls in self._lists.values() for call in calls})
            raise DeadlineError(
                f"reward worker: importing {names} took longer than {self._start_timeout_s:g} s; "
                "move slow work out of the module's top level"
            ) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise WorkerLostError(
                f"reward worker: the process {await self._end()} while it imported"
            ) from None
        except BaseException:
            await self.kill()
            raise
        if answer["problems"]:
            await self.kill()
            raise UserError("\n".join(answer["problems"]))

    async def score(
        self, list_name: str, *, prompt: str, response: str, fields: Mapping[str, Any]
    ) -> ScoreResult:
        """Run the list's functions on one response, each within its deadline."""
        scores: list[Score] = []
        request = {"list": list_name, "prompt": prompt, "response": response, "fields": fields}
        finished = False
        try:
            for position, call in enumerate(self._lists[list_name]):
                answer = await self._answer(call, request if position == 0 else None)
                if "error" in answer:
                    finished = not answer.get("leaving")
                    error = ScoreError(name=call.name, error=answer["error"], kind=answer["kind"])
                    return ScoreResult(tuple(scores), (error,))
                scores += [
                    Score(name=f"{call.name}/{part}" if part else call.name, value=value, weight=call.weight)
                    for part, value in answer["values"].items()
                ]
            finished = True
        finally:
            if not finished:  # failed, or this task was cancelled in the middle of a call
                await self.kill()
        return ScoreResult(tuple(scores))

    async def kill(self) -> None:
        """End the process and what it has started; returns when it is gone. Safe to repeat."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await self._reap(process)

    async def _answer(self, call: RewardCall, request: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            async with asyncio.timeout(call.timeout_s):
                if request is not None:
                    await self._write(request)
                return await self._read()
        except TimeoutError:
            return {"error": f"took longer than {call.timeout_s:g} s", "kind": "timeout", "leaving": True}
        except (asyncio.IncompleteReadError, ConnectionError):
            return {"error": f"the process {await self._end()}", "kind": "died", "leaving": True}

    async def _write(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(encode(message))
        await self._process.stdin.drain()

    async def _read(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        header = await self._process.stdout.readexactly(HEADER.size)
        return decode(await self._process.stdout.readexactly(HEADER.unpack(header)[0]))

    async def _end(self) -> str:
        """How the process ended, once its output is closed."""
        process = self._process
        assert process is not None
        try:
            async with asyncio.timeout(1.0):
                code = await process.wait()
        except TimeoutError:
            await self.kill()
            return "closed its output and had to be killed"
        if code >= 0:
            return f"ended with exit code {code}"
        if code == -signal.SIGKILL:
            return "was killed by SIGKILL, as the kernel does where memory runs out"
        return f"was killed by {_SIGNAL_NAMES.get(-code, f'signal {-code}')}"

    @staticmethod
    async def _reap(process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(EXIT_WAIT_S):
                await process.wait()
        except TimeoutError:
            raise DeadlineError(
                f"reward worker: process {process.pid} is still there {EXIT_WAIT_S:g} s after SIGKILL"
            ) from None
