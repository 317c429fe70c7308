"""Clusters and processes that the benchmark starts, and what the kernel says of a process's use."""

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

END_S = 15.0
CLUSTER_S = 180.0


class Process:
    """A process that runs beside the benchmark, its output in a file. Ends with the benchmark."""

    def __init__(self, command: list[str], log: Path, environ: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                stdout=file,
                stderr=file,
                env={**os.environ, **(environ or {})},
                preexec_fn=_end_with_parent,
            )

    def check(self) -> None:
        """Complain where it has ended."""
        if self._process.poll() is not None:
            lines = "\n".join(self.log.read_text(errors="replace").splitlines()[-10:])
            raise RuntimeError(f"{self.log.stem} has ended with {self._process.returncode}:\n{lines}")

    def peak_mb(self) -> float:
        """The most memory that was resident at once, in MB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(kib) * 1024 / 1e6

    def cpu_s(self) -> float:
        """CPU time of all its threads so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def tell(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def end(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@contextlib.contextmanager
def running(command: list[str], log: Path, environ: Mapping[str, str] | None = None) -> Iterator[Process]:
    """A process while the block runs."""
    process = Process(command, log, environ)
    try:
        yield process
    finally:
        process.end()


@contextlib.contextmanager
def fresh_cluster(up: str, down: str, state: Path) -> Iterator[Path]:
    """A control plane of its own while the block runs; the path of its kubeconfig."""

    def run(command: str) -> str:
        words = [word.replace("{state}", str(state)) for word in shlex.split(command)]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=CLUSTER_S)
        return done.stdout

    try:
        lines = run(up).split()
        if not lines or not Path(lines[-1]).is_file():
            sys.exit(f"--up {up!r}: its last word on standard output has to be the path of a kubeconfig")
        yield Path(lines[-1])
    finally:
        run(down)
