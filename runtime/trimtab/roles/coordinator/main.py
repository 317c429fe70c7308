"""The coordinator's process: sockets, signals, and how the job ends. Called by `trimtab.roles.worker`.

exit 0   complete, or stopped with a checkpoint
64, 66   the job has failed for a reason that only an edit cures (user error, out of memory)
69       the job has failed: a deadline passed or a worker could not do its part
1        a bug: whoever started this process starts it again, and it takes up where the journal stands
"""

import asyncio
import errno
import json
import logging
import os
import signal
import time
import uuid
from pathlib import Path

from trimtab.api import ResolvedJob
from trimtab.comm.control import ControlServer
from trimtab.comm.experience import ExperienceHub
from trimtab.errors import DeadlineError, ExitCode, OutOfMemoryError, TrimtabError, UserError
from trimtab.observability.prometheus import start_metrics_server
from trimtab.observability.report import write_report
from trimtab.roles.coordinator.control import JobControl, Wishes
from trimtab.roles.coordinator.coordinator import Coordinator
from trimtab.roles.coordinator.endpoints import MetricsEndpoints
from trimtab.roles.coordinator.journal import write_atomically
from trimtab.roles.coordinator.membership import Members, desired_members
from trimtab.roles.coordinator.status import Phase, Reason, StatusBoard
from trimtab.roles.environment import WorkerEnvironment
from trimtab.roles.registration import worker_key

log = logging.getLogger(__name__)

HEARTBEATS_PER_TIMEOUT = 6
GOODBYE_S = 15.0
_CURABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of the operating system that a user can do something about."""


def run(env: WorkerEnvironment, job: ResolvedJob) -> int:
    """Run the job to its end; returns the exit code."""
    return asyncio.run(_run(env, job))


async def _run(env: WorkerEnvironment, job: ResolvedJob) -> int:
    run_dir = Path(job.run_dir)
    instance = uuid.uuid4().hex[:8]
    members = Members(desired_members(job))
    board = StatusBoard(job, members, total_steps=job.job.spec.training.steps or 0)
    endpoints = MetricsEndpoints(run_dir)
    endpoints.follow(members)
    wishes = Wishes()
    control = JobControl(board, wishes, max_response_tokens=job.job.spec.training.max_response_tokens)
    _take_signals(control, grace_s=job.job.spec.deadlines.stop_grace_seconds)
    hub = ExperienceHub()
    endpoint = _bind_again(hub, env, run_dir / "journal")
    heartbeat_s = job.job.spec.deadlines.heartbeat_seconds
    server = ControlServer(
        training_identity=job.training_identity,
        attempt=job.attempt,
        heartbeat_interval_s=heartbeat_s / HEARTBEATS_PER_TIMEOUT,
        heartbeat_timeout_s=heartbeat_s,
        experience_address=endpoint,
        coordinator_instance=instance,
        admit=members.admit,
        on_join=members.joined,
        on_leave=members.left,
        on_failed=members.failed,
        job_control=control,
    )
    coordinator = Coordinator(
        job, instance=instance, members=members, board=board, wishes=wishes, server=server, hub=hub
    )
    try:
        await server.start(f"{env.host}:{env.coordinator.rpartition(':')[2]}")
        endpoints.add(worker_key(env), env.host, start_metrics_server(address=env.host))
        return await _to_the_end(coordinator, board, server, run_dir)
    finally:
        await server.close("the coordinator ends")
        endpoints.close()
        hub.close()


async def _to_the_end(
    coordinator: Coordinator, board: StatusBoard, server: ControlServer, run_dir: Path
) -> int:
    started = time.monotonic()
    error: TrimtabError | None = None
    try:
        phase = await coordinator.run()
    except TrimtabError as failure:
        phase, error = Phase.FAILED, failure
    except OSError as failure:
        if failure.errno not in _CURABLE:
            raise
        where = failure.filename or run_dir
        phase, error = (
            Phase.FAILED,
            UserError(f"cannot write {where}: {failure.strerror}; free space or choose another --run-dir"),
        )
    await _end(board, phase, error, run_dir=run_dir, wall_s=time.monotonic() - started)
    here = await server.shutdown_all(f"the job is {phase.lower()}", ExitCode.OK, timeout_s=GOODBYE_S)
    if here:
        log.warning("still here %.0f s after the end: %s", GOODBYE_S, ", ".join(map(str, here)))
    if error is not None:
        raise _final(error)
    return ExitCode.OK


async def _end(
    board: StatusBoard, phase: Phase, error: TrimtabError | None, *, run_dir: Path, wall_s: float
) -> None:
    """Leave the run directory complete: status, summary, report."""
    board.activity = "writing the report"
    summary = {
        "phase": phase.value,
        "message": str(error) if error else "",
        "step": board.step,
        "total_steps": board.total_steps,
        "wall_s": wall_s,
        "metrics": {k: v for k, v in board.metrics.items() if v == v},
        "checkpoint": board.checkpoint[0],
        "model": str(run_dir / "model") if (run_dir / "model" / "config.json").exists() else "",
        "warnings": board.warnings,
    }
    try:
        write_atomically(run_dir / "summary.json", json.dumps(summary, indent=2).encode())
        await asyncio.to_thread(write_report, run_dir)
    except OSError as failure:
        log.warning("the end of the run is not fully written (%s); `trimtab report` makes it", failure)
    board.phase = phase
    board.end_reason, board.end_message = _reason(phase, error), str(error) if error else ""
    board.activity = board.end_message or phase.value.lower()
    try:
        board.save(run_dir / "status.json")
    except OSError as failure:
        log.warning("status.json is not up to date: %s", failure)
    if error is not None:
        log.error("the job failed: %s", error)


def _reason(phase: Phase, error: TrimtabError | None) -> Reason:
    if isinstance(error, UserError):
        return Reason.USER_ERROR
    if isinstance(error, OutOfMemoryError):
        return Reason.OUT_OF_MEMORY
    if isinstance(error, DeadlineError):
        return Reason.DEADLINE_EXCEEDED
    if error is not None:
        return Reason.INTERNAL_ERROR
    return Reason.STEPS_DONE if phase is Phase.COMPLETE else Reason.STOP_REQUESTED


def _final(error: TrimtabError) -> TrimtabError:
    """The error with an exit code that says the job is over, not just this process."""
    if error.exit_code == ExitCode.INTERNAL:
        final = TrimtabError(str(error))
        final.exit_code = ExitCode.JOB_FAILED
        return final
    return error


def _bind_again(hub: ExperienceHub, env: WorkerEnvironment, directory: Path) -> str:
    """Listen where the coordinator before this one did, so that the workers' sockets find it again."""
    directory.mkdir(parents=True, exist_ok=True)
    note = directory / "experience.address"
    if note.exists():
        try:
            return hub.bind(note.read_text())
        except UserError as error:
            log.warning("%s; the workers are told another address", error)
    endpoint = hub.bind(f"tcp://{env.host}:*")
    write_atomically(note, endpoint.encode())
    return endpoint


def _take_signals(control: JobControl, *, grace_s: float) -> None:
    """The first signal stops with a checkpoint, the second at once."""
    received: list[int] = []

    def stop(number: int) -> None:
        if received:
            log.warning("second %s: ending at once", signal.Signals(number).name)
            os._exit(128 + number)
        log.warning(
            "%s: finishing the step and saving (%.0f s at most)", signal.Signals(number).name, grace_s
        )
        received.append(number)
        control.request_stop(signal.Signals(number).name, grace_s)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
