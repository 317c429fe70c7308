"""Writes docs/reference/job.md from the models in trimtab.api. `--check` fails where the page has drifted."""

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from trimtab.api import API_VERSION, KIND, OneOf, RLTrainingJob
from trimtab.api.fields import FieldDoc, TypeInfo, fields_of, object_of

Model = type[BaseModel]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "job.md"

HEAD = f"""# {KIND}

<!-- Written by scripts/generate_reference.py from trimtab.api: edit the docstrings there. -->

`{API_VERSION}`, `{KIND}`: every field that a job can have. A file is YAML 1.2 with one job; names are
camelCase, unknown fields are refused, sizes may be quantities such as `2Gi`. An alternative is an object
with exactly one member, as in `algorithm: {{grpo: {{}}}}`.

`trimtab validate job.yaml` checks a file, `trimtab explain spec.training` shows a part of this page in the
terminal, and `trimtab init --list` has jobs to start from.
"""


def render() -> str:
    """The page: one section for each kind of object, in the order of the file."""
    sections = _sections()
    titles = {model: path or KIND for model, path in sections.items()}
    lines = [HEAD]
    for model in sections:
        lines += [f"## {titles[model]}", ""]
        lines += [" ".join((model.__doc__ or "").split()), ""]
        if issubclass(model, OneOf):
            names = ", ".join(f"`{_yaml_name(model, name)}`" for name in model.alternatives())
            lines += [f"Exactly one of {names} is given.", ""]
        if not model.model_fields:
            lines += ["It has no fields: `{}`.", ""]
            continue
        lines += ["| Field | Type | Default | Meaning |", "|---|---|---|---|"]
        lines += [_row(field, titles) for field in fields_of(model)]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _sections() -> dict[Model, str]:
    """Each model once, with the path at which it appears first."""
    found: dict[Model, str] = {RLTrainingJob: ""}

    def visit(model: Model, prefix: str) -> Iterator[tuple[Model, str]]:
        for field in fields_of(model):
            child = object_of(field.info)
            if child is not None:
                path = f"{prefix}.{field.name}" if prefix else field.name
                yield child, path
                yield from visit(child, path)

    for model, path in visit(RLTrainingJob, ""):
        found.setdefault(model, path)
    return found


def _anchor(title: str) -> str:
    return title.lower().replace(".", "")


def _yaml_name(model: Model, python_name: str) -> str:
    return next(field.name for field in fields_of(model) if field.python_name == python_name)


def _type(info: TypeInfo, titles: dict[Model, str]) -> str:
    child = object_of(info)
    text = info.name
    if child is not None:
        text = f"{text.removesuffix('object')}[{titles[child]}](#{_anchor(titles[child])})"
    if info.bounds:
        text += f", {info.bounds}"
    return text


def _row(field: FieldDoc, titles: dict[Model, str]) -> str:
    default = "**required**" if field.required else field.default_text
    if field.default is not None:
        default = f"`{default}`"
    cells = [f"`{field.name}`", _type(field.info, titles), default, field.description]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 where the page has drifted"
    )
    args = parser.parse_args()
    page = render()
    if not args.check:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page, encoding="utf-8")
        return 0
    current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if current == page:
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(current.splitlines(True), page.splitlines(True), str(PAGE), "generated")
    )
    print("docs/reference/job.md has drifted: run scripts/generate_reference.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
