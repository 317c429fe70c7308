import contextlib
import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trimtab.comm.experience.frames import MAX_ARRAYS, MAX_HEADER_BYTES, FrameError, Message, decode, encode

DTYPES = ["bool", "int8", "int32", "int64", "uint8", "uint16", "float16", "float32", "float64"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
)


def frames_of(header: dict[str, Any], *buffers: bytes) -> list[bytes]:
    text = json.dumps(header).encode()
    return [struct.pack("<4sHI", b"TTEP", 1, len(text)) + text, *buffers]


@given(
    kind=st.text(),
    meta=st.dictionaries(st.text(), json_values, max_size=4),
    named=st.dictionaries(st.text(), arrays, max_size=4),
)
def test_decode_of_encode_returns_the_message(
    kind: str, meta: dict[str, Any], named: dict[str, np.ndarray[Any, Any]]
) -> None:
    received = decode([bytes(frame) for frame in encode(Message(kind, meta, named))])
    assert (received.kind, received.meta) == (kind, meta)
    assert list(received.arrays) == list(named)
    for name, array in named.items():
        assert received.arrays[name].dtype == array.dtype
        assert received.arrays[name].shape == array.shape
        assert received.arrays[name].tobytes() == array.tobytes()


@given(st.lists(st.binary(max_size=64), max_size=4))
def test_decode_of_garbage_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(FrameError):
        decode(frames)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_decode_of_a_damaged_message_is_refused_or_still_a_message(position: int, value: int) -> None:
    original = [bytes(f) for f in encode(Message("batch", {"key": "k"}, {"x": np.arange(5, dtype=np.int32)}))]
    frames = [bytearray(frame) for frame in original]
    frame = frames[position % len(frames)]
    frame[position % len(frame)] = value
    with contextlib.suppress(FrameError):
        assert isinstance(decode([bytes(f) for f in frames]), Message)


def test_encode_does_not_copy_contiguous_arrays() -> None:
    array = np.arange(1024, dtype=np.float32)
    frame = encode(Message("batch", {}, {"x": array}))[1]
    assert np.shares_memory(np.frombuffer(frame, np.float32), array)


def test_strided_and_big_endian_arrays_arrive_as_their_values() -> None:
    strided, swapped = np.arange(10)[::2], np.arange(3, dtype=">i4")
    received = decode([bytes(f) for f in encode(Message("x", {}, {"a": strided, "b": swapped}))])
    np.testing.assert_array_equal(received.arrays["a"], strided)
    np.testing.assert_array_equal(received.arrays["b"], [0, 1, 2])


def test_bfloat16_travels_as_its_bit_pattern() -> None:
    bits = np.array([0x3F80, 0xC000], np.uint16)  # 1.0, -2.0
    received = decode([bytes(f) for f in encode(Message("x", {}, {"w": bits}, frozenset({"w"})))])
    assert received.bfloat16 == {"w"}
    np.testing.assert_array_equal(received.arrays["w"], bits)


def test_unaligned_buffer_is_copied_to_aligned_memory() -> None:
    header, body = (bytes(f) for f in encode(Message("x", {}, {"a": np.arange(4.0)})))
    shifted = memoryview(b"\0" + body)[1:]
    array = decode([header, shifted]).arrays["a"]
    assert array.flags.aligned
    np.testing.assert_array_equal(array, np.arange(4.0))


UNSENDABLE: dict[str, tuple[Message, str]] = {
    "objects": (Message("x", {}, {"a": np.array([object()])}), "dtype object"),
    "complex numbers": (Message("x", {}, {"a": np.zeros(1, complex)}), "dtype complex128"),
    "dates": (Message("x", {}, {"a": np.zeros(1, "M8[s]")}), "dtype datetime64"),
    "bfloat16 held as floats": (Message("x", {}, {"a": np.zeros(1, "f4")}, frozenset({"a"})), "not uint16"),
    "a meta value that is no JSON": (Message("x", {"a": object()}), "not JSON"),
    "a meta value that is not finite": (Message("x", {"a": math.nan}), "not JSON"),
    "too many arrays": (
        Message("x", {}, {str(i): np.zeros(1) for i in range(MAX_ARRAYS + 1)}),
        "has 65 arrays, allowed are 64",
    ),
    "too long a text": (Message("x", {"text": "a" * (MAX_HEADER_BYTES + 1)}), "allowed"),
}


@pytest.mark.parametrize(("message", "text"), UNSENDABLE.values(), ids=UNSENDABLE.keys())
def test_encode_refuses(message: Message, text: str) -> None:
    with pytest.raises(FrameError, match=text):
        encode(message)


def one(dtype: Any = "int32", shape: Any = (2,), name: Any = "a") -> dict[str, Any]:
    return {"kind": "x", "meta": {}, "arrays": [[name, dtype, shape]]}


REFUSED: dict[str, tuple[list[bytes], str]] = {
    "no frames": ([], "without frames"),
    "another protocol": ([b"GET / HTTP/1.1\r\n"], "not a Trimtab message"),
    "a pickle": ([b"\x80\x04\x95" + b"\0" * 20], "not a Trimtab message"),
    "another version": (
        [struct.pack("<4sHI", b"TTEP", 7, 2) + b"{}"],
        "version 7, this .* version 1",
    ),
    "a short header": ([b"TTEP"], "shorter than its fixed part"),
    "a truncated header": ([struct.pack("<4sHI", b"TTEP", 1, 100) + b"{}"], "announces 100 bytes and has 2"),
    "a header that is no JSON": ([struct.pack("<4sHI", b"TTEP", 1, 2) + b"{!"], "not JSON"),
    "NaN in the header": (
        [struct.pack("<4sHI", b"TTEP", 1, 32) + b'{"kind":"x","meta":{"a":NaN}    }'[:32]],
        "not JSON",
    ),
    "nesting without end": ([struct.pack("<4sHI", b"TTEP", 1, 100_000) + b"[" * 100_000], "not JSON"),
    "a header that is a list": ([struct.pack("<4sHI", b"TTEP", 1, 2) + b"[]"], "not an object"),
    "no kind": (frames_of({"meta": {}, "arrays": []}), "lacks kind"),
    "a buffer too few": (frames_of(one()), "announces 1 arrays and brings 0"),
    "a buffer too many": (frames_of(one(), b"\0" * 8, b""), "announces 1 arrays and brings 2"),
    "a truncated buffer": (frames_of(one(), b"\0" * 7), "needs 8 bytes, its buffer has 7"),
    "an unknown dtype": (frames_of(one("object"), b"\0" * 8), "dtype 'object', allowed are"),
    "a dtype that is no text": (frames_of(one({}), b"\0" * 8), "describes an array as"),
    "a negative size": (frames_of(one(shape=[-1]), b""), "has shape"),
    "a size that is no number": (frames_of(one(shape=[True, "x"]), b""), "has shape"),
    "a size beyond the limit": (frames_of(one(shape=[2**31, 2**20]), b""), "needs 9007199254740992 bytes"),
    "too many dimensions": (frames_of(one(shape=[1] * 9), b"\0" * 4), "has shape"),
    "a bool that is neither": (frames_of(one("bool"), b"\1\2"), "bytes other than 0 and 1"),
    "a name twice": (
        frames_of({"kind": "x", "meta": {}, "arrays": [["a", "int8", [1]]] * 2}, b"\0", b"\0"),
        "two arrays named 'a'",
    ),
}


@pytest.mark.parametrize(("frames", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_decode_refuses(frames: list[bytes], text: str) -> None:
    with pytest.raises(FrameError, match=text):
        decode(frames)
