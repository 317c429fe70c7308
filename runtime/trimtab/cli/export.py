"""`trimtab export`: a checkpoint as a Hugging Face directory, with no job running."""

import argparse
from pathlib import Path

from trimtab.errors import ExitCode


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `export`."""
    parser = subparsers.add_parser(
        "export",
        help="write a checkpoint as a Hugging Face directory",
        description="Write a checkpoint's model as a directory that AutoModelForCausalLM.from_pretrained and "
        "vLLM load. Needs memory for the parameters in float32, no GPU and no running job.",
    )
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT_OR_RUN",
        type=Path,
        help="a checkpoint (step-...), or a run's folder or checkpoint.uri, of which the newest is taken",
    )
    parser.add_argument(
        "--output", metavar="DIR", type=Path, required=True, help="a folder that is empty or does not exist"
    )


def run(args: argparse.Namespace) -> int:
    """Write the directory and print its path."""
    from trimtab.engines.training.convert import export_checkpoint, find_checkpoint, find_job

    found = find_checkpoint(args.checkpoint)
    export_checkpoint(found, args.output, find_job(args.checkpoint))
    print(f"{args.output} (step {found.step} of {found.path})")
    return int(ExitCode.OK)
