# ruff: noqa: S108 - folders in a pod
import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab_operator.builders.merge import TEMPLATE, Fields, Items, MergeError, merge_template

BASE: dict[str, Any] = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "nodeSelector": {"zone": "x"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "containers": [
            {
                "name": "trimtab",
                "image": "worker:1",
                "command": ["trimtab", "agent"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                "ports": [{"containerPort": 7070, "name": "control"}],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory"}}],
        "imagePullSecrets": [{"name": "one"}],
    },
}


def merged(**spec: Any) -> dict[str, Any]:
    result: dict[str, Any] = merge_template(BASE, {"spec": spec})["spec"]
    return result


def main(**fields: Any) -> dict[str, Any]:
    container: dict[str, Any] = merged(containers=[{"name": "trimtab", **fields}])["containers"][0]
    return container


def test_merge_objects_key_by_key() -> None:
    assert merged(nodeSelector={"disk": "ssd"})["nodeSelector"] == {"zone": "x", "disk": "ssd"}


def test_merge_null_deletes() -> None:
    assert merged(nodeSelector={"zone": None})["nodeSelector"] == {}
    assert "tolerations" not in merged(tolerations=None)
    assert "new" not in merged(affinity={"new": None})["affinity"]


def test_merge_lists_without_a_key_are_replaced() -> None:
    assert merged(tolerations=[{"key": "other"}])["tolerations"] == [{"key": "other"}]
    assert main(command=["sh"])["command"] == ["sh"]


def test_merge_containers_by_name_and_new_ones_last() -> None:
    containers = merged(containers=[{"name": "sidecar", "image": "s"}, {"name": "trimtab", "image": "x"}])[
        "containers"
    ]
    assert [c["name"] for c in containers] == ["trimtab", "sidecar"]
    assert containers[0]["image"] == "x"
    assert containers[0]["command"] == ["trimtab", "agent"]


def test_merge_env_by_name_where_it_stands() -> None:
    env = main(env=[{"name": "C", "value": "3"}, {"name": "A", "value": "new"}])["env"]
    assert env == [
        {"name": "A", "value": "new"},
        {"name": "B", "value": "2"},
        {"name": "C", "value": "3"},
    ]


def test_merge_variable_that_comes_from_elsewhere_loses_its_value() -> None:
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    assert main(env=[{"name": "A", "valueFrom": source}])["env"][0] == {"name": "A", "valueFrom": source}


def test_merge_volume_of_another_kind_loses_the_old_one() -> None:
    claim = {"claimName": "c"}
    volumes = merged(volumes=[{"name": "tmp", "persistentVolumeClaim": claim}])["volumes"]
    assert volumes == [{"name": "tmp", "persistentVolumeClaim": claim}]


def test_merge_volume_of_the_same_kind_keeps_what_is_not_named() -> None:
    volumes = merged(volumes=[{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}])["volumes"]
    assert volumes == [{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]


def test_merge_mounts_by_path_and_ports_by_number() -> None:
    mounts = main(volumeMounts=[{"mountPath": "/tmp", "name": "scratch"}])["volumeMounts"]
    assert mounts == [{"mountPath": "/tmp", "name": "scratch"}]
    ports = main(ports=[{"containerPort": 9090, "name": "metrics"}])["ports"]
    assert [port["containerPort"] for port in ports] == [7070, 9090]


def test_merge_directive_deletes_an_item() -> None:
    env = main(env=[{"name": "A", "$patch": "delete"}, {"name": "nobody", "$patch": "delete"}])["env"]
    assert env == [{"name": "B", "value": "2"}]


def test_merge_directive_replaces_an_object_a_list_and_an_item() -> None:
    assert merged(nodeSelector={"$patch": "replace", "disk": "ssd"})["nodeSelector"] == {"disk": "ssd"}
    env = main(env=[{"$patch": "replace"}, {"name": "C", "value": "3"}])["env"]
    assert env == [{"name": "C", "value": "3"}]
    assert main(**{"$patch": "replace", "image": "x"}) == {"name": "trimtab", "image": "x"}


def test_merge_changes_neither_side() -> None:
    base, patch = copy.deepcopy(BASE), {"spec": {"containers": [{"name": "trimtab", "env": None}]}}
    before = copy.deepcopy(patch)
    merge_template(base, patch)
    assert (base, patch) == (BASE, before)


@pytest.mark.parametrize(
    ("patch", "path"),
    [
        ({"spec": []}, "spec"),
        ({"metadata": {"labels": "x"}}, "metadata.labels"),
        ({"spec": {"containers": {}}}, "spec.containers"),
        ({"spec": {"containers": ["x"]}}, "spec.containers[0]"),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers[0]"),
        ({"spec": {"volumes": [{"name": ["x"]}]}}, "spec.volumes[0].name"),
        ({"spec": {"containers": [{"name": "x", "env": [{"value": "1"}]}]}}, "spec.containers[0].env[0]"),
        ({"spec": {"nodeSelector": {"$patch": "away"}}}, "spec.nodeSelector.$patch"),
    ],
)
def test_merge_of_what_is_no_template_says_where(patch: dict[str, Any], path: str) -> None:
    with pytest.raises(MergeError) as caught:
        merge_template(BASE, patch)
    assert caught.value.path == path


# Any templates: drawn along the merge keys, from few names, so that they clash

_values = st.recursive(
    st.sampled_from(["x", "y", 1, 2, True]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("pqr"), inner, max_size=2),
    max_leaves=4,
)


def _template(schema: Fields | Items | None) -> st.SearchStrategy[Any]:
    match schema:
        case None:
            return _values
        case Items(key=key, item=item):
            items = _template(item).flatmap(
                lambda rest: st.sampled_from(["a", "b", "c"]).map(lambda name: {key: name, **rest})
            )
            return st.lists(items, max_size=3, unique_by=lambda entry: entry[key])
        case Fields(fields=fields):
            known = {name: _template(below) for name, below in fields.items()}
            return st.fixed_dictionaries({}, optional=known | {"p": _values, "q": _values})


templates = _template(TEMPLATE)
_few = settings(max_examples=50)


@_few
@given(templates)
def test_merge_with_nothing_is_the_identity(base: dict[str, Any]) -> None:
    assert merge_template(base, {}) == base


@_few
@given(templates)
def test_merge_onto_nothing_is_the_patch(patch: dict[str, Any]) -> None:
    assert merge_template({}, patch) == patch


@_few
@given(templates, templates)
def test_merge_twice_is_merge_once(base: dict[str, Any], patch: dict[str, Any]) -> None:
    once = merge_template(base, patch)
    assert merge_template(once, patch) == once


@_few
@given(templates, templates)
def test_merge_leaves_every_place_of_the_base_in_order(base: dict[str, Any], patch: dict[str, Any]) -> None:
    def names(template: dict[str, Any]) -> list[str]:
        return [item["name"] for item in template.get("spec", {}).get("containers", [])]

    result = names(merge_template(base, patch))
    assert result[: len(names(base))] == names(base)
    assert set(result) == {*names(base), *names(patch)}
