"""Read a job from a YAML 1.2 file. Called by the CLI, the local launcher and tests."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from trimtab.api.fields import PathPart, TypeInfo, fields_of, format_path
from trimtab.api.job import API_VERSION, KIND, RLTrainingJob
from trimtab.api.messages import problems_of, show
from trimtab.api.problems import JobError, Problem


def parse_job(
    data: Any, *, source: str = "the job", unknown: Literal["refuse", "ignore"] = "refuse"
) -> RLTrainingJob:
    """Validate a job given as plain data with the file's names; raises `JobError` with every problem.

    Unknown fields are refused, as a misspelt one is a mistake of the file's author. What the API server has
    accepted is read with `unknown="ignore"`: an operator older than the CRD leaves out what it does not know.
    """
    problems = _head_problems(data)
    plain = None if problems else _plain(data, (), problems, ())
    if problems:
        raise JobError(problems, source=source)
    if unknown == "ignore":
        plain = without_unknown(plain, TypeInfo("object", model=RLTrainingJob))
    try:
        return RLTrainingJob.model_validate_json(json.dumps(plain), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise JobError(problems_of(error), source=source) from error


def load_job(path: Path) -> RLTrainingJob:
    """Read one job from a file; raises `JobError` with every problem, each with its line where it has one."""
    text = _read(path)
    data = _parse_yaml(text, str(path))
    try:
        return parse_job(data, source=str(path))
    except JobError as error:
        problems = sorted(_with_lines(error.problems, text), key=lambda problem: problem.line or 0)
        raise JobError(problems, source=str(path)) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise JobError([Problem("", str(path), "there is no such file")], source=str(path)) from error
    except OSError as error:
        raise JobError(
            [Problem("", str(path), f"cannot be read: {error.strerror}")], source=str(path)
        ) from error
    except UnicodeDecodeError as error:
        raise JobError([Problem("", str(path), "is not UTF-8 text")], source=str(path)) from error


def _parse_yaml(text: str, source: str) -> Any:
    from ruamel.yaml import YAML  # not at the top: half of the import time of trimtab.api
    from ruamel.yaml.composer import ComposerError
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except DuplicateKeyError as error:
        message = str(error.problem).splitlines()[0]
        key = re.search(r'duplicate key "?(.*?)"? with value', message)
        problem = f"the field {key[1]} appears twice" if key else message
        mark = error.problem_mark
    except ComposerError as error:
        mark = error.problem_mark
        problem = str(error.problem)
        if "document" in str(error.context):
            problem = "a second document begins here; a job is one document"
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = f"is not YAML: {error.problem or error.context}"
    except YAMLError as error:
        mark, problem = None, f"is not YAML: {error}"
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    raise JobError([Problem("", None, where + problem)], source=source)


def _head_problems(data: Any) -> list[Problem]:
    if data is None:
        return [Problem("", None, f"is empty; expected a {KIND}")]
    if not isinstance(data, dict):
        return [Problem("", data, "expected an object with apiVersion, kind, metadata and spec")]
    problems = []
    for name, right in (("apiVersion", API_VERSION), ("kind", KIND)):
        if name not in data:
            problems.append(Problem(name, None, f"is required: {right}"))
        elif data[name] != right:
            problems.append(
                Problem(name, data[name], f"{show(data[name])} is not allowed; this version reads {right}")
            )
    return problems


def _plain(data: Any, loc: tuple[PathPart, ...], problems: list[Problem], above: tuple[int, ...]) -> Any:
    """The document as JSON can say it; what it cannot say becomes a problem."""
    if isinstance(data, (dict, list)) and id(data) in above:
        problems.append(Problem(format_path(loc), None, "an alias refers to what it is inside of"))
        return None
    above = (*above, id(data))
    if isinstance(data, dict):
        for key in data:
            if not isinstance(key, str):
                problems.append(
                    Problem(format_path(loc), key, f"the name {show(key)} is not text (put it in quotes)")
                )
        return {key: _plain(value, (*loc, str(key)), problems, above) for key, value in data.items()}
    if isinstance(data, list):
        return [_plain(value, (*loc, index), problems, above) for index, value in enumerate(data)]
    if isinstance(data, float) and not math.isfinite(data):
        problems.append(Problem(format_path(loc), data, f"{data} is not allowed; numbers are finite"))
        return None
    if isinstance(data, date):
        return data.isoformat()
    if data is None or isinstance(data, (str, int, float, bool)):
        return data
    problems.append(Problem(format_path(loc), None, f"YAML's {type(data).__name__} is not allowed"))
    return None


def without_unknown(data: Any, info: TypeInfo) -> Any:
    """The data without the fields that a model has not and would refuse, at any depth."""
    if isinstance(data, list) and info.item is not None:
        return [without_unknown(value, info.item) for value in data]
    if not isinstance(data, dict):
        return data
    if info.model is None:
        item = info.item
        return data if item is None else {name: without_unknown(value, item) for name, value in data.items()}
    known = {field.name: field.info for field in fields_of(info.model)}
    keep_all = info.model.model_config.get("extra") == "allow"
    return {
        name: without_unknown(value, known[name]) if name in known else value
        for name, value in data.items()
        if keep_all or name in known
    }


def _with_lines(problems: Sequence[Problem], text: str) -> list[Problem]:
    """The problems with the line of the nearest thing that stands in the file."""
    from ruamel.yaml import YAML

    root = YAML(typ="safe", pure=True).compose(text)
    return [replace(problem, line=_line_of(root, problem.path)) for problem in problems]


def _line_of(root: Any, path: str) -> int | None:
    line, node = None, root
    for name, index in re.findall(r"([^.\[\]]+)|\[([^\]]+)\]", path):
        if node is None:
            break
        if index.isdigit() and isinstance(node.value, list) and node.id == "sequence":
            node = node.value[int(index)]
            line = node.start_mark.line + 1
            continue
        key = name or index.strip("'")
        entry = (
            next((pair for pair in node.value if pair[0].value == key), None)
            if node.id == "mapping"
            else None
        )
        if entry is None:
            break
        line, node = entry[0].start_mark.line + 1, entry[1]
    return line
