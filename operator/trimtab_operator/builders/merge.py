"""Strategic merge of pod templates, as Kubernetes does it: lists of named things are merged by their name.

`merge_template(base, patch)` gives a new template: objects are merged key by key, null deletes a key, lists
with a merge key are merged item by item, other lists are replaced. `$patch: delete` in an item deletes it,
`$patch: replace` in an object or list replaces all that was there. Three things are as `kubectl apply`
makes them, not as the bare algorithm: an item of `volumes`, `resourceClaims` or `env` loses the fields that
the patch does not name (so that a volume or variable changes its kind), items keep their places, and new
ones come last (so that a variable of a template may refer to one before it).

The keys are those of the API server's OpenAPI document (`x-kubernetes-patch-merge-key`); a test compares.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

DIRECTIVE: Final = "$patch"


class MergeError(ValueError):
    """A template that cannot be merged: where, and what is wrong."""

    def __init__(self, path: str, value: object, message: str) -> None:
        self.path, self.value, self.message = path, value, message
        super().__init__(f"{path}: {message}")


@dataclass(frozen=True, kw_only=True)
class Fields:
    """An object: which of its fields are merged by more than their names."""

    fields: Mapping[str, "Fields | Items"] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Items:
    """A list of objects that are the same where `key` is."""

    key: str
    item: Fields = Fields()
    whole: bool = False
    """An item keeps only the fields that the patch names."""


_CONTAINER: Final = Fields(
    fields={
        "env": Items(key="name", whole=True),
        "ports": Items(key="containerPort"),
        "volumeMounts": Items(key="mountPath"),
        "volumeDevices": Items(key="devicePath"),
        "resources": Fields(),
    }
)
_POD_SPEC: Final = Fields(
    fields={
        "containers": Items(key="name", item=_CONTAINER),
        "initContainers": Items(key="name", item=_CONTAINER),
        "volumes": Items(key="name", whole=True),
        "resourceClaims": Items(key="name", whole=True),
        "imagePullSecrets": Items(key="name"),
        "hostAliases": Items(key="ip"),
        "topologySpreadConstraints": Items(key="topologyKey"),
        "schedulingGates": Items(key="name"),
        "evictionResponders": Items(key="name"),
    }
)
_METADATA: Final = Fields(fields={"labels": Fields(), "annotations": Fields()})
TEMPLATE: Final = Fields(fields={"metadata": _METADATA, "spec": _POD_SPEC})
"""Merge keys of a pod template."""


def merge_template(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the patch laid over it; neither is changed. Raises `MergeError`."""
    return _merge_object(base, patch, TEMPLATE, "")


def _merge_object(
    base: Mapping[str, Any], patch: Mapping[str, Any], schema: Fields, path: str
) -> dict[str, Any]:
    directive = patch.get(DIRECTIVE)
    if directive not in (None, "merge", "replace", "delete"):
        raise MergeError(
            f"{path}.{DIRECTIVE}".lstrip("."), directive, "allowed are merge, replace and delete"
        )
    if directive == "delete":
        return {}
    result = {} if directive == "replace" else dict(base)
    for name, value in patch.items():
        if name == DIRECTIVE:
            continue
        if value is None:
            result.pop(name, None)
            continue
        where = f"{path}.{name}" if path else name
        result[name] = _merge_value(result.get(name), value, schema.fields.get(name), where)
    return result


def _merge_value(old: Any, new: Any, schema: Fields | Items | None, path: str) -> Any:
    if isinstance(schema, Items):
        return _merge_list([] if old is None else old, new, schema, path)
    if isinstance(schema, Fields) and not isinstance(new, Mapping):
        raise MergeError(path, new, "expected an object")
    if isinstance(new, Mapping):
        below = schema or Fields()
        return _merge_object(old if isinstance(old, Mapping) else {}, new, below, path)
    return new


def _merge_list(old: list[Any], new: Any, schema: Items, path: str) -> list[Any]:
    items = list(_items(new, schema, path))
    replace = any(item.get(DIRECTIVE) == "replace" and schema.key not in item for item in items)
    merged = [] if replace else list(old)
    for index, item in enumerate(items):
        if schema.key not in item:
            continue  # the directive that replaces the list
        place = _place(merged, item[schema.key], schema.key)
        if item.get(DIRECTIVE) == "delete":
            del merged[place : place + 1]
            continue
        before = merged[place] if place < len(merged) else {}
        if schema.whole:
            before = {name: value for name, value in before.items() if name in item}
        merged[place : place + 1] = [_merge_object(before, item, schema.item, f"{path}[{index}]")]
    return merged


def _place(items: list[Any], value: object, key: str) -> int:
    """Index of the item that the value names; the list's length where there is none."""
    return next((index for index, item in enumerate(items) if item.get(key) == value), len(items))


def _items(new: Any, schema: Items, path: str) -> Iterator[Mapping[str, Any]]:
    if not isinstance(new, (list, tuple)):
        raise MergeError(path, new, "expected a list")
    for index, item in enumerate(new):
        if not isinstance(item, Mapping):
            raise MergeError(f"{path}[{index}]", item, "expected an object")
        key = item.get(schema.key)
        if key is None and item.get(DIRECTIVE) != "replace":
            raise MergeError(f"{path}[{index}]", item, f"has no {schema.key}, by which it is merged")
        if isinstance(key, (dict, list)):
            raise MergeError(f"{path}[{index}].{schema.key}", key, "expected text or a number")
        yield item
