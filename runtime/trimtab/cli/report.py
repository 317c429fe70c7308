"""`trimtab report`: the HTML report of a run and the picture of its curves, also while it goes on."""

import argparse
from pathlib import Path

from trimtab.errors import ExitCode


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `report`."""
    parser = subparsers.add_parser(
        "report",
        help="write the HTML report of a run",
        description="Write one self-contained HTML page about a run, and curves.png beside it. "
        "Works on a finished, a running and a crashed run.",
    )
    parser.add_argument(
        "run_dir", metavar="RUN", type=Path, help="the run's folder, as `trimtab run` named it"
    )
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="where to write the page (default: RUN/report.html)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the report and print its path."""
    from trimtab.observability.report import write_report

    print(write_report(args.run_dir, output=args.output))
    return int(ExitCode.OK)
