"""RunningReplica: the processes of one replica, from their start to their end. On the launcher's loop."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

from trimtab.errors import UserError
from trimtab.roles.environment import PodEnvironment

AGENT_COMMAND: Final = (sys.executable, "-m", "trimtab.roles.agent")
KILL_AFTER_S: Final = 10.0
"""An agent told to end at once gets this long to clear up below it."""


@dataclass(frozen=True)
class Ended:
    """How a replica ended: the first failing pod's exit code (0: all went well) and its last words."""

    code: int
    message: str = ""


@dataclass
class RunningReplica:
    """One incarnation of a replica."""

    pods: Sequence[tuple[PodEnvironment, dict[str, str]]]
    command: Sequence[str]
    _processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def run(self) -> Ended:
        """Start the pods and wait: until all ended well, or one failed and the others were ended.

        Cancelled, it ends the pods at once and waits for that.
        """
        try:
            for env, variables in self.pods:
                self._processes.append(await self._start(env, variables))
            waits = [asyncio.create_task(process.wait()) for process in self._processes]
            pending = set(waits)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                failed = [wait for wait in done if wait.result() != 0]
                if failed:
                    first = waits.index(failed[0])
                    return Ended(_positive(failed[0].result()), self._last_words(first))
            return Ended(0)
        finally:
            await self.end()

    def signal(self, number: int) -> bool:
        """Send a signal to every agent that still runs; returns whether there was one."""
        sent = False
        for process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)
                    sent = True
        return sent

    async def end(self) -> None:
        """End whatever still runs, at once: SIGQUIT lets the agents clear up, SIGKILL follows."""
        self.signal(signal.SIGQUIT)
        running = [asyncio.ensure_future(p.wait()) for p in self._processes if p.returncode is None]
        if not running:
            return
        _, late = await asyncio.wait(running, timeout=KILL_AFTER_S)
        if late:
            self.signal(signal.SIGKILL)
            await asyncio.wait(late)

    async def _start(self, env: PodEnvironment, variables: dict[str, str]) -> asyncio.subprocess.Process:
        assert env.log_dir is not None
        assert env.termination_log is not None
        env.termination_log.unlink(missing_ok=True)
        with _open_log(env, env.log_dir / f"{env.pod_name}.log") as log:
            return await asyncio.create_subprocess_exec(
                *self.command,
                env=variables,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log.fileno(),
                stderr=log.fileno(),
                start_new_session=True,  # Ctrl-C in the terminal is the launcher's to pass on
            )

    def _last_words(self, index: int) -> str:
        path = self.pods[index][0].termination_log
        assert path is not None
        return path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""


def _open_log(env: PodEnvironment, path: Path) -> TextIO:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    try:
        log = path.open("a", encoding="utf-8")
        log.write(f"=== {env.pod_name} incarnation {env.incarnation} {stamp}\n")
        log.flush()
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; free space or choose another --run-dir"
        ) from error
    return log


def _positive(code: int) -> int:
    """As a shell would say it: 128 + n where signal n ended the agent itself."""
    return code if code >= 0 else 128 - code
