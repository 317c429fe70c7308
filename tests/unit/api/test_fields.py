import pytest

from trimtab.api import API_VERSION, KIND
from trimtab.api.base import format_bytes, parse_bytes
from trimtab.api.fields import find, format_path, type_at


def test_find_ignores_indices():
    found = find("spec.rewards[0].weight")
    assert found is not None
    assert found[1] == "spec.rewards.weight"
    assert found[0].info.kind == "number"


@pytest.mark.parametrize("path", ["spec.nothing", "nothing", "spec.seed.deeper", ""])
def test_find_unknown_path_is_none(path):
    assert find(path) is None


def test_type_at_follows_lists_and_maps():
    weight = type_at(("spec", "rewards", 3, "weight"))
    label = type_at(("metadata", "labels", "a.b/c"))
    assert weight is not None
    assert weight.kind == "number"
    assert label is not None
    assert label.kind == "string"
    assert type_at(("spec", "nothing", "below")) is None


def test_path_quotes_what_is_no_name():
    assert format_path(("metadata", "labels", "a.b/c")) == "metadata.labels['a.b/c']"
    assert format_path(("spec", "rewards", 0, "weight")) == "spec.rewards[0].weight"


@pytest.mark.parametrize("size", [0, 1, 1000, 1024, 3 * 2**29, 2**31, 2**50])
def test_format_bytes_is_read_back(size):
    assert parse_bytes(format_bytes(size)) == size


def test_constants_are_what_the_model_accepts():
    version, kind = find("apiVersion"), find("kind")
    assert version is not None
    assert kind is not None
    assert version[0].info.values == (API_VERSION,)
    assert kind[0].info.values == (KIND,)
