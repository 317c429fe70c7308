"""`trimtab agent`: process 1 of a pod; everything it needs is in its environment variables."""

import argparse


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `agent`."""
    subparsers.add_parser(
        "agent",
        help="process 1 of a pod: start and watch the ranks (used by pods and `run`)",
        description="Start the ranks of a pod, forward signals to them, and write the last error to the "
        "termination log. Configured by the TRIMTAB_* environment variables alone.",
    )


def run(args: argparse.Namespace) -> int:
    """Run the pod to its end."""
    from trimtab.roles.agent import main

    return main()
