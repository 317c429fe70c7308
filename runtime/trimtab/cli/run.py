"""`trimtab run`: a job on this machine, its roles as processes."""

import argparse
from pathlib import Path


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `run`."""
    parser = subparsers.add_parser(
        "run",
        help="run a job on this machine, its roles as processes",
        description="Run a job on this machine: coordinator, actor ranks, rollout and reward replicas as "
        "processes. Ctrl-C stops with a checkpoint; a second one ends everything at once.",
    )
    parser.add_argument("job", metavar="JOB", type=Path, help="the job's YAML file")
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        type=Path,
        help="folder for everything that the run writes (default: runs/<name of the job>)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in the run directory, whatever spec.checkpoint.resume says",
    )


def run(args: argparse.Namespace) -> int:
    """Run the job to its end."""
    from trimtab.local import run_job

    return run_job(args.job, run_dir=args.run_dir, resume=args.resume)
