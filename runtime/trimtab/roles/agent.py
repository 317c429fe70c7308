"""The agent: process 1 of a pod and of its local twin (`trimtab agent`, `python -m trimtab.roles.agent`).

Starts the pod's ranks, each in a session of its own and bound to die with the agent; passes their output
on; forwards SIGTERM and SIGINT, and on SIGQUIT ends everything below it at once; reaps every child, also
orphans that a rank left behind. One thread, no
loop: everything happens in `_Agent._turn`, woken by signals and output.

    running --a rank failed--> stopping (SIGTERM to the others) --grace--> SIGKILL
       |                          |
       | all ranks exited 0       | none left
       v                          v
    exit 0          exit with the first failure's code (128 + n for signal n),
                    its last error lines in the termination log

In a pod, a rank that SIGTERM ended before it could handle it counts as one that left (exit 68): the pod was
told to go. What the coordinator itself has written into the termination log stays.
"""

import contextlib
import ctypes
import errno
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psutil

from trimtab.api import ResolvedJob
from trimtab.cores import allowed_cores, num_usable_cores
from trimtab.errors import ExitCode, TrimtabError
from trimtab.roles.environment import (
    ACTOR,
    ERROR_PREFIX,
    FINAL_WORD_BEGINS,
    PodEnvironment,
    WorkerEnvironment,
)

RANK_COMMAND: Final = (sys.executable, "-m", "trimtab.roles.worker")
PEER_GRACE_S: Final = 5.0
"""Ranks whose peer failed are mostly stuck in a collective with it: they get no longer than this."""

_TAIL_BYTES: Final = 16 * 1024
_TAIL_LINES: Final = 12
_TERMINATION_LOG_BYTES: Final = 4096
"""What Kubernetes reads of it."""
_READ_BYTES: Final = 64 * 1024
_POD_UMASK: Final = 0o002
"""Pods of a job may run as different users; what they share is the group of its volumes."""
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT)


def rank_environments(env: PodEnvironment, job: ResolvedJob) -> list[WorkerEnvironment]:
    """The ranks of this pod: one per GPU for an actor (one on a CPU), one for every other role."""
    roles = job.job.spec.roles
    per_pod, nodes = 1, 1
    if env.role == ACTOR:
        per_pod, nodes = max(1, roles.actor.gpus_per_node), roles.actor.nodes
    elif env.role == "rollout":
        nodes = roles.rollout.nodes
    return [
        WorkerEnvironment(
            **(vars(env) | {"metrics_port": env.metrics_port and env.metrics_port + local_rank}),
            rank=env.node * per_pod + local_rank,
            local_rank=local_rank,
            world_size=nodes * per_pod,
        )
        for local_rank in range(per_pod)
    ]


