"""Where each process of the job serves its Prometheus gauges: `<run>/metrics-endpoints.json`.

Made by the coordinator's main and kept up to date by `Members`' callbacks, on the coordinator's loop. The
file has the form of Prometheus's file-based service discovery (`file_sd_configs`), stands while the job
runs and names the workers that are registered. It is a convenience: a disk that is full costs the
file, not the job.
"""

import json
import logging
from pathlib import Path

from trimtab.comm.control import WorkerKey
from trimtab.roles.coordinator.journal import write_atomically
from trimtab.roles.coordinator.membership import Member, Members

log = logging.getLogger(__name__)

ENDPOINTS_FILE = "metrics-endpoints.json"


class MetricsEndpoints:
    """The file, from `follow` to `close`."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / ENDPOINTS_FILE
        self._targets: dict[WorkerKey, str] = {}
        self._closed = False

    def follow(self, members: Members) -> None:
        """Take up the workers that register from now on, and drop those that leave."""
        members.on_join.append(self._joined)
        members.on_leave.append(self._left)

    def add(self, worker: WorkerKey, host: str, port: int) -> None:
        """Take up one process."""
        self._targets[worker] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._write()

    def close(self) -> None:
        """Remove the file: the endpoints end with the job. Workers that leave later do not bring it back."""
        self._closed = True
        self._path.unlink(missing_ok=True)

    def _joined(self, member: Member) -> None:
        register = member.register
        if register.metrics_port:
            self.add(member.key, register.host, register.metrics_port)

    def _left(self, member: Member, reason: str) -> None:
        if self._targets.pop(member.key, None) is not None:
            self._write()

    def _write(self) -> None:
        if self._closed:
            return
        targets = [
            {"targets": [address], "labels": {"worker": str(worker)}}
            for worker, address in sorted(self._targets.items())
        ]
        try:
            write_atomically(self._path, json.dumps(targets, indent=2).encode())
        except OSError as error:
            log.warning("%s is not up to date: %s", self._path, error)
