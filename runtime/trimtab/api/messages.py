"""Turn what pydantic finds into problems that a user can act on: path, value, what is allowed.

Called by `load`; one problem per mistake.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from trimtab.api.checks import CROSS_FIELD
from trimtab.api.fields import PathPart, TypeInfo, fields_of, format_path, object_of, type_at, walk
from trimtab.api.problems import Problem

_OWN_ERRORS = frozenset({"one_of", "shared_field", "steps_or_epochs", "item_keys"})
"""Errors that our validators raise, whose text is complete."""

_NOT_A_BOOLEAN = frozenset({"yes", "no", "on", "off", "y", "n"})


def problems_of(error: ValidationError) -> list[Problem]:
    """Every problem that a validation found."""
    details = error.errors(include_url=False)
    misspelt = {
        (*loc[:-1], suggestion)
        for loc in (_location(detail) for detail in details if detail["type"] == "extra_forbidden")
        if (suggestion := _nearest_sibling(loc)) is not None
    }
    problems: list[Problem] = []
    for detail in details:
        if detail["type"] == CROSS_FIELD:
            problems.extend(detail["ctx"]["problems"])
        elif detail["type"] == "missing" and _location(detail) in misspelt:
            continue  # the misspelt field is the mistake
        elif not _is_consequence(detail, details):
            problems.append(_problem(detail))
    return problems


def _is_consequence(detail: ErrorDetails, details: list[ErrorDetails]) -> bool:
    """Whether another error is the mistake behind this one."""
    if detail["type"] == "too_short":  # pydantic counts the valid items alone
        loc = detail["loc"]
        return any(len(other["loc"]) > len(loc) and other["loc"][: len(loc)] == loc for other in details)
    return detail["type"] == "default_factory_not_called"  # the field it follows from has a problem


def _location(detail: ErrorDetails) -> tuple[PathPart, ...]:
    return tuple(part for part in detail["loc"] if part != "[key]")


def _problem(detail: ErrorDetails) -> Problem:
    loc, value = _location(detail), detail["input"]
    path = format_path(loc)
    info = type_at(loc)
    match detail["type"]:
        case "missing":
            return Problem(path, None, f"is required: {_expected(info)}")
        case "extra_forbidden":
            return Problem(path, value, _unknown(loc))
        case kind if kind in _OWN_ERRORS:
            return Problem(path, value, detail["msg"])
        case _ if "[key]" in detail["loc"]:
            parent = type_at(loc[:-1])
            return Problem(path, value, f"the name is not allowed: {_expected(parent and parent.key)}")
        case _:
            return Problem(path, value, _not_allowed(value, info))


def _expected(info: TypeInfo | None) -> str:
    return "another value" if info is None else info.expected


def _not_allowed(value: Any, info: TypeInfo | None) -> str:
    found = "is empty" if value is None else f"{show(value)} is not allowed"
    return f"{found}; expected {_expected(info)}{_hint(value, info)}"


def _hint(value: Any, info: TypeInfo | None) -> str:
    if info is None:
        return ""
    if info.kind in ("integer", "number") and isinstance(value, str) and _is_number(value):
        return " (without quotes)"
    if info.kind == "boolean" and isinstance(value, str) and value.lower() in _NOT_A_BOOLEAN:
        return f" ({value} is text in YAML 1.2)"
    if info.kind == "string" and isinstance(value, (int, float)) and not info.values:
        return " (put it in quotes)"
    if info.values and isinstance(value, str) and (near := _closest(value, info.values)) is not None:
        return f" (did you mean {near}?)"
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def show(value: Any) -> str:
    """A value as the file would write it, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _closest(name: str, known: Iterable[str]) -> str | None:
    folded = {candidate.lower(): candidate for candidate in known}
    matches = get_close_matches(to_camel(name).lower(), folded, n=1, cutoff=0.65)
    return folded[matches[0]] if matches else None


def _parent_model(loc: tuple[PathPart, ...]) -> type[BaseModel] | None:
    parent = type_at(loc[:-1])
    return None if parent is None else object_of(parent)


def _nearest_sibling(loc: tuple[PathPart, ...]) -> str | None:
    model = _parent_model(loc)
    return None if model is None else _closest(str(loc[-1]), [field.name for field in fields_of(model)])


@cache
def _homes() -> dict[str, list[str]]:
    """Where each field name exists."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path, field in walk():
        homes[field.name].append(path)
    return homes


def _unknown(loc: tuple[PathPart, ...]) -> str:
    name = str(loc[-1])
    sibling = _nearest_sibling(loc)
    if sibling is not None:
        return f"unknown field; did you mean {sibling}?"
    homes = _homes().get(to_camel(name), [])
    if homes and len(homes) <= 3:
        return f"unknown field here; it belongs at {' or '.join(homes)}"
    model = _parent_model(loc)
    known = ", ".join(field.name for field in fields_of(model)) if model is not None else ""
    return f"unknown field; known here: {known}"
