"""`trimtab stop`: ask a running job to stop with a checkpoint."""

import argparse
from pathlib import Path

from trimtab.cli.connect import connect
from trimtab.errors import ExitCode

DEFAULT_GRACE_S = 60.0


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `stop`."""
    parser = subparsers.add_parser(
        "stop",
        help="stop a running job with a checkpoint",
        description="Ask a running job to stop with a checkpoint; returns once it has taken note.",
    )
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="the run's folder")
    parser.add_argument(
        "--grace",
        metavar="SECONDS",
        type=float,
        default=DEFAULT_GRACE_S,
        help="the running step is finished where it takes no longer than this (default: %(default)g)",
    )


def run(args: argparse.Namespace) -> int:
    """Ask the coordinator to stop."""
    with connect(args.run_dir) as client:
        client.stop(reason="trimtab stop", grace_s=args.grace)
    print("stopping")
    return int(ExitCode.OK)
