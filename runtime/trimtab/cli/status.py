"""`trimtab status`: how far a run is; of one that is over, how it ended."""

import argparse
import json
from pathlib import Path

from trimtab.errors import ExitCode, UserError

STATUS_FILE = "status.json"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `status`."""
    parser = subparsers.add_parser(
        "status",
        help="show how far a running job is",
        description="Show how far a run is; of one that is over, how it ended.",
    )
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="the run's folder")
    parser.add_argument("--json", action="store_true", help="print the whole status as JSON")


def run(args: argparse.Namespace) -> int:
    """Ask the coordinator, or read what it left."""
    from google.protobuf.json_format import MessageToJson, ParseDict

    from trimtab.comm.control.job_control import JobControlClient
    from trimtab.local.run_dir import ADDRESS_FILE, coordinator_address
    from trimtab.v1 import job_control_pb2 as jc

    if (args.run_dir / ADDRESS_FILE).exists():
        with JobControlClient(coordinator_address(args.run_dir)) as client:
            status = client.get_status()
    elif (args.run_dir / STATUS_FILE).exists():
        text = (args.run_dir / STATUS_FILE).read_text(encoding="utf-8")
        status = ParseDict(json.loads(text), jc.JobStatus(), ignore_unknown_fields=True)
    else:
        raise UserError(f"{args.run_dir}: there is no run here, or it ended before its first step")
    if args.json:
        print(MessageToJson(status, preserving_proto_field_name=True))
        return int(ExitCode.OK)
    print(f"{status.name}: {status.phase}, step {status.step} of {status.total_steps}")
    if status.activity:
        print(f"  {status.activity}")
    for role in status.roles:
        print(f"  {role.role}: {role.ready} of {role.desired} ready, {role.restarts} restarts")
    for name in sorted(status.metrics):
        print(f"  {name}: {status.metrics[name]:.6g}")
    if status.checkpoint_path:
        print(f"  checkpoint: {status.checkpoint_path} (step {status.checkpoint_step})")
    for warning in status.warnings:
        print(f"  warning: {warning}")
    return int(ExitCode.OK)
