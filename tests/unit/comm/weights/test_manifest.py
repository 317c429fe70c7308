import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.comm.weights.manifest import (
    build_manifest,
    dtype_name,
    manifest_digest,
    manifest_from_dict,
    manifest_to_dict,
    plan_buckets,
    total_bytes,
)
from trimtab.errors import UserError

_SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=12)


@settings(max_examples=60, deadline=None)
@given(shapes=_SHAPES, bucket_bytes=st.integers(1, 4096))
def test_plan_any_shapes_places_every_tensor_once_without_overlap(shapes, bucket_bytes):
    named = [(f"w{index}", shape) for index, shape in enumerate(shapes)]
    manifest = build_manifest(named, dtype=torch.bfloat16, bucket_bytes=bucket_bytes)
    buckets = plan_buckets(manifest)
    assert [slot.name for bucket in buckets for slot in bucket.slots] == [name for name, _ in named]
    for bucket in buckets:
        end = 0
        for slot in bucket.slots:
            assert slot.offset >= end and slot.offset % 64 == 0
            end = slot.offset + slot.num_bytes
        assert end <= bucket.num_bytes
        largest = max(slot.num_bytes for slot in bucket.slots)
        assert sum(slot.num_bytes for slot in bucket.slots) <= max(bucket_bytes, largest)


def test_plan_tensor_larger_than_a_bucket_gets_its_own():
    manifest = build_manifest(
        [("a", (4,)), ("big", (100,)), ("b", (4,))], dtype=torch.float32, bucket_bytes=64
    )
    assert [[s.name for s in b.slots] for b in plan_buckets(manifest)] == [["a"], ["big"], ["b"]]
    assert total_bytes(manifest) == 4 * 108


def test_slot_view_shares_memory_with_the_buffer():
    manifest = build_manifest([("a", (3,)), ("b", (2, 2))], dtype=torch.float32, bucket_bytes=1024)
    (bucket,) = plan_buckets(manifest)
    buffer = torch.zeros(bucket.num_bytes, dtype=torch.uint8)
    bucket.slots[1].view(buffer).copy_(torch.arange(4.0).view(2, 2))
    assert torch.equal(bucket.slots[1].view(buffer), torch.arange(4.0).view(2, 2))
    assert torch.equal(bucket.slots[0].view(buffer), torch.zeros(3))


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"tensors": [("a", (2, 3)), ("c", (4,))]}, id="another name"),
        pytest.param({"tensors": [("a", (3, 2)), ("b", (4,))]}, id="another shape"),
        pytest.param({"tensors": [("b", (4,)), ("a", (2, 3))]}, id="another order"),
        pytest.param({"dtype": torch.bfloat16}, id="another dtype"),
        pytest.param({"bucket_bytes": 512}, id="another bucket size"),
    ],
)
def test_digest_differs(changed):
    base = {"tensors": [("a", (2, 3)), ("b", (4,))], "dtype": torch.float32, "bucket_bytes": 1024}

    def digest(spec):
        spec = dict(spec)
        return manifest_digest(build_manifest(spec.pop("tensors"), **spec))

    assert digest(base) == digest(base)
    assert digest(base) != digest(base | changed)


def test_manifest_survives_its_json_form():
    manifest = build_manifest([("a", (2, 3)), ("b", ())], dtype=torch.bfloat16, bucket_bytes=77)
    assert manifest_from_dict(manifest_to_dict(manifest)) == manifest


def test_dtype_that_cannot_travel_is_an_error_that_names_those_that_can():
    with pytest.raises(UserError, match=r"torch\.int64 cannot be published; use one of float32, bfloat16"):
        dtype_name(torch.int64)
