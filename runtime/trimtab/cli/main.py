"""The `trimtab` command: picks the subcommand's module, imports that one alone and runs it.

A subcommand is a module `trimtab.cli.<name>` with `add_parser(subparsers)`, which adds one parser of
that name, and `run(args) -> int`, which returns the exit code. Errors for the user are printed here,
without a traceback.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Protocol, cast

from trimtab.errors import ExitCode, TrimtabError

SubParsers = argparse._SubParsersAction  # argparse has no public name for it

COMMANDS: dict[str, str] = {
    "run": "run a job on this machine, its roles as processes",
    "agent": "process 1 of a pod: start and watch the ranks (used by pods and `run`)",
    "validate": "check job files and say everything that is wrong",
    "explain": "describe a field of the job, like kubectl explain",
    "init": "print a commented job to start from",
    "doctor": "show what this machine has, and what is missing for which role",
    "report": "write the HTML report of a run",
    "export": "write a checkpoint as a Hugging Face directory",
    "model": "import models into Hugging Face directories",
    "status": "show how far a running job is",
    "set": "change the sampling of a running job",
    "checkpoint": "ask a running job for a checkpoint now",
    "stop": "stop a running job with a checkpoint",
}
"""Subcommands, in the order of the help text."""


class Command(Protocol):
    """What a subcommand's module offers."""

    def add_parser(self, subparsers: "SubParsers[argparse.ArgumentParser]") -> None:
        """Add the parser that is named as the module."""

    def run(self, args: argparse.Namespace) -> int:
        """Do the work; the exit code."""


def load_command(name: str) -> Command:
    """Import a subcommand's module."""
    return cast("Command", import_module(f"trimtab.cli.{name}"))


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser with the chosen subcommand whole, and the others by name for the help text."""
    parser = argparse.ArgumentParser(
        prog="trimtab",
        description="RL post-training of large language models, on this machine and on Kubernetes.",
        epilog="`trimtab COMMAND --help` tells more about a command.",
    )
    parser.add_argument("--version", action="version", version=f"trimtab {version('trimtab')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        if name == chosen:
            load_command(name).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=text, add_help=False)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    args = build_parser(chosen).parse_args(arguments)
    try:
        return load_command(args.command).run(args)
    except TrimtabError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a pipe such as `| head` has gone
        sys.stderr.close()
        return int(ExitCode.OK)
    except OSError as error:
        if error.filename is None:
            raise
        # A file or folder that the user named, or whose disk is full.
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return int(ExitCode.USER_ERROR)


if __name__ == "__main__":
    sys.exit(main())
