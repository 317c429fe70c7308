"""`trimtab explain`: what a field of the job means and takes, as `kubectl explain` shows it."""

import argparse
import textwrap
from collections.abc import Iterator
from typing import Any

from trimtab.errors import UserError

WIDTH = 100


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `explain`."""
    parser = subparsers.add_parser(
        "explain",
        help="describe a field of the job, like kubectl explain",
        description="Describe a field of the job: type, bounds, default, meaning and the fields below it.",
    )
    parser.add_argument(
        "path", nargs="?", default="", help="path such as spec.training.optimizer; left out: the whole job"
    )
    parser.add_argument(
        "--recursive", action="store_true", help="list all fields below, with their types alone"
    )


def run(args: argparse.Namespace) -> int:
    """Print the description."""
    print("\n".join(explain(args.path, recursive=args.recursive)))
    return 0


def explain(path: str, *, recursive: bool = False) -> Iterator[str]:
    """The lines that describe the field at a path."""
    from trimtab.api import API_VERSION, KIND, RLTrainingJob
    from trimtab.api import fields as api_fields

    yield f"KIND:     {KIND}"
    yield f"VERSION:  {API_VERSION}"
    yield ""
    model: Any = RLTrainingJob
    if path:
        found = api_fields.find(path) or api_fields.find(f"spec.{path}")
        if found is None:
            raise UserError(_unknown(path))
        field, known = found
        yield f"FIELD:    {known} <{field.info.name}>"
        if field.info.bounds:
            yield f"BOUNDS:   {field.info.bounds}"
        yield f"DEFAULT:  {field.default_text}"
        yield ""
        yield "DESCRIPTION:"
        yield from _paragraph(field.description, "    ")
        model = api_fields.object_of(field.info)
        if model is not None:
            yield from _paragraph(f"{_item_of(field.info)}{_summary(model)}", "    ")
    else:
        yield "DESCRIPTION:"
        yield from _paragraph(_summary(model), "    ")
    if model is not None:
        yield ""
        yield "FIELDS:"
        yield from _tree(model, "  ") if recursive else _list(model)


def _unknown(path: str) -> str:
    from difflib import get_close_matches

    from trimtab.api.fields import walk

    known = [name.replace("[]", "") for name, _ in walk()]
    near = get_close_matches(path, known, n=1) or [
        name for name in known if name.rsplit(".", 1)[-1] == path.rsplit(".", 1)[-1]
    ]
    hint = f"did you mean {near[0]}?" if near else "`trimtab explain --recursive` lists all fields"
    return f"the job has no field {path}; {hint}"


def _summary(model: Any) -> str:
    return " ".join((model.__doc__ or "").split())


def _item_of(info: Any) -> str:
    return "Each item: " if info.kind == "list" else ""


def _paragraph(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _list(model: Any) -> Iterator[str]:
    from trimtab.api.fields import fields_of

    for field in fields_of(model):
        facts = [field.info.bounds] if field.info.bounds else []
        facts.append("required" if field.required else f"default {field.default_text}")
        yield f"  {field.name} <{field.info.name}>  {'; '.join(facts)}"
        yield from _paragraph(field.description, "      ")
        yield ""


def _tree(model: Any, indent: str) -> Iterator[str]:
    from trimtab.api.fields import fields_of, object_of

    for field in fields_of(model):
        required = "  -required-" if field.required else ""
        yield f"{indent}{field.name} <{field.info.name}>{required}"
        child = object_of(field.info)
        if child is not None:
            yield from _tree(child, indent + "  ")
