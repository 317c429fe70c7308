"""How `status`, `set`, `checkpoint` and `stop` reach a running job: on this machine or in its pods."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab.comm.control.job_control import JobControlClient


def connect(run_dir: Path) -> "JobControlClient":
    """A client of the run's coordinator; UserError where the run is not running.

    In a pod it shows the certificate that is mounted there; commands are taken from the coordinator's alone.
    """
    from trimtab.comm.control.job_control import JobControlClient
    from trimtab.comm.tls import JobTls
    from trimtab.local.run_dir import coordinator_address

    tls_dir = os.environ.get("TRIMTAB_TLS_DIR")
    tls = JobTls.found_in(Path(tls_dir)) if tls_dir else None
    return JobControlClient(coordinator_address(run_dir), tls)
