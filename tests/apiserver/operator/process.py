"""The operator as a process, its log, and its endpoints."""

import asyncio
import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from tests.apiserver.server import dying_with_parent

STARTED_S = 120.0


class OperatorProcess:
    """`trimtab-operator run`, with its log in a file."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(dying_with_parent(command), stderr=file, stdout=file)

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    async def logged(self, pattern: str, timeout_s: float = STARTED_S) -> re.Match[str]:
        """Wait until a message matches."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for line in self.lines():
                if found := re.search(pattern, line["message"]):
                    return found
            assert self.process.poll() is None, f"the operator has ended: {self.log.read_text()[-3000:]}"
            await asyncio.sleep(0.05)
        raise AssertionError(f"nothing like {pattern!r} was logged: {self.log.read_text()[-3000:]}")

    async def get(self, path: str) -> tuple[int, str]:
        """Ask its health endpoint."""
        port = (await self.logged(r"on port (\d+)"))[1]
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}{path}") as response,
        ):
            return response.status, await response.text()

    async def ready(self) -> None:
        """Wait until it leads, or stands by."""
        deadline = time.monotonic() + STARTED_S
        while (await self.get("/readyz"))[0] != 200:
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            await asyncio.sleep(0.05)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        families = text_string_to_metric_families((await self.get("/metrics"))[1])
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    async def end(self, number: int = signal.SIGTERM, timeout_s: float = 60.0) -> int:
        """Send a signal, and wait; the exit code."""
        self.process.send_signal(number)
        return await self.ended(timeout_s)

    async def ended(self, timeout_s: float) -> int:
        """Wait for its end; the exit code."""
        return await asyncio.to_thread(self.process.wait, timeout_s)

    def kill(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait(10)
