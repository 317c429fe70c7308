"""What every model of the job is built from: the base classes and the bounded types.

Imported by the other modules of `trimtab.api` alone. No I/O; imports neither torch nor vllm.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


class Model(BaseModel):
    """Base of every part of a job: frozen, camelCase in YAML, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        defer_build=True,
    )


class KubernetesObject(Model):
    """Part of a Kubernetes object: the fields that Trimtab reads are typed, the others pass through."""

    model_config = ConfigDict(extra="allow")

    passed_on: ClassVar[tuple[str, ...]] = ()
    """Objects among those others that the CRD shall know. Where it knows neither, a rule takes an object with
    one unknown member for one with another."""


class OneOf(Model):
    """An alternative: exactly one of the members that `alternatives()` names is given."""

    shared: ClassVar[frozenset[str]] = frozenset()
    """Python names of the fields that are no alternatives."""

    @classmethod
    def alternatives(cls) -> tuple[str, ...]:
        """Python names of the members of which exactly one is given."""
        return tuple(name for name in cls.model_fields if name not in cls.shared)

    @property
    def chosen(self) -> str:
        """Python name of the member that is given."""
        return next(name for name in self.alternatives() if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _exactly_one(self) -> "OneOf":
        given = [to_camel(name) for name in self.alternatives() if getattr(self, name) is not None]
        if len(given) != 1:
            allowed = ", ".join(to_camel(name) for name in self.alternatives())
            raise PydanticCustomError(
                "one_of",
                "{found}; exactly one of these is allowed: {allowed}",
                {
                    "found": f"{' and '.join(given)} are given together" if given else "nothing is chosen",
                    "allowed": allowed,
                    "given": ", ".join(given),
                },
            )
        return self


_SUFFIXES = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip
_QUANTITY = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$")


def parse_bytes(value: object) -> object:
    """Turn a Kubernetes quantity such as `2Gi` into bytes; other types go on to the integer check."""
    if not isinstance(value, str):
        return value
    match = _QUANTITY.match(value)
    if match is None:
        raise PydanticCustomError(
            "quantity", "must be a number of bytes or a quantity such as 512Mi, 2Gi or 1500M"
        )
    return int(Decimal(match[1]) * _SUFFIXES[match[2] or ""])


def quantity_value(text: str) -> Decimal:
    """The number that a `Quantity` such as 500m or 2Gi stands for."""
    number = text.rstrip("mkKMGTPi")
    suffix = text[len(number) :]
    return Decimal(number) * (Decimal("0.001") if suffix == "m" else _SUFFIXES[suffix])


def _quantity_text(value: object) -> object:
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def format_bytes(size: int) -> str:
    """Write a size as the shortest quantity that is exact: 2Gi, 1536Mi, 1000."""
    for suffix in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        if size and size % _SUFFIXES[suffix] == 0:
            return f"{size // _SUFFIXES[suffix]}{suffix}"
    return str(size)


@dataclass(frozen=True)
class Format:
    """Says in words what a text's pattern allows."""

    text: str


@dataclass(frozen=True)
class ItemKeys:
    """Marks a list whose items differ in these fields (in themselves, where none is named), and checks it.

    In the CRD such a list is a list-map or a set, which several writers can own parts of.
    """

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The list's own schema with the check after it."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        seen = set()
        for item in items:
            key = tuple(getattr(item, name) for name in self.names) if self.names else item
            if key in seen:
                text = " and ".join(map(repr, key)) if self.names else repr(key)
                fields = " and ".join(to_camel(name) for name in self.names) or "value"
                raise PydanticCustomError(
                    "item_keys",
                    "{text} appears twice; each item has its own {fields}",
                    {"text": text, "fields": fields},
                )
            seen.add(key)
        return items


class IntOrString:
    """Marks a field that YAML writes as an integer or a quantity string (for the CRD)."""


class PreserveUnknown:
    """Marks an object whose members Trimtab passes on unread (for the CRD)."""


Bytes = Annotated[int, BeforeValidator(parse_bytes), IntOrString()]
"""A size in bytes; YAML may say 2Gi."""

Quantity = Annotated[
    str,
    BeforeValidator(_quantity_text),
    StringConstraints(
        min_length=1, max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
    ),
    Format("a Kubernetes quantity such as 500m, 4 or 16Gi"),
    IntOrString(),
]
"""A Kubernetes quantity, kept as it is written."""

JsonObject = Annotated[
    dict[Annotated[str, StringConstraints(min_length=1, max_length=256)], Any],
    Field(max_length=256),
    PreserveUnknown(),
]
"""Free-form members, passed on as they are."""

DnsLabel = Annotated[
    str,
    StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"),
    Format("a DNS label: at most 63 lower-case letters, digits and dashes, a letter or digit at each end"),
]
ObjectName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"),
    Format("the name of a Kubernetes object: lower-case letters, digits, dashes and dots"),
]
Text = Annotated[str, StringConstraints(max_length=65536)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
PathText = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
ImportPath = Annotated[
    str,
    StringConstraints(
        min_length=3,
        max_length=256,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$",
    ),
    Format("an import path such as package.module:Name"),
]
"""`package.module:name`."""
Seconds = Annotated[float, Field(gt=0, le=31_536_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
