"""`trimtab validate`: check job files without running anything."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.errors import ExitCode, UserError

if TYPE_CHECKING:
    from trimtab.api import RLTrainingJob


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
            _check_rewards(job, path.parent)
        except JobError as error:
            print(error, file=sys.stderr)
            code = ExitCode.USER_ERROR
        except UserError as error:
            print(f"{path}: {error}", file=sys.stderr)
            code = ExitCode.USER_ERROR
        else:
            print(f"{path}: valid ({job.name})")
    return int(code)


def _check_rewards(job: "RLTrainingJob", base_dir: Path) -> None:
    """Whether the reward functions can be imported and take their arguments.

    Functions of the job's own (`module:name`) are left out where their code is not on this machine: it is
    checked when the job starts.
    """
    from trimtab.rewards.check import check_rewards

    spec = job.spec
    elsewhere = spec.code is not None and spec.code.path is None
    folders = [Path(spec.code.path)] if spec.code is not None and spec.code.path is not None else []
    lists = {"spec.rewards": spec.rewards}
    if spec.validation is not None and spec.validation.rewards is not None:
        lists["spec.validation.rewards"] = spec.validation.rewards
    for path, rewards in lists.items():
        check_rewards(rewards, folders, base_dir, path=path, built_in_only=elsewhere)
