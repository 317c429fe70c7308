"""One rank of a role: `python -m trimtab.roles.worker`, started by the agent. Runs on the main thread.

Reads the environment and the resolved job, sets up logging, hands over to the role, and turns what the
role raises into an exit code and, where the error is meant for people, one line.
"""

import importlib
import logging
import os
import signal
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Final

from trimtab.api import ResolvedJob
from trimtab.comm.control.errors import error_kind
from trimtab.errors import ExitCode, TrimtabError
from trimtab.roles.environment import (
    ACTOR,
    COORDINATOR,
    ERROR_PREFIX,
    REWARD,
    ROLLOUT,
    WorkerEnvironment,
)
from trimtab.roles.leaving import leave_at_once

logger = logging.getLogger(__name__)

_MODULES: Final = {
    COORDINATOR: "trimtab.roles.coordinator.main",
    ACTOR: "trimtab.roles.actor",
    ROLLOUT: "trimtab.roles.rollout",
    REWARD: "trimtab.roles.reward",
}
"""Each has `run(env: WorkerEnvironment, job: ResolvedJob) -> int`; imported only where it runs."""


def main(environ: Mapping[str, str] | None = None) -> int:
    """Run this process's role; returns the exit code."""
    try:
        env = WorkerEnvironment.from_environ(os.environ if environ is None else environ)
        set_up_logging(env)
        if env.in_pod:
            leave_at_once()
        elif env.role != COORDINATOR:
            leave_signals_to_the_coordinator()
        job = ResolvedJob.load(env.job_path)
        role = importlib.import_module(_MODULES[env.role])
        code: int = role.run(env, job)
        return code
    except Exception as error:  # noqa: BLE001 - the edge of the process: every error becomes an exit code
        return report(error)


def set_up_logging(env: WorkerEnvironment) -> None:
    """Log to stderr, each line with time, level and the worker's name; the agent forwards it."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s {env.worker_name} %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    for noisy in ("httpx", "filelock", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def leave_signals_to_the_coordinator() -> None:
    """On a laptop workers end when the coordinator says so, after its checkpoint: the first signal waits."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        name = signal.Signals(number).name
        text = f"{name}: waiting for the coordinator's word; a second one ends at once\n"
        os.write(sys.stderr.fileno(), text.encode())  # logging may be what the signal interrupted

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def report(error: Exception) -> int:
    """Write the error to stderr, with its traceback where it is a bug; returns the exit code."""
    code = _exit_code(error)
    if code == ExitCode.INTERNAL:
        logging.getLogger().error("failed", exc_info=error)
    text = str(error) or type(error).__name__
    if not isinstance(error, TrimtabError):
        text = f"{type(error).__name__}: {text}"
    print(f"{ERROR_PREFIX}{text}", file=sys.stderr, flush=True)  # noqa: T201
    return int(code)


def _exit_code(error: Exception) -> ExitCode:
    if isinstance(error, TrimtabError):
        return ExitCode(error.exit_code)
    return ExitCode.OUT_OF_MEMORY if error_kind(error) == "oom" else ExitCode.INTERNAL


if __name__ == "__main__":
    sys.exit(main())
