"""The coordinator's process: sockets, signals, and how the job ends. Called by `trimtab.roles.worker`.

On a laptop the first SIGTERM stops the job with a checkpoint. In a pod it only says that this pod goes: the
process ends at once, and the one that comes, wherever it runs, takes up the journal. How the job ended is
left in the pod's termination log (`FinalWord`).

exit 0   complete, or stopped with a checkpoint
65       a later start of the coordinator has taken over (this one's machine was thought to be gone)
64, 66   the job has failed for a reason that only an edit cures (user error, out of memory)
68       in a pod: told to go; another one takes up where the journal stands
69       the job has failed: a deadline passed or a worker could not do its part
1        a bug: whoever started this process starts it again, and it takes up where the journal stands
"""

import asyncio
import contextlib
import errno
import json
import logging
import math
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from trimtab.api import ResolvedJob
from trimtab.api.conditions import Phase, Reason
from trimtab.comm.control import ControlServer
from trimtab.comm.experience import ExperienceHub
from trimtab.errors import DeadlineError, ExitCode, OutOfMemoryError, TrimtabError, UserError
from trimtab.observability.prometheus import start_metrics_server
from trimtab.observability.report import write_report
from trimtab.roles.coordinator.control import JobControl, Wishes
from trimtab.roles.coordinator.coordinator import Coordinator
from trimtab.roles.coordinator.endpoints import MetricsEndpoints
from trimtab.roles.coordinator.journal import Journal, SupersededError, write_atomically
from trimtab.roles.coordinator.membership import Members, desired_members
from trimtab.roles.coordinator.status import ENDED, StatusBoard
from trimtab.roles.environment import ADDRESS_FILE, WorkerEnvironment
from trimtab.roles.leaving import SIGNALS
from trimtab.roles.registration import tls_of, worker_key

log = logging.getLogger(__name__)

HEARTBEATS_PER_TIMEOUT = 6
GOODBYE_S = 15.0
_CURABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of the operating system that a user can do something about."""


def run(env: WorkerEnvironment, job: ResolvedJob) -> int:
    """Run the job to its end; returns the exit code."""
    with _curable_errors(Path(job.run_dir)):
        return asyncio.run(_run(env, job))


async def _run(env: WorkerEnvironment, job: ResolvedJob) -> int:
    run_dir = Path(job.run_dir)
    _make(run_dir)
    journal = Journal(run_dir / "journal")
    journal.take(attempt=job.attempt, incarnation=env.incarnation)  # from here on all files here are ours
    instance = uuid.uuid4().hex[:8]
    members = Members(desired_members(job))
    board = StatusBoard(job, members, total_steps=job.job.spec.training.steps or 0)
    endpoints = MetricsEndpoints(run_dir)
    endpoints.follow(members)
    wishes = Wishes()
    control = JobControl(board, wishes, max_response_tokens=job.job.spec.training.max_response_tokens)
    if env.in_pod:
        _go_when_told(board)
    else:
        _stop_when_told(control, grace_s=job.job.spec.deadlines.stop_grace_seconds)
    tls = tls_of(env)
    hub = ExperienceHub(None if tls is None else tls.curve_server())
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
        on_leaving=members.leaving,
        job_control=control,
        tls=tls,
    )
    coordinator = Coordinator(
        job,
        instance=instance,
        members=members,
        board=board,
        wishes=wishes,
        server=server,
        hub=hub,
        journal=journal,
        arrival_s=_arrival_s(env, job),
    )
    control.take_sizes = coordinator.resize
    try:
        await server.start(f"{env.bind_host}:{env.coordinator.rpartition(':')[2]}")
        endpoints.add(worker_key(env), env.host, start_metrics_server(env.metrics_port, address=env.host))
        if env.in_pod:  # on a laptop the launcher has left it
            write_atomically(run_dir / ADDRESS_FILE, f"{env.coordinator}\n".encode())
        return await _to_the_end(coordinator, board, server, endpoints, env, run_dir)
    finally:
        await server.close("the coordinator ends")
        hub.close()


@contextlib.contextmanager
def _curable_errors(run_dir: Path) -> Iterator[None]:
    """Tell a disk that is full or may not be written as what it is; other errors of the system are bugs."""
    try:
        yield
    except OSError as failure:
        if failure.errno not in _CURABLE:
            raise
        raise UserError(
            f"cannot write {failure.filename or run_dir}: {failure.strerror}; free space or choose another "
            "--run-dir (in a cluster: spec.storage)"
        ) from failure


def _make(run_dir: Path) -> None:
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the run directory {run_dir} cannot be made ({error.strerror}); the job's storage has to be "
            "writable for its pods (in a cluster: spec.storage, and the pods' fsGroup)"
        ) from error


def _arrival_s(env: WorkerEnvironment, job: ResolvedJob) -> float:
    """How long to wait for workers. In a cluster their pods may wait for a node before that."""
    spec = job.job.spec
    if not env.in_pod:
        return spec.deadlines.registration_seconds
    return spec.pending_deadline_seconds + spec.deadlines.registration_seconds


async def _to_the_end(
    coordinator: Coordinator,
    board: StatusBoard,
    server: ControlServer,
    endpoints: MetricsEndpoints,
    env: WorkerEnvironment,
    run_dir: Path,
) -> int:
    started = time.monotonic()
    error: TrimtabError | None = None
    try:
        with _curable_errors(run_dir):
            phase = await coordinator.run()
    except SupersededError:
        raise  # the job is not over: its workers come to the one that has the journal
    except TrimtabError as failure:
        phase, error = Phase.FAILED, failure
    await _end(board, phase, error, run_dir=run_dir, wall_s=time.monotonic() - started)
    endpoints.close()
    if env.in_pod:
        if env.termination_log is not None:
            board.final_word().write(env.termination_log)
        (run_dir / ADDRESS_FILE).unlink(missing_ok=True)
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
        "metrics": {k: v for k, v in board.metrics.items() if math.isfinite(v)},
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
    board.keep_members()
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
    """Listen where the coordinator before this one did, so that the workers' sockets find it again.

    One that runs elsewhere now tells them its own address when they register.
    """
    directory.mkdir(parents=True, exist_ok=True)
    note = directory / "experience.address"
    before = note.read_text() if note.exists() else ""
    if before.startswith(f"tcp://{env.bind_host}:"):
        try:
            return hub.bind(before)
        except UserError as error:
            log.warning("%s; the workers are told another address", error)
    endpoint = hub.bind(f"tcp://{env.bind_host}:*")
    write_atomically(note, endpoint.encode())
    return endpoint


def _go_when_told(board: StatusBoard) -> None:
    """End at once when this pod is to go, unless the job has ended and only good-byes are left to say."""

    def go(number: int) -> None:
        name = signal.Signals(number).name
        if board.phase in ENDED:
            log.warning("%s: the job has ended, leaving in a moment", name)
            return
        log.warning("%s: this pod goes; the next coordinator takes up the journal", name)
        os._exit(ExitCode.RESTART_REQUESTED)

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, go, number)


def _stop_when_told(control: JobControl, *, grace_s: float) -> None:
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
    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)
