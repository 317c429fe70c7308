"""`run_job`: runs one job to its end on this machine. Called by `trimtab run`, on the main thread.

One asyncio loop; one task per replica keeps it running, one polls the coordinator's status (progress and
restart requests), one follows its Watch stream for the view.

    a replica ends --policy.judge--> RESTART        started again with a higher incarnation, after a pause;
                                                    the coordinator on the same port, an actor all at once
                                     JOB_FAILED     its message is shown, everything is ended
                                     JOB_DONE       workers get a grace to leave, then are ended
    restart request for this incarnation ---------> as RESTART
    first Ctrl-C or SIGTERM ----------------------> JobControl.Stop; nothing is restarted any more
    second ---------------------------------------> everything is ended at once

Should the launcher itself be killed, its agents end with it (see `roles.agent`).
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import grpc
import grpc.aio

from trimtab import checkpoint
from trimtab.api import ResolvedJob, RLTrainingJob, load_job
from trimtab.comm.control.constants import channel_options
from trimtab.errors import ExitCode, UserError
from trimtab.local.pods import HOST, Replica, check_local, local_gpus, pod_environ, replicas_of
from trimtab.local.policy import RestartBudget, Verdict, describe_exit, judge
from trimtab.local.replica import AGENT_COMMAND, Ended, RunningReplica
from trimtab.local.run_dir import RESOLVED_FILE, RunDirectory, reserved_port
from trimtab.observability.live import LiveView
from trimtab.observability.run_data import load_run, summary_rows
from trimtab.roles.environment import COORDINATOR, ERROR_PREFIX
from trimtab.v1 import job_control_pb2 as jc
from trimtab.v1 import job_control_pb2_grpc as jc_grpc

POLL_INTERVAL_S: Final = 1.0
CALL_TIMEOUT_S: Final = 5.0
GOODBYE_S: Final = 20.0
"""Workers get this long to leave once the coordinator is gone."""
LAST_WORD_S: Final = 3.0
"""The coordinator gets this long to end by itself, with a summary, when a worker's error is final."""
SAVE_MARGIN_S: Final = 60.0
_CHANNEL_OPTIONS: Final = (
    *channel_options(),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class View(Protocol):
    """Where progress is shown; `LiveView` in a terminal."""

    def update(self, status: jc.JobStatus) -> None:
        """Take the newest status."""

    def log_line(self, text: str) -> None:
        """Show a line."""

    def close(self, summary: Mapping[str, object] | None = None) -> None:
        """End, with the summary's rows."""


@dataclass(frozen=True)
class Outcome:
    """How the job ended."""

    code: int
    message: str = ""
    """Why, where it failed."""


def run_job(
    job_path: Path,
    *,
    run_dir: Path | None = None,
    resume: bool = False,
    make_view: Callable[[int, str], View] = LiveView,
    agent_command: Sequence[str] = AGENT_COMMAND,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Run the job and return the exit code: 0 when complete or stopped with a checkpoint.

    `run_dir` is `runs/<name of the job>` by default. `resume` continues the run that is there, whatever
    `spec.checkpoint.resume` says. UserError for what is wrong before anything has started.
    """
    job = load_job(job_path)
    with RunDirectory(run_dir or Path("runs") / job.name) as directory, reserved_port() as port:
        job = _settle_resume(job, directory, resume=resume)
        unnumbered = ResolvedJob.resolve(
            job, attempt=1, base_dir=job_path.absolute().parent, run_dir=directory.path
        )
        environ = dict(os.environ if environ is None else environ)
        check_local(unnumbered, local_gpus(environ))
        # Another run directory may share the checkpoint folder: a number that was given twice would pass a
        # checkpoint of the other run off as one of this start.
        folder = job.spec.checkpoint.directory(directory.path)
        attempt = checkpoint.claim_attempt(str(folder), above=directory.last_attempt())
        resolved = unnumbered.model_copy(update={"attempt": attempt, "first_attempt": attempt})
        directory.raise_attempt(attempt)
        resolved.save(directory.path / RESOLVED_FILE)
        address = f"{HOST}:{port}"
        directory.begin(job_path, address)
        view = make_view(job.spec.training.steps or 0, job.name)
        view.log_line(f"run directory {directory.path}, attempt {attempt}")
        launcher = Launcher(
            resolved,
            directory=directory,
            address=address,
            view=view,
            agent_command=agent_command,
            environ=environ,
        )
        try:
            outcome = asyncio.run(launcher.run())
        except BaseException:
            view.close()
            raise
        if outcome.message:
            view.log_line(f"error: {outcome.message}")
        view.close(summary_rows(load_run(directory.path)))
        return outcome.code


def _settle_resume(job: RLTrainingJob, directory: RunDirectory, *, resume: bool) -> RLTrainingJob:
    """The job as it is to be run here, or UserError where the run directory and its policy do not fit."""
    policy = job.spec.checkpoint.resume
    before = directory.last_attempt()
    if before == 0:
        if resume:
            raise UserError(f"--resume: {directory.path} holds no run to continue")
        return job
    if policy == "never" and not resume:
        raise UserError(
            f"spec.checkpoint.resume is never, and {directory.path} holds a run already (attempt {before}); "
            "pass --resume to continue it, or choose another --run-dir"
        )
    identity, previous = (
        ResolvedJob.resolve(
            job, attempt=1, base_dir=directory.path, run_dir=directory.path
        ).training_identity,
        directory.last_identity(),
    )
    if previous is not None and previous != identity:
        raise UserError(
            f"{directory.path} holds another training ({previous[:12]}, this job is {identity[:12]}): model, "
            "data, algorithm, precision or seed differ; choose another --run-dir"
        )
    if policy == "never":
        resuming = job.spec.checkpoint.model_copy(update={"resume": "auto"})
        return job.model_copy(update={"spec": job.spec.model_copy(update={"checkpoint": resuming})})
    return job


@dataclass
class _Kept:
    """A replica that is kept running, and what is asked of it."""

    replica: Replica
    incarnation: int = 1
    running: RunningReplica | None = None
    process: "asyncio.Task[Ended] | None" = None
    restart_reason: str | None = None
    """Set by a restart request for this incarnation."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class Launcher:
    """One start of a job."""

    def __init__(
        self,
        job: ResolvedJob,
        *,
        directory: RunDirectory,
        address: str,
        view: View,
        agent_command: Sequence[str],
        environ: Mapping[str, str],
    ) -> None:
        self._job = job
        self._directory = directory
        self._address = address
        self._view = view
        self._agent_command = agent_command
        self._environ = environ
        self._kept = [_Kept(replica) for replica in replicas_of(job, local_gpus(environ))]
        self._budget = RestartBudget(job.job.spec.failure_policy.max_restarts)
        self._signals = 0
        self._outcome: asyncio.Future[Outcome] | None = None
        self._said = ""
        """Why the job failed, in the coordinator's words, once it has."""
        self._asking: set[asyncio.Task[None]] = set()

    async def run(self) -> Outcome:
        """Start everything, and return when the job has ended and every process with it."""
        loop = asyncio.get_running_loop()
        self._outcome = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_IGN:  # under nohup
                continue
            loop.add_signal_handler(number, self._on_signal, number)
        limit_s = self._job.job.spec.active_deadline_seconds
        if limit_s is not None:
            message = f"spec.activeDeadlineSeconds is {limit_s}: the job ran into it"
            loop.call_later(limit_s, self._end, Outcome(ExitCode.JOB_FAILED, message))
        keepers = {asyncio.create_task(self._keep(kept), name=kept.replica.name) for kept in self._kept}
        async with grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS) as channel:
            stub = jc_grpc.JobControlStub(channel)  # type: ignore[no-untyped-call]
            watchers = {asyncio.create_task(self._poll(stub)), asyncio.create_task(self._watch(stub))}
            try:
                outcome = await self._first_end(keepers | watchers)
                if outcome.code == ExitCode.OK:
                    await self._see_off()
                return outcome
            finally:
                for task in (*watchers, *self._asking, *keepers):
                    task.cancel()
                await asyncio.gather(*watchers, *self._asking, *keepers, return_exceptions=True)

    async def _first_end(self, tasks: "set[asyncio.Task[None]]") -> Outcome:
        """The outcome; a task that fails is a bug, and is raised."""
        assert self._outcome is not None
        waiting: set[asyncio.Future[Outcome] | asyncio.Task[None]] = {self._outcome, *tasks}
        while not self._outcome.done():
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in done - {self._outcome}:
                future.result()
            waiting -= done
        return self._outcome.result()

    async def _see_off(self) -> None:
        """Let the workers leave, as the coordinator has told them to."""
        leaving = [kept.process for kept in self._kept if kept.process is not None]
        if leaving:
            await asyncio.wait(leaving, timeout=GOODBYE_S)

    def _end(self, outcome: Outcome) -> None:
        assert self._outcome is not None
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    async def _keep(self, kept: _Kept) -> None:
        """Run a replica, again and again, until the job has ended."""
        assert self._outcome is not None
        coordinator = kept.replica.role == COORDINATOR
        while True:
            ended = await self._run_once(kept)
            if self._outcome.done():
                return
            verdict = Verdict.RESTART if ended is None else judge(kept.replica.role, ended.code)
            if verdict is Verdict.JOB_DONE:
                self._end(Outcome(ExitCode.OK))
                return
            if verdict is Verdict.LEFT or (self._signals and not coordinator):
                self._view.log_line(f"{kept.replica.name} has left")
                await kept.wake.wait()
                ended, verdict = None, Verdict.RESTART
            what = (
                f"is to start again ({kept.restart_reason})" if ended is None else describe_exit(ended.code)
            )
            delay_s = None if self._signals else self._pause_before_restart(verdict)
            if delay_s is None:
                await self._give_up(kept, ended or Ended(ExitCode.RESTART_REQUESTED), what)
                return
            words = _own_words(ended.message) if ended is not None else ""
            if words:
                what += f": {words.splitlines()[0]}"
            kept.incarnation += 1
            self._view.log_line(
                f"{kept.replica.name} {what}; starting it again in {delay_s:g} s "
                f"({self._budget.used} of {self._budget.max_restarts} restarts without progress)"
            )
            await asyncio.sleep(delay_s)

    def _pause_before_restart(self, verdict: Verdict) -> float | None:
        """Seconds to wait before the restart; None where there is to be none."""
        if verdict is Verdict.JOB_FAILED:
            return None
        return 0.0 if verdict is Verdict.RESTART_FREE else self._budget.charge()

    async def _run_once(self, kept: _Kept) -> Ended | None:
        """One incarnation; None where it was ended because the coordinator asked for another."""
        kept.restart_reason = None
        kept.wake.clear()
        pods = [
            pod_environ(
                self._job,
                kept.replica,
                node=node,
                incarnation=kept.incarnation,
                coordinator=self._address,
                job_path=self._directory.path / RESOLVED_FILE,
                logs=self._directory.logs,
                environ=self._environ,
            )
            for node in range(kept.replica.nodes)
        ]
        kept.running = RunningReplica(pods, self._agent_command)
        running = kept.process = asyncio.create_task(kept.running.run())
        asked = asyncio.create_task(kept.wake.wait())
        try:
            await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
            return running.result() if running.done() else None
        finally:
            kept.running = kept.process = None
            for task in (running, asked):
                task.cancel()
            await asyncio.gather(running, asked, return_exceptions=True)

    async def _give_up(self, kept: _Kept, ended: Ended, what: str) -> None:
        """End the job because of this replica; a coordinator that knows better gets a moment to say so."""
        if kept.replica.role != COORDINATOR:
            await asyncio.sleep(LAST_WORD_S)
        if self._signals:
            self._end(Outcome(ended.code, f"{kept.replica.name} {what} before it had saved a checkpoint"))
            return
        if ended.code in (ExitCode.USER_ERROR, ExitCode.JOB_FAILED):
            # Where the disk is full, nothing is left of a last word but what was said on the wire.
            message = f"{kept.replica.name}: {_own_words(ended.message) or self._said or what}"
        else:
            message = f"{kept.replica.name} {what}\n{ended.message}".rstrip()
        code = ended.code
        if judge(kept.replica.role, code) is not Verdict.JOB_FAILED:
            code = ExitCode.JOB_FAILED
            message += f"\nall {self._budget.max_restarts} restarts without progress are used up"
        self._end(Outcome(code, f"{message}\nlogs: {self._directory.logs}/{kept.replica.name}-*.log"))

    async def _poll(self, stub: jc_grpc.JobControlStub) -> None:
        """Follow progress and restart requests: level-based, so that a lost answer costs a second."""
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                status = await stub.GetStatus(jc.GetStatusRequest(), timeout=CALL_TIMEOUT_S)
                self._budget.progressed(status.step)
                if not self._signals:
                    self._take_requests(status)
            await asyncio.sleep(POLL_INTERVAL_S)

    def _take_requests(self, status: jc.JobStatus) -> None:
        for request in status.restart_requests:
            worker = request.worker
            for kept in self._kept:
                same = (kept.replica.role, kept.replica.index) == (worker.role, worker.replica)
                # An older incarnation has been replaced already; the request goes when the new one joins.
                if same and worker.incarnation >= kept.incarnation and kept.restart_reason is None:
                    kept.restart_reason = request.reason
                    kept.wake.set()

    async def _watch(self, stub: jc_grpc.JobControlStub) -> None:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for status in stub.Watch(jc.WatchRequest(), wait_for_ready=True):
                    self._view.update(status)
                    self._said = status.message
            await asyncio.sleep(POLL_INTERVAL_S)

    def _on_signal(self, number: int) -> None:
        self._signals += 1
        if self._signals > 1:
            self._view.log_line("ending everything at once")
            self._end(Outcome(128 + number))
            return
        grace_s = self._job.job.spec.deadlines.stop_grace_seconds
        name = signal.Signals(number).name
        self._view.log_line(
            f"{name}: stopping with a checkpoint, the running step gets {grace_s:g} s; "
            "once more ends everything at once"
        )
        self._asking.add(asyncio.create_task(self._stop(name, grace_s)))

    async def _stop(self, reason: str, grace_s: float) -> None:
        """Ask the coordinator to stop; one that does not listen yet has nothing to save, and is ended."""
        deadline_s = grace_s + self._job.job.spec.deadlines.checkpoint_seconds + SAVE_MARGIN_S
        asyncio.get_running_loop().call_later(
            deadline_s,
            self._end,
            Outcome(ExitCode.JOB_FAILED, f"the coordinator did not stop within {deadline_s:g} s"),
        )
        coordinator, signalled = self._kept[0], False
        async with grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS) as channel:
            stub = jc_grpc.JobControlStub(channel)  # type: ignore[no-untyped-call]
            while True:
                try:
                    request = jc.StopRequest(reason=reason, grace_s=grace_s)
                    await stub.Stop(request, timeout=CALL_TIMEOUT_S)
                    return
                except grpc.aio.AioRpcError:
                    # Once only: for a coordinator that is up, a second signal would mean "at once".
                    if not signalled and coordinator.running is not None:
                        signalled = coordinator.running.signal(signal.SIGTERM)
                    await asyncio.sleep(POLL_INTERVAL_S)


def _own_words(termination_message: str) -> str:
    """The worker's message for people, out of what its agent wrote about its end."""
    _, found, text = f"\n{termination_message}".partition(f"\n{ERROR_PREFIX}")
    return text if found else ""
