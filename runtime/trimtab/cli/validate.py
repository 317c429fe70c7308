"""`trimtab validate`: check job files without running anything."""

import argparse
import sys
from pathlib import Path

from trimtab.errors import ExitCode


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `validate`."""
    parser = subparsers.add_parser(
        "validate",
        help="check job files and say everything that is wrong",
        description="Check job files. Exits 0 if all are valid, 64 if one is not.",
    )
    parser.add_argument(
        "files", metavar="FILE", nargs="+", type=Path, help="YAML file with one RLTrainingJob"
    )


def run(args: argparse.Namespace) -> int:
    """Check every file; problems go to stderr, one line each."""
    from trimtab.api import JobError, load_job

    code = ExitCode.OK
    for path in args.files:
        try:
            job = load_job(path)
        except JobError as error:
            print(error, file=sys.stderr)
            code = ExitCode.USER_ERROR
        else:
            print(f"{path}: valid ({job.name})")
    return int(code)
