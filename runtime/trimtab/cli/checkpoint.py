"""`trimtab checkpoint`: ask a running job for a checkpoint now, and wait for it."""

import argparse
from pathlib import Path

from trimtab.cli.connect import connect
from trimtab.errors import ExitCode

DEFAULT_TIMEOUT_S = 3600.0


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `checkpoint`."""
    parser = subparsers.add_parser(
        "checkpoint",
        help="ask a running job for a checkpoint now",
        description="Ask a running job for a checkpoint after its running step, and print its path.",
    )
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="the run's folder")
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=DEFAULT_TIMEOUT_S,
        help="give up after this long (default: %(default)g)",
    )


def run(args: argparse.Namespace) -> int:
    """Ask the coordinator, and print where the checkpoint is."""
    with connect(args.run_dir) as client:
        response = client.checkpoint(timeout_s=args.timeout)
    print(f"{response.path} (step {response.step})")
    return int(ExitCode.OK)
