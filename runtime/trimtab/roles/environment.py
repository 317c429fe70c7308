"""What a process of a job learns from its environment variables, the same in a pod and on a laptop.

The launcher or operator sets those of `PodEnvironment` for the agent; the agent adds those of
`WorkerEnvironment` for each rank. Read once, at the start of the process; nothing else reads them.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from trimtab.errors import UserError

COORDINATOR = "coordinator"
ACTOR = "actor"
ROLLOUT = "rollout"
REWARD = "reward"
ROLES = (COORDINATOR, ACTOR, ROLLOUT, REWARD)

ERROR_PREFIX = "error: "
"""Begins the line with which a worker ends on an error; the agent looks for it."""
ADDRESS_FILE = "coordinator.address"
"""In the run directory while the job runs: host:port of the control plane, for people's commands."""
FINAL_WORD_BEGINS = b'{"trimtab":'
"""Begins what a coordinator that has ended the job leaves in a pod's termination log; the agent keeps it."""


@dataclass(frozen=True, kw_only=True)
class PodEnvironment:
    """What the agent reads: which pod of which job this is."""

    job_path: Path
    """The resolved job, JSON."""
    role: str
    replica: int
    node: int
    """The pod within its replica."""
    incarnation: int
    """Raised each time this pod's replica is started again within an attempt."""
    coordinator: str
    """host:port of the control plane: the coordinator listens there, all others dial it."""
    host: str = "127.0.0.1"
    """Where this pod is reached for collectives."""
    metrics_port: int = 0
    """Where a rank serves its gauges: in a pod's own environment that of its first rank, the others beside
    it; 0: any that is free."""
    termination_log: Path | None = None
    """File for the last error, read by whoever started the pod."""
    log_dir: Path | None = None
    """Folder of the log files; None in a pod, where they go to the standard streams."""
    launcher_pid: int | None = None
    """The local launcher, with which the agent ends; None in a pod."""
    tls_dir: Path | None = None
    """Folder with this process's certificate and keys (`trimtab.comm.tls`); None: everything is plain."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read the variables; UserError names one that is missing or malformed."""
        return cls(**_pod_values(environ))

    def to_environ(self) -> dict[str, str]:
        """The variables that `from_environ` reads."""
        values = {
            "TRIMTAB_JOB": str(self.job_path),
            "TRIMTAB_ROLE": self.role,
            "TRIMTAB_REPLICA": str(self.replica),
            "TRIMTAB_NODE": str(self.node),
            "TRIMTAB_INCARNATION": str(self.incarnation),
            "TRIMTAB_COORDINATOR": self.coordinator,
            "TRIMTAB_HOST": self.host,
        }
        optional = {
            "TRIMTAB_METRICS_PORT": self.metrics_port or None,
            "TRIMTAB_TERMINATION_LOG": self.termination_log,
            "TRIMTAB_LOG_DIR": self.log_dir,
            "TRIMTAB_LAUNCHER_PID": self.launcher_pid,
            "TRIMTAB_TLS_DIR": self.tls_dir,
        }
        return values | {name: str(value) for name, value in optional.items() if value is not None}

    @property
    def in_pod(self) -> bool:
        """Whether the operator started this, not a launcher: SIGTERM then ends this pod, not the job."""
        return self.launcher_pid is None

    @property
    def bind_host(self) -> str:
        """`host` as it stands before a port: an IPv6 address in brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def pod_name(self) -> str:
        """`rollout-1-0`: role, replica and node; names the log files."""
        return f"{self.role}-{self.replica}-{self.node}"


@dataclass(frozen=True, kw_only=True)
class WorkerEnvironment(PodEnvironment):
    """What a rank reads: its pod, and its own place in the replica's world."""

    rank: int
    """Global rank within the replica."""
    local_rank: int
    """Rank within the pod; the index of its GPU."""
    world_size: int
    """Ranks in the replica."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read the variables; UserError names one that is missing or malformed."""
        return cls(
            **_pod_values(environ),
            rank=_number(environ, "TRIMTAB_RANK"),
            local_rank=_number(environ, "TRIMTAB_LOCAL_RANK"),
            world_size=_number(environ, "TRIMTAB_WORLD_SIZE"),
        )

    def to_environ(self) -> dict[str, str]:
        """The variables that `from_environ` reads."""
        return super().to_environ() | {
            "TRIMTAB_RANK": str(self.rank),
            "TRIMTAB_LOCAL_RANK": str(self.local_rank),
            "TRIMTAB_WORLD_SIZE": str(self.world_size),
        }

    @property
    def worker_name(self) -> str:
        """`actor-0/rank-1`, as `str(WorkerKey)`."""
        return f"{self.role}-{self.replica}/rank-{self.rank}"


def _pod_values(environ: Mapping[str, str]) -> dict[str, Any]:
    role = _text(environ, "TRIMTAB_ROLE")
    if role not in ROLES:
        raise UserError(f"TRIMTAB_ROLE is {role!r}, allowed are {', '.join(ROLES)}")
    termination_log, log_dir = environ.get("TRIMTAB_TERMINATION_LOG"), environ.get("TRIMTAB_LOG_DIR")
    host, tls_dir = environ.get("TRIMTAB_HOST") or "127.0.0.1", environ.get("TRIMTAB_TLS_DIR")
    if not tls_dir and not _is_loopback(host):
        raise UserError(
            f"TRIMTAB_HOST is {host}, which other machines reach, and TRIMTAB_TLS_DIR is not set: a job "
            "that leaves its machine needs certificates (the operator makes them)"
        )
    return {
        "job_path": Path(_text(environ, "TRIMTAB_JOB")),
        "role": role,
        "replica": _number(environ, "TRIMTAB_REPLICA"),
        "node": _number(environ, "TRIMTAB_NODE"),
        "incarnation": _number(environ, "TRIMTAB_INCARNATION"),
        "coordinator": _text(environ, "TRIMTAB_COORDINATOR"),
        "host": host,
        "tls_dir": Path(tls_dir) if tls_dir else None,
        "metrics_port": _number(environ, "TRIMTAB_METRICS_PORT") if "TRIMTAB_METRICS_PORT" in environ else 0,
        "termination_log": Path(termination_log) if termination_log else None,
        "log_dir": Path(log_dir) if log_dir else None,
        "launcher_pid": _number(environ, "TRIMTAB_LAUNCHER_PID")
        if "TRIMTAB_LAUNCHER_PID" in environ
        else None,
    }


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def _text(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name)
    if not value:
        raise UserError(
            f"the environment variable {name} is not set: the launcher (`trimtab run`) or the operator sets "
            "it; this command is not started by hand"
        )
    return value


def _number(environ: Mapping[str, str], name: str) -> int:
    text = _text(environ, name)
    if not text.isdecimal():
        raise UserError(f"the environment variable {name} is {text!r}, not a whole number")
    return int(text)
