"""The control plane: workers dial the coordinator over gRPC, register, and take commands.

The coordinator uses `ControlServer`, every worker a `WorkerSession`; the CLI and the launcher talk to
the coordinator's JobControl service through `JobControlClient`.
"""

from trimtab.comm.control.constants import PROTOCOL_VERSION, RefusalReason
from trimtab.comm.control.errors import CommandError, CoordinatorLostError, RefusedError, error_kind
from trimtab.comm.control.job_control import JobControlClient, JobControlHandler
from trimtab.comm.control.keys import WorkerKey
from trimtab.comm.control.server import ControlServer, NotAdmitted, WorkerInfo
from trimtab.comm.control.session import WorkerSession

__all__ = [
    "PROTOCOL_VERSION",
    "CommandError",
    "ControlServer",
    "CoordinatorLostError",
    "JobControlClient",
    "JobControlHandler",
    "NotAdmitted",
    "RefusalReason",
    "RefusedError",
    "WorkerInfo",
    "WorkerKey",
    "WorkerSession",
    "error_kind",
]
