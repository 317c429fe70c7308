"""The job's fields as data: type, bounds, default and description of each, by its path in the file.

Read by the messages of validation, `trimtab explain`, the reference page and the CRD: whoever wants to know
what a field takes asks here and never pydantic.
"""

import json
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, StringConstraints
from pydantic.fields import FieldInfo

from trimtab.api.base import Format, IntOrString, ItemKeys, PreserveUnknown, format_bytes
from trimtab.api.job import RLTrainingJob

Kind = Literal["object", "list", "map", "integer", "number", "string", "boolean", "any"]
PathPart = str | int


@dataclass(frozen=True)
class TypeInfo:
    """What values a field takes."""

    kind: Kind
    model: type[BaseModel] | None = None
    """The class of an object."""
    item: "TypeInfo | None" = None
    """What a list's items or a map's values are."""
    key: "TypeInfo | None" = None
    """What a map's keys are."""
    nullable: bool = False
    values: tuple[str, ...] = ()
    """The texts that are allowed, where they are listed."""
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    format: str | None = None
    """The pattern in words."""
    int_or_string: bool = False
    """Written as an integer or a quantity."""
    preserve_unknown: bool = False
    """Members are passed on unread."""
    timestamp: bool = False
    """A time as RFC 3339 writes it."""
    item_keys: tuple[str, ...] | None = None
    """Python names of the fields in which a list's items differ; empty: in themselves. None: they need
    not."""

    @property
    def name(self) -> str:
        """The type as `explain` and the reference page print it."""
        if self.kind == "list" and self.item is not None:
            return f"list of {self.item.name}"
        if self.kind == "map" and self.item is not None:
            return "object" if self.preserve_unknown else f"map of {self.item.name}"
        if self.kind == "integer" and self.int_or_string:
            return "bytes"
        return self.kind

    @property
    def bounds(self) -> str:
        """The bounds in words; empty where there are none."""
        if self.values:
            return "one of " + ", ".join(self.values)
        if self.format is not None:
            return self.format
        if self.kind in ("integer", "number"):
            return self._range()
        return self._length()

    @property
    def expected(self) -> str:
        """What is allowed, as a message says it."""
        if self.values:
            return self.bounds if len(self.values) > 1 else self.values[0]
        if self.model is not None:
            return "an object with " + ", ".join(field.name for field in fields_of(self.model))
        noun = {
            "integer": "a size in bytes or a quantity such as 2Gi"
            if self.int_or_string
            else "a whole number",
            "number": "a number",
            "string": "text",
            "boolean": "true or false",
            "list": "a list",
            "map": "an object",
            "object": "an object",
            "any": "any value",
        }[self.kind]
        if self.format is not None:
            return self.format
        return f"{noun} {self.bounds}".rstrip()

    def _number(self, value: float) -> str:
        if self.int_or_string:
            return format_bytes(int(value))
        return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:g}"

    def _range(self) -> str:
        low, high = self.minimum, self.maximum
        if low is not None and high is not None and not (self.exclusive_minimum or self.exclusive_maximum):
            return f"from {self._number(low)} to {self._number(high)}"
        parts = []
        if low is not None:
            parts.append(f"{'above' if self.exclusive_minimum else 'at least'} {self._number(low)}")
        if high is not None:
            parts.append(f"{'below' if self.exclusive_maximum else 'at most'} {self._number(high)}")
        return " and ".join(parts)

    def _length(self) -> str:
        unit = "characters" if self.kind == "string" else "items" if self.kind == "list" else "members"
        low, high = self.min_length, self.max_length
        if low is not None and low == high:
            return f"of {low} {unit}"
        if low and high is not None:
            return f"of {low} to {high} {unit}"
        if high is not None:
            return f"of at most {high} {unit}"
        return f"of at least {low} {unit}" if low else ""


@dataclass(frozen=True)
class FieldDoc:
    """One field of an object."""

    name: str
    """As the file writes it."""
    python_name: str
    info: TypeInfo
    required: bool
    default: Any
    """JSON value, with the file's names; None where there is none or it follows from other fields."""
    derived: bool
    """The default follows from other fields."""
    description: str

    @property
    def default_text(self) -> str:
        """The default as the file would write it, or why there is none."""
        if self.required:
            return "none: required"
        if self.derived:
            return "from other fields"
        if self.default is None:
            return "none"
        if self.info.int_or_string and isinstance(self.default, int):
            return format_bytes(self.default)
        return json.dumps(self.default, ensure_ascii=False)


@cache
def fields_of(model: type[BaseModel]) -> tuple[FieldDoc, ...]:
    """The fields of an object, in the order of the class."""
    return tuple(_field_doc(name, field) for name, field in model.model_fields.items())


