"""Structural OpenAPI v3 schemas, as a CustomResourceDefinition needs them, from the models of the API.

Called by `crd`. pydantic's own schemas have what a structural one must not (`$ref`, `anyOf` with null,
numeric `exclusiveMinimum`, `const`, `title`), so this goes over `fields` instead.

Defaults: those that are the same for every job are in the schema, so that they are stored with a job when it
is created and a later version's other default does not reach it. Those that follow from other fields or from
the platform are not, nor empty lists and maps, nor defaults of the fields beside an alternative
(`OneOf.shared`), which are refused beside other members.
"""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from trimtab.api.base import KubernetesObject, OneOf
from trimtab.api.fields import FieldDoc, TypeInfo, fields_of

Schema = dict[str, Any]
RulesOf = Callable[[type[BaseModel]], list[Schema]]
"""The `x-kubernetes-validations` of an object."""

_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
_QUANTITY_LENGTH = 32


def object_schema(model: type[BaseModel], *, rules_of: RulesOf, defaults: bool) -> Schema:
    """The schema of an object; `defaults` is off for a status, which nobody but its writer fills in."""
    properties = {
        field.name: _field_schema(model, field, rules_of=rules_of, defaults=defaults)
        for field in fields_of(model)
    }
    if issubclass(model, KubernetesObject):
        properties |= {name: _passed_on(name) for name in model.passed_on}
    schema: Schema = {"type": "object", "description": " ".join((model.__doc__ or "").split())}
    if properties:
        schema["properties"] = properties
    if required := [field.name for field in fields_of(model) if field.required]:
        schema["required"] = required
    if model.model_config.get("extra") == "allow":
        schema["x-kubernetes-preserve-unknown-fields"] = True
    if rules := rules_of(model):
        schema["x-kubernetes-validations"] = rules
    return schema


def stored_default(model: type[BaseModel], field: FieldDoc) -> Any:
    """The default that the API server fills in; None where there is none in the schema."""
    if issubclass(model, OneOf) and field.python_name in model.shared:
        return None
    if field.default in ([], {}) and not (field.info.model is not None and _has_default(field.info.model)):
        return None
    return field.default


def _has_default(model: type[BaseModel]) -> bool:
    return any(stored_default(model, field) is not None for field in fields_of(model))


def _field_schema(model: type[BaseModel], field: FieldDoc, *, rules_of: RulesOf, defaults: bool) -> Schema:
    schema: Schema = {"description": ""} | _type_schema(field.info, rules_of=rules_of, defaults=defaults)
    schema["description"] = field.description
    default = stored_default(model, field) if defaults else None
    if default is not None:
        schema["default"] = default
        if field.info.nullable:
            schema["nullable"] = True  # null says something else than leaving the field out
    return schema


def _passed_on(name: str) -> Schema:
    return {
        "description": f"{name}, as in Kubernetes; passed on as it is.",
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    }


def _type_schema(info: TypeInfo, *, rules_of: RulesOf, defaults: bool) -> Schema:
    if info.model is not None:
        return object_schema(info.model, rules_of=rules_of, defaults=defaults)
    if info.int_or_string:
        return _int_or_string(info)
    match info.kind:
        case "list":
            assert info.item is not None
            items = _type_schema(info.item, rules_of=rules_of, defaults=defaults)
            return {"type": "array", "items": items} | _length("Items", info) | _list_type(info)
        case "map" if info.preserve_unknown:
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True} | _length(
                "Properties", info
            )
        case "map":
            assert info.item is not None
            values = _type_schema(info.item, rules_of=rules_of, defaults=defaults)
            return {"type": "object", "additionalProperties": values} | _length("Properties", info)
        case "integer":
            return {"type": "integer", "format": "int64"} | _range(info)
        case "number":
            return {"type": "number", "format": "double"} | _range(info)
        case "string" if info.values:
            return {"type": "string", "enum": list(info.values)}
        case "string" if info.timestamp:
            return {"type": "string", "format": "date-time", "maxLength": 64}
        case "string":
            return {"type": "string"} | _length("Length", info) | _pattern(info.pattern)
        case "boolean":
            return {"type": "boolean"}
        case _:
            raise AssertionError(f"{info} has no place in a structural schema")


def _int_or_string(info: TypeInfo) -> Schema:
    """Number bounds hold for numbers, and length and pattern for text; `trimtab.api` checks both the same."""
    return {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": info.max_length or _QUANTITY_LENGTH,
        **_pattern(info.pattern or _QUANTITY),
        **_range(info),
    }


def _list_type(info: TypeInfo) -> Schema:
    keys, item = info.item_keys, info.item
    if keys is None:
        return {"x-kubernetes-list-type": "atomic"}
    if not keys:
        return {"x-kubernetes-list-type": "set"}
    assert item is not None
    assert item.model is not None
    names = {field.python_name: field.name for field in fields_of(item.model)}
    return {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [names[key] for key in keys],
    }


def _range(info: TypeInfo) -> Schema:
    schema: Schema = {}
    if info.minimum is not None:
        schema["minimum"] = info.minimum
        if info.exclusive_minimum:
            schema["exclusiveMinimum"] = True
    if info.maximum is not None:
        schema["maximum"] = info.maximum
        if info.exclusive_maximum:
            schema["exclusiveMaximum"] = True
    return schema


def _length(what: str, info: TypeInfo) -> Schema:
    schema: Schema = {}
    if info.min_length:
        schema[f"min{what}"] = info.min_length
    if info.max_length is not None:
        schema[f"max{what}"] = info.max_length
    return schema


def _pattern(pattern: str | None) -> Schema:
    return {} if pattern is None else {"pattern": pattern}
