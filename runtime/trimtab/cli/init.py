"""`trimtab init`: print a commented job to start from."""

import argparse
from importlib.resources import files

from trimtab.errors import UserError

DEFAULT_PRESET = "grpo-small"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `init`."""
    parser = subparsers.add_parser(
        "init",
        help="print a commented job to start from",
        description="Print a commented job: trimtab init --preset grpo-small > job.yaml",
    )
    parser.add_argument("--preset", default=DEFAULT_PRESET, help=f"which job (default: {DEFAULT_PRESET})")
    parser.add_argument("--list", action="store_true", help="list the presets")


def run(args: argparse.Namespace) -> int:
    """Print the preset, or the list."""
    presets = load_presets()
    if args.list:
        width = max(map(len, presets))
        for name, text in presets.items():
            print(f"{name:<{width}}  {text.splitlines()[0].removeprefix('# ')}")
        return 0
    if args.preset not in presets:
        raise UserError(f"--preset {args.preset}: there is no such preset; one of {', '.join(presets)}")
    print(presets[args.preset], end="")
    return 0


def load_presets() -> dict[str, str]:
    """The text of each preset by its name; the first line of each is a comment that says what it is for."""
    folder = files("trimtab.api").joinpath("presets")
    entries = sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith(".yaml")), key=lambda entry: entry.name
    )
    return {entry.name.removesuffix(".yaml"): entry.read_text(encoding="utf-8") for entry in entries}
