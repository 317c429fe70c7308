"""`trimtab doctor`: what this machine has, and what is missing for which role."""

import argparse
import json

from trimtab.errors import ExitCode


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `doctor`."""
    parser = subparsers.add_parser(
        "doctor",
        help="show what this machine has, and what is missing for which role",
        description="Look at this machine. Exits 0 if every role can run here, 1 if one cannot.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Look, judge, print."""
    from trimtab.doctor.checks import diagnose
    from trimtab.doctor.machine import look

    diagnosis = diagnose(look())
    if args.json:
        print(json.dumps(diagnosis.to_json(), indent=2))
    else:
        from trimtab.doctor.show import show

        show(diagnosis)
    return int(ExitCode.OK if diagnosis.ready else ExitCode.INTERNAL)
