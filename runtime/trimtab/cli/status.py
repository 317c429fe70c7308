"""`trimtab status`: how far a run is; of one that is over, how it ended."""

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.connect import connect
from trimtab.errors import ExitCode, UserError

if TYPE_CHECKING:
    from trimtab.v1 import job_control_pb2 as jc

STATUS_FILE = "status.json"
RECONNECT_S = 60.0
"""A coordinator that is started again may be silent for this long."""
RETRY_INTERVAL_S = 1.0
OVER = ("Complete", "Failed", "Stopped")
NOTEWORTHY = {"WorkersReady": "False", "Degraded": "True", "MetricsHealthy": "False", "Failed": "True"}
"""Conditions that are shown, where they have this status."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `status`."""
    parser = subparsers.add_parser(
        "status",
        help="show how far a running job is",
        description="Show how far a run is, and who is missing; of one that is over, how it ended.",
    )
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="the run's folder")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print the whole status as JSON")
    how.add_argument(
        "--watch", action="store_true", help="follow the run to its end (Ctrl-C leaves it alone)"
    )


def run(args: argparse.Namespace) -> int:
    """Ask the coordinator, or read what it left."""
    from google.protobuf.json_format import MessageToJson

    status = (_watch(args.run_dir) if args.watch else None) or _read(args.run_dir)
    if args.json:
        print(MessageToJson(status, preserving_proto_field_name=True))
    else:
        _show(status)
    return int(ExitCode.OK)


def _read(run_dir: Path) -> "jc.JobStatus":
    """The status now, or at the end."""
    from google.protobuf.json_format import ParseDict

    from trimtab.roles.environment import ADDRESS_FILE
    from trimtab.v1 import job_control_pb2 as jc

    if (run_dir / ADDRESS_FILE).exists():
        with connect(run_dir) as client:
            return client.get_status()
    if (run_dir / STATUS_FILE).exists():
        text = (run_dir / STATUS_FILE).read_text(encoding="utf-8")
        return ParseDict(json.loads(text), jc.JobStatus(), ignore_unknown_fields=True)
    raise UserError(f"{run_dir}: there is no run here, or it ended before its first step")


def _watch(run_dir: Path) -> "jc.JobStatus | None":
    """Show the run until it is over; its last status, or None where it was over before."""
    from trimtab.observability.live import LiveView
    from trimtab.roles.environment import ADDRESS_FILE

    if not (run_dir / ADDRESS_FILE).exists():
        return None
    last: jc.JobStatus | None = None
    heard = time.monotonic()
    view = LiveView(0, run_dir.name)
    try:
        while (run_dir / ADDRESS_FILE).exists():
            try:
                with connect(run_dir) as client:
                    for status in client.watch():
                        view.update(status)
                        last, heard = status, time.monotonic()
            except UserError:  # nobody answers: it is over, or the coordinator is being started again
                if time.monotonic() - heard > RECONNECT_S:
                    raise
            if last is not None and last.phase in OVER:
                return last
            time.sleep(RETRY_INTERVAL_S)
    finally:
        view.close()
    return None


def _show(status: "jc.JobStatus") -> None:
    print(f"{status.name}: {status.phase}, step {status.step} of {status.total_steps}")
    if status.activity:
        print(f"  {status.activity}")
    over = status.phase in OVER
    for role in status.roles:
        ready = "ready at the end" if over else "ready"
        print(f"  {role.role}: {role.ready} of {role.desired} {ready}, {role.restarts} restarts")
    for condition in status.conditions:
        past = condition.type == "WorkersReady" and over  # nobody is waited for any more
        if NOTEWORTHY.get(condition.type) == condition.status and not past:
            print(f"  {condition.type} is {condition.status} ({condition.reason}): {condition.message}")
    for name in sorted(status.metrics):
        print(f"  {name}: {status.metrics[name]:.6g}")
    if status.checkpoint_path:
        print(f"  checkpoint: {status.checkpoint_path} (step {status.checkpoint_step})")
    for warning in status.warnings:
        print(f"  warning: {warning}")