def find(path: str) -> tuple[FieldDoc, str] | None:
    """The field at a path such as `spec.rewards[0].weight` (indices may be left out), and its path as known.

    None where no such field exists. The root has no field of its own: ask `fields_of(RLTrainingJob)`.
    """
    model: type[BaseModel] | None = RLTrainingJob
    found: FieldDoc | None = None
    names: list[str] = []
    for part in re.sub(r"\[\w*\]", "", path).split("."):
        found = next((f for f in fields_of(model) if f.name == part), None) if model is not None else None
        if found is None:
            return None
        names.append(part)
        model = object_of(found.info)
    return None if found is None else (found, ".".join(names))


def type_at(loc: tuple[PathPart, ...]) -> TypeInfo | None:
    """The type at a location in a document; None where the models do not say."""
    info: TypeInfo | None = TypeInfo("object", model=RLTrainingJob)
    for part in loc:
        if info is None:
            return None
        if info.model is not None:
            info = next((field.info for field in fields_of(info.model) if field.name == part), None)
        else:
            info = info.item
    return info


def object_of(info: TypeInfo) -> type[BaseModel] | None:
    """The class of the object, of the list's items or of the map's values."""
    return info.model if info.model is not None else object_of(info.item) if info.item is not None else None


def walk(model: type[BaseModel] = RLTrainingJob, prefix: str = "") -> Iterator[tuple[str, FieldDoc]]:
    """Every field below a model with its path, depth first."""
    for field in fields_of(model):
        path = f"{prefix}.{field.name}" if prefix else field.name
        yield path, field
        child = object_of(field.info)
        if child is not None:
            yield from walk(child, path + ("[]" if field.info.kind == "list" else ""))


def format_path(loc: tuple[PathPart, ...]) -> str:
    """A location as messages write it: `spec.rewards[0].weight`."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", part):
            text += f".{part}" if text else part
        else:
            text += f"[{part!r}]"
    return text


def _field_doc(name: str, field: FieldInfo) -> FieldDoc:
    derived = field.default_factory is not None and bool(field.default_factory_takes_validated_data)
    default = None
    if not field.is_required() and not derived:
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            default = default.model_dump(mode="json", exclude_unset=True)
        elif isinstance(default, tuple):
            default = list(default)
    info = _type_info(field.annotation)
    return FieldDoc(
        name=field.alias or name,
        python_name=name,
        info=_with_metadata(info, field.metadata),
        required=field.is_required(),
        default=default,
        derived=derived,
        description=" ".join((field.description or "").split()),
    )


_SCALARS: dict[Any, Kind] = {int: "integer", float: "number", str: "string", bool: "boolean", Any: "any"}


def _type_info(annotation: Any) -> TypeInfo:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _SCALARS:
        return TypeInfo(_SCALARS[annotation])
    if annotation is datetime:
        return TypeInfo("string", timestamp=True)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return TypeInfo("object", model=annotation)
    if origin in (Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not type(None)]
        assert len(inner) == 1, f"{annotation}: the only union in the API is with None"
        return replace(_type_info(inner[0]), nullable=True)
    if origin is Literal:
        return TypeInfo("string", values=arguments)
    if origin is tuple:
        assert arguments[1:] == (...,), f"{annotation}: lists are tuple[X, ...]"
        return TypeInfo("list", item=_type_info(arguments[0]))
    if origin is dict:
        return TypeInfo("map", key=_type_info(arguments[0]), item=_type_info(arguments[1]))
    assert hasattr(annotation, "__metadata__"), f"{annotation} has no place in the API"
    return _with_metadata(_type_info(arguments[0]), annotation.__metadata__)


def _with_metadata(info: TypeInfo, metadata: Any) -> TypeInfo:
    for item in metadata:
        if isinstance(item, FieldInfo):
            info = _with_metadata(info, item.metadata)
        elif isinstance(item, StringConstraints):
            info = _with_metadata(info, list(item))
            info = replace(info, pattern=str(item.pattern)) if item.pattern is not None else info
        else:
            info = replace(info, **_constraint(item))
    return info


def _constraint(item: Any) -> dict[str, Any]:
    match item:
        case annotated_types.Ge(ge=low):
            return {"minimum": low}
        case annotated_types.Gt(gt=low):
            return {"minimum": low, "exclusive_minimum": True}
        case annotated_types.Le(le=high):
            return {"maximum": high}
        case annotated_types.Lt(lt=high):
            return {"maximum": high, "exclusive_maximum": True}
        case annotated_types.MinLen(min_length=low):
            return {"min_length": low}
        case annotated_types.MaxLen(max_length=high):
            return {"max_length": high}
        case Format(text=text):
            return {"format": text}
        case IntOrString():
            return {"int_or_string": True}
        case PreserveUnknown():
            return {"preserve_unknown": True}
        case ItemKeys(names=names):
            return {"item_keys": names}
        case _:
            return {}