def thread_environ(num_ranks: int) -> dict[str, str]:
    """How many threads a rank computes with, where the pod's quota is less than the cores that it sees."""
    usable = num_usable_cores()
    if usable >= len(allowed_cores()):
        return {}
    return {"OMP_NUM_THREADS": str(max(1, usable // num_ranks))}


@dataclass
class _Rank:
    env: WorkerEnvironment
    process: "subprocess.Popen[bytes]"
    output: int
    """Descriptor that its output is written to."""
    tail: bytearray = field(default_factory=bytearray)


def run(
    env: PodEnvironment,
    ranks: Sequence[WorkerEnvironment],
    *,
    environ: Mapping[str, str],
    command: Sequence[str] = RANK_COMMAND,
    peer_grace_s: float = PEER_GRACE_S,
) -> int:
    """Run the pod to its end and return its exit code. Takes over the process's signal handling."""
    return _Agent(env, environ=environ, command=command, peer_grace_s=peer_grace_s).run(ranks)


class _Agent:
    def __init__(
        self, env: PodEnvironment, *, environ: Mapping[str, str], command: Sequence[str], peer_grace_s: float
    ) -> None:
        self._env = env
        self._environ = dict(environ)
        self._command = list(command)
        self._peer_grace_s = peer_grace_s
        self._running: dict[int, _Rank] = {}
        self._signals: list[int] = []
        self._told_to_go = False
        self._first_failure: tuple[_Rank, int] | None = None
        self._kill_at_s: float | None = None
        self._threads: dict[str, str] = {}
        self._selector = selectors.DefaultSelector()

    def run(self, ranks: Sequence[WorkerEnvironment]) -> int:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (*_FORWARDED, signal.SIGQUIT, signal.SIGCHLD):
            signal.signal(number, self._note)
        self._selector.register(wake_read, selectors.EVENT_READ, None)
        if self._env.launcher_pid is not None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != self._env.launcher_pid:  # it died before the line above
                return 128 + signal.SIGTERM
        self._threads = thread_environ(len(ranks))
        try:
            for rank in ranks:
                self._start(rank, several=len(ranks) > 1)
            while self._running:
                self._turn(wake_read)
        finally:
            self._kill_everything()
        if self._first_failure is None:
            return ExitCode.OK
        failed, code = self._first_failure
        if self._told_to_go and code == -signal.SIGTERM:
            return ExitCode.RESTART_REQUESTED
        self._write_termination_log(failed, code)
        return code if code >= 0 else 128 - code

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._signals.append(number)

    def _start(self, env: WorkerEnvironment, *, several: bool) -> None:
        output = sys.stdout.fileno()
        if several and env.log_dir is not None:
            path = env.log_dir / f"{env.pod_name}-{env.rank}.log"
            output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            os.write(output, f"=== {env.worker_name} incarnation {env.incarnation}\n".encode())
        process = subprocess.Popen(  # noqa: S603 - our own module
            self._command,
            env=self._threads | self._environ | env.to_environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_bind_to(os.getpid()),  # safe: the agent has one thread
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        rank = _Rank(env, process, output)
        self._running[process.pid] = rank
        self._selector.register(process.stdout, selectors.EVENT_READ, rank)

    def _turn(self, wake_read: int) -> None:
        timeout = None if self._kill_at_s is None else max(0.0, self._kill_at_s - time.monotonic())
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, _READ_BYTES)
            else:
                self._pass_on(key.data)
        self._forward()
        self._reap()
        if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
            self._kill_at_s = None
            for rank in self._running.values():
                _signal_group(rank, signal.SIGKILL)

    def _pass_on(self, rank: _Rank) -> None:
        """Move what a rank has written to the log, remembering the end of it."""
        pipe = rank.process.stdout
        assert pipe is not None
        while not pipe.closed:
            try:
                chunk = os.read(pipe.fileno(), _READ_BYTES)
            except BlockingIOError:
                return
            if not chunk:
                self._selector.unregister(pipe)
                pipe.close()
                return
            _write_all(rank.output, chunk)
            rank.tail += chunk
            del rank.tail[:-_TAIL_BYTES]

    def _forward(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            self._told_to_go |= self._env.in_pod and number == signal.SIGTERM
            # Where the launcher was killed, nobody would use or end these any more.
            orphaned = self._env.launcher_pid is not None and os.getppid() != self._env.launcher_pid
            for rank in self._running.values():
                if orphaned or number == signal.SIGQUIT:
                    _signal_group(rank, signal.SIGKILL)
                else:
                    _signal_rank(rank, number)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self._running.pop(pid, None)
            if rank is None:
                continue  # an orphan of a rank
            code = os.waitstatus_to_exitcode(status)
            rank.process.returncode = code
            self._ended(rank, code)

    def _ended(self, rank: _Rank, code: int) -> None:
        self._pass_on(rank)
        _signal_group(rank, signal.SIGKILL)  # what it started and left behind
        pipe = rank.process.stdout
        if pipe is not None and not pipe.closed:
            self._selector.unregister(pipe)
            pipe.close()
        if code == 0:
            return
        self._say(f"{rank.env.worker_name} {_how(code)}")
        if self._first_failure is not None:
            return
        self._first_failure = (rank, code)
        if self._running:
            self._kill_at_s = time.monotonic() + self._peer_grace_s
            for other in self._running.values():
                _signal_rank(other, signal.SIGTERM)

    def _kill_everything(self) -> None:
        """Whatever is still below this process, its own sessions included (orphans come to a subreaper)."""
        for rank in self._running.values():
            _signal_group(rank, signal.SIGKILL)
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def _write_termination_log(self, rank: _Rank, code: int) -> None:
        if self._env.termination_log is None or _has_final_word(self._env.termination_log):
            return
        env = rank.env
        head = f"{env.worker_name} (node {env.node}, incarnation {env.incarnation}) {_how(code)}"
        text = f"{head}\n{last_error(bytes(rank.tail))}"
        data = text.encode()
        if len(data) > _TERMINATION_LOG_BYTES:
            data = data[: len(head.encode()) + 1] + data[-(_TERMINATION_LOG_BYTES - len(head.encode()) - 1) :]
        try:
            self._env.termination_log.write_bytes(data)
        except OSError as error:  # a full disk: the exit code says the most important all the same
            self._say(f"{self._env.termination_log} could not be written: {error.strerror}")

    def _say(self, text: str) -> None:
        _write_all(sys.stdout.fileno(), f"agent {self._env.pod_name}: {text}\n".encode())


def _has_final_word(path: Path) -> bool:
    try:
        return path.read_bytes().startswith(FINAL_WORD_BEGINS)
    except FileNotFoundError:
        return False


def last_error(output: bytes) -> str:
    """The message a worker ended with, from its last output; else its last lines."""
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].startswith(ERROR_PREFIX):
            return "\n".join(lines[index:])
    return "\n".join(lines[-_TAIL_LINES:])


def _how(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    return f"was ended by signal {-code} ({signal.Signals(-code).name})"


def _signal_rank(rank: _Rank, number: int) -> None:
    """To the rank alone. Not `Popen.send_signal`: that would reap the rank behind `_reap`'s back."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(rank.process.pid, number)


def _signal_group(rank: _Rank, number: int) -> None:
    """To the rank's whole process group; it led one from before its exec."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(rank.process.pid, number)


def _write_all(descriptor: int, data: bytes) -> None:
    """A full disk or a closed terminal costs lines of log, not the training."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EPIPE, errno.EIO):
            raise


def _bind_to(agent_pid: int) -> Callable[[], None]:
    libc: Any = ctypes.CDLL(None, use_errno=True)  # loaded before the fork

    def bind() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != agent_pid:
            os._exit(128 + signal.SIGKILL)

    return bind


def _prctl(option: int, value: int) -> None:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def main(environ: Mapping[str, str] | None = None) -> int:
    """Entry point; returns the exit code."""
    variables = dict(os.environ if environ is None else environ)
    termination_log = variables.get("TRIMTAB_TERMINATION_LOG")
    try:
        env = PodEnvironment.from_environ(variables)
        ranks = rank_environments(env, ResolvedJob.load(env.job_path))
    except TrimtabError as error:
        text = f"{ERROR_PREFIX}{error}"
        print(text, file=sys.stderr, flush=True)  # noqa: T201
        if termination_log:
            Path(termination_log).write_text(text, encoding="utf-8")
        return int(error.exit_code)
    if env.in_pod:
        os.umask(_POD_UMASK)
    return run(env, ranks, environ=variables)


if __name__ == "__main__":
    sys.exit(main())
