"""The CustomResourceDefinition as data; tests/apiserver has what a real API server makes of it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml as yaml_1_1
from ruamel.yaml import YAML

from trimtab.api import parse_job
from trimtab.api.crd import custom_resource_definition
from trimtab.api.status import JobStatus

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "charts" / "trimtab" / "files" / "crd.yaml"
SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
STRUCTURAL = frozenset({
    *("type", "format", "description", "default", "nullable", "enum", "pattern", "required", "properties"),
    *("items", "additionalProperties", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minLength", "maxLength", "minItems", "maxItems", "maxProperties", "anyOf"),
    *("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
})  # fmt: skip


def nodes(schema: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Every schema in a schema with its path."""
    found = [(path, schema)]
    for name, child in schema.get("properties", {}).items():
        found += nodes(child, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            found += nodes(schema[name], f"{path}[]")
    return found


NODES = [(path, node) for path, node in nodes(SCHEMA) if path.startswith((".spec", ".status"))]


def test_file_and_page_are_up_to_date():
    script = ROOT / "scripts" / "generate_crd.py"
    result = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_file_says_the_same_in_both_versions_of_yaml():
    text = FILE.read_text(encoding="utf-8")
    data = YAML(typ="safe", pure=True).load(text)
    assert yaml_1_1.safe_load(text) == data == custom_resource_definition()


def test_definition_leaves_room_below_the_limit_of_annotations():
    assert len(json.dumps(custom_resource_definition(), separators=(",", ":"))) < 131_072


def test_schema_uses_only_what_a_structural_one_may():
    assert [(path, name) for path, node in NODES for name in node if name not in STRUCTURAL] == []
    assert [path for path, node in NODES if "type" not in node and "anyOf" not in node] == []


def unbounded(node: dict[str, Any]) -> bool:
    if "enum" in node or node.get("x-kubernetes-preserve-unknown-fields"):
        return False
    needs = {
        "string": ("maxLength",),
        "integer": ("minimum", "maximum"),
        "number": ("minimum", "maximum"),
        "array": ("maxItems", "x-kubernetes-list-type"),
        "object": ("maxProperties",) if "additionalProperties" in node else (),
        None: ("maxLength", "pattern"),
    }.get(node.get("type"), ())
    return any(need not in node for need in needs)


def test_every_number_list_map_and_text_is_bounded():
    assert len(NODES) > 300
    assert [path for path, node in NODES if unbounded(node)] == []


def test_every_field_has_a_description():
    assert [path for path, node in NODES if not path.endswith("[]") and not node.get("description")] == []


def test_lists_that_several_may_write_have_keys():
    keys = {
        path: node.get("x-kubernetes-list-map-keys") or node["x-kubernetes-list-type"]
        for path, node in NODES
        if node.get("x-kubernetes-list-type") not in (None, "atomic")
    }
    assert keys == {
        **{
            f".spec.roles.{role}.env": ["name"]
            for role in ("coordinator", "actor", "critic", "rollout", "reward")
        },
        ".spec.storage.claim.accessModes": "set",
        ".spec.volumes": ["name"],
        ".spec.volumeMounts": ["mountPath"],
        ".spec.scheduling.topologySpreadConstraints": ["topologyKey", "whenUnsatisfiable"],
        ".spec.scheduling.imagePullSecrets": "set",
        ".status.conditions": ["type"],
    }


def filled(value: Any, schema: dict[str, Any]) -> Any:
    """The value with the schema's defaults filled in, as the API server does."""
    if isinstance(value, list) and "items" in schema:
        return [filled(item, schema["items"]) for item in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {})
    value = {name: child["default"] for name, child in properties.items() if "default" in child} | value
    return {name: filled(item, properties.get(name, {})) for name, item in value.items()}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="the smallest job"),
        pytest.param({"data": {"train": {"path": None, "reasoningGym": {"task": "a"}}}}, id="another source"),
        pytest.param(
            {"validation": {"data": {"path": "a"}}, "roles": {"reference": {}}}, id="optional parts"
        ),
        pytest.param({"algorithm": {"grpo": {"kl": {"controller": {"adaptive": {}}}}}}, id="an alternative"),
    ],
)
def test_stored_defaults_are_those_of_the_models(changes, job_data):
    data = job_data(**changes)
    data["spec"]["data"]["train"] = {k: v for k, v in data["spec"]["data"]["train"].items() if v is not None}
    stored = filled(data, SCHEMA)
    assert stored["spec"]["roles"]["rollout"]["replicas"] == 1
    assert parse_job(stored).spec == parse_job(data).spec


def test_status_has_no_defaults():
    assert [path for path, node in nodes(SCHEMA["properties"]["status"]) if "default" in node] == []


def test_paths_of_columns_and_scale_exist():
    version = custom_resource_definition()["spec"]["versions"][0]
    paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
    paths += version["subresources"]["scale"].values()
    known = {path for path, _ in nodes(SCHEMA)} | {".metadata.creationTimestamp"}
    assert [path for path in paths if path not in known] == []


def test_status_model_takes_every_finite_number():
    number = 1.7976931348623157e308
    assert JobStatus.model_validate({"metrics": {"reward": -number}}).metrics.reward == -number
