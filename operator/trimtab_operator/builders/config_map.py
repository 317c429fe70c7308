"""The immutable ConfigMap of an attempt: what its pods read, and what further pods are rendered from."""

import json
from collections.abc import Mapping
from typing import Any

from trimtab.api import ResolvedJob
from trimtab.api.fields import TypeInfo
from trimtab.api.load import without_unknown
from trimtab.errors import TrimtabError
from trimtab_operator.builders.meta import Manifest, child
from trimtab_operator.constants import JOB_FILE, RENDERING_FILE
from trimtab_operator.model.resolved import SCHEMA_VERSION, Resolved


class ResolvedError(TrimtabError):
    """A stored resolved spec that this operator cannot read: nothing may be rendered from it."""


def resolved_manifest(resolved: Resolved) -> Manifest:
    """The ConfigMap that holds a resolved spec; `load_resolved` reads it."""
    return child(resolved, api_version="v1", kind="ConfigMap", name=resolved.name) | {
        "immutable": True,
        "data": {
            JOB_FILE: resolved.resolved_job.model_dump_json(),
            RENDERING_FILE: resolved.model_dump_json(exclude={"resolved_job"}),
        },
    }


def load_resolved(stored: Mapping[str, Any]) -> Resolved:
    """The resolved spec in a ConfigMap. `ResolvedError` where a newer operator wrote it, or it is damaged.

    Fields that are not known are ignored, so that an operator goes on with what the next version wrote.
    """
    name = stored["metadata"]["name"]
    data = stored.get("data") or {}
    try:
        job = without_unknown(json.loads(data[JOB_FILE]), TypeInfo("object", model=ResolvedJob))
        rendering = json.loads(data[RENDERING_FILE])
        version = rendering.get("schemaVersion", SCHEMA_VERSION)
        if version > SCHEMA_VERSION:
            raise ResolvedError(
                f"ConfigMap {name} has schema version {version}, and this operator reads up to"
                f" {SCHEMA_VERSION}: run the operator that wrote it, or a later one"
            )
        return Resolved.model_validate_json(json.dumps(rendering | {"resolvedJob": job}))
    except KeyError as error:
        raise ResolvedError(f"ConfigMap {name} has no {error.args[0]}") from error
    except ValueError as error:
        raise ResolvedError(f"ConfigMap {name} holds no resolved job: {error}") from error
