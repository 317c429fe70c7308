"""The `trimtab-operator` command. Reads flags and files, sets up the log, runs the operator.

What the user has wrong (a flag, a file, no way to an API server) is one line on standard error and exit code
64, without a traceback; everything later goes to the log.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from trimtab.errors import TrimtabError
from trimtab_operator.adapter.logs import LEVELS, set_up_logs
from trimtab_operator.adapter.process import run_operator
from trimtab_operator.adapter.settings import IDENTITY_DIR, IDENTITY_SECRET, Options, load_settings

HEALTH_PORT = 8080


def build_parser() -> argparse.ArgumentParser:
    """The command line; the reference page is made from it."""
    parser = argparse.ArgumentParser(
        prog="trimtab-operator", description="Turns each RLTrainingJob of a cluster into role pods."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('trimtab-operator')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    run = commands.add_parser("run", help="run the operator until it is told to stop")
    run.add_argument(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="way to the API server; by default $KUBECONFIG, else the service account of the pod",
    )
    run.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="serve the jobs of this namespace; may be repeated; by default of all namespaces",
    )
    run.add_argument(
        "--settings", type=Path, metavar="FILE", help="the platform's settings, JSON (the chart writes it)"
    )
    run.add_argument(
        "--identity-dir",
        type=Path,
        default=IDENTITY_DIR,
        metavar="DIR",
        help="folder of master.key, which the jobs' certificates are derived from (%(default)s)",
    )
    run.add_argument(
        "--identity-secret",
        default=IDENTITY_SECRET,
        metavar="NAME",
        help="Secret that is made where that folder has no key, and that is mounted there (%(default)s)",
    )
    run.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="act only while holding the lease; needed where two operators may run (on by default)",
    )
    run.add_argument(
        "--health-port",
        type=_port,
        default=HEALTH_PORT,
        metavar="PORT",
        help="port of /healthz, /readyz and /metrics; 0: any that is free (%(default)s)",
    )
    run.add_argument("--log-level", choices=LEVELS, default="info", help="what is logged (%(default)s)")
    return parser


def read_options(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Options:
    """The flags and the settings file; UserError names what is wrong."""
    return Options(
        kubeconfig=arguments.kubeconfig,
        namespaces=tuple(dict.fromkeys(arguments.namespace)),
        settings=load_settings(arguments.settings),
        identity_dir=arguments.identity_dir,
        identity_secret=arguments.identity_secret,
        leader_elect=arguments.leader_elect,
        health_port=arguments.health_port,
        log_level=arguments.log_level,
        environ=environ,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        options = read_options(arguments, dict(os.environ))
        set_up_logs(options.log_level)
        return asyncio.run(run_operator(options))
    except TrimtabError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return int(error.exit_code)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: a number from 0 to 65535")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
