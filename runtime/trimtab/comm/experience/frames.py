"""A message as ZeroMQ frames: one small header, then one raw buffer per array. Pure functions.

    frame 0    magic "TTEP", version (uint16), length of the JSON (uint32), JSON; little-endian
               JSON: {"kind": str, "meta": {...}, "arrays": [[name, dtype, [dim, ...]], ...]}
    frame i    the i-th array's elements, C order, little-endian

Everything that arrives is checked before a buffer is touched: nothing is unpickled or evaluated, dtypes
come from a list, sizes are bounded, and a frame's length must be what its shape and dtype say.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError

Buffer = bytes | memoryview

MAGIC: Final = b"TTEP"
VERSION: Final = 1
_PREFIX: Final = struct.Struct("<4sHI")

MAX_HEADER_BYTES: Final = 16 * 1024 * 1024
"""Meta carries texts (prompt, response, the row's fields) beside names and shapes."""
MAX_ARRAYS: Final = 64
MAX_DIMENSIONS: Final = 8
MAX_ARRAY_BYTES: Final = 4 * 1024**3
"""Also set as ZeroMQ's own limit of a frame, so that a larger one is never even allocated."""

BFLOAT16: Final = "bfloat16"
_DTYPES: Final = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64",
    )
} | {BFLOAT16: np.dtype("<u2")}  # fmt: skip


class FrameError(TrimtabError):
    """A message that cannot be sent as it is, or frames that are not a message of this version."""

    kind = "frames"


@dataclass(frozen=True)
class Message:
    """What travels: a kind, JSON values, and named arrays.

    Received arrays share the frame's memory; it belongs to them alone.
    """

    kind: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    """JSON values with string keys; numbers must be finite."""
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    bfloat16: frozenset[str] = frozenset()
    """Names of arrays that are bfloat16 bit patterns held as uint16 (numpy has no such dtype)."""


def encode(message: Message) -> list[Buffer]:
    """The frames of a message. Contiguous arrays are not copied: they must not change until sent."""
    described: list[list[Any]] = []
    buffers: list[Buffer] = []
    for name, array in message.arrays.items():
        dtype = BFLOAT16 if name in message.bfloat16 else array.dtype.name
        wire = _DTYPES.get(dtype)
        if wire is None:
            raise FrameError(f"array {name!r} has dtype {array.dtype}, allowed are {', '.join(_DTYPES)}")
        if array.dtype.newbyteorder("<") != wire:
            raise FrameError(f"array {name!r} is named as bfloat16 and has dtype {array.dtype}, not uint16")
        if array.ndim > MAX_DIMENSIONS or array.nbytes > MAX_ARRAY_BYTES:
            raise FrameError(
                f"array {name!r} has {array.ndim} dimensions and {array.nbytes} bytes, "
                f"allowed are {MAX_DIMENSIONS} and {MAX_ARRAY_BYTES}"
            )
        described.append([name, dtype, list(array.shape)])
        contiguous = np.ascontiguousarray(array, wire)
        buffers.append(contiguous.reshape(-1).view(np.uint8).data)
    if len(buffers) > MAX_ARRAYS:
        raise FrameError(
            f"a message of kind {message.kind!r} has {len(buffers)} arrays, allowed are {MAX_ARRAYS}"
        )
    try:
        text = json.dumps(
            {"kind": message.kind, "meta": message.meta, "arrays": described},
            allow_nan=False,
            separators=(",", ":"),
        ).encode()
    except (TypeError, ValueError) as error:
        raise FrameError(f"the meta of a message of kind {message.kind!r} is not JSON: {error}") from error
    if len(text) > MAX_HEADER_BYTES:
        raise FrameError(
            f"the header of a {message.kind!r} has {len(text)} bytes, allowed {MAX_HEADER_BYTES}"
        )
    return [_PREFIX.pack(MAGIC, VERSION, len(text)) + text, *buffers]


def decode(frames: Sequence[Buffer]) -> Message:
    """Inverse of `encode`; FrameError for anything else, naming what is wrong."""
    if not frames:
        raise FrameError("a message without frames")
    header = _read_header(memoryview(frames[0]))
    kind, meta, described = header.get("kind"), header.get("meta"), header.get("arrays")
    if not isinstance(kind, str) or not isinstance(meta, dict) or not isinstance(described, list):
        raise FrameError("the header lacks kind (a string), meta (an object) or arrays (a list)")
    if len(described) > MAX_ARRAYS:
        raise FrameError(f"{kind!r} announces {len(described)} arrays, allowed are {MAX_ARRAYS}")
    if len(described) != len(frames) - 1:
        raise FrameError(f"{kind!r} announces {len(described)} arrays and brings {len(frames) - 1} buffers")
    arrays: dict[str, NDArray[Any]] = {}
    bfloat16: set[str] = set()
    for entry, buffer in zip(described, frames[1:], strict=True):
        name, dtype, shape = _read_description(kind, entry)
        if name in arrays:
            raise FrameError(f"{kind!r} has two arrays named {name!r}")
        arrays[name] = _read_array(kind, name, dtype, shape, memoryview(buffer))
        if dtype == BFLOAT16:
            bfloat16.add(name)
    return Message(kind, meta, arrays, frozenset(bfloat16))


def _read_header(frame: memoryview) -> dict[str, Any]:
    if frame.nbytes < _PREFIX.size:
        raise FrameError(f"a header of {frame.nbytes} bytes, shorter than its fixed part")
    magic, version, length = _PREFIX.unpack_from(frame)
    if magic != MAGIC:
        raise FrameError(f"not a Trimtab message: it begins with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise FrameError(f"message version {version}, this process reads version {VERSION}")
    if length > MAX_HEADER_BYTES or length != frame.nbytes - _PREFIX.size:
        raise FrameError(f"a header that announces {length} bytes and has {frame.nbytes - _PREFIX.size}")
    try:
        header = json.loads(bytes(frame[_PREFIX.size :]), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise FrameError("the header is not an object")
    return header


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _read_description(kind: str, entry: object) -> tuple[str, str, tuple[int, ...]]:
    match entry:
        case [str(name), str(dtype), list(shape)]:
            pass
        case _:
            raise FrameError(f"{kind!r} describes an array as {entry!r}, not as [name, dtype, shape]")
    if dtype not in _DTYPES:
        raise FrameError(f"{kind!r}: array {name!r} has dtype {dtype!r}, allowed are {', '.join(_DTYPES)}")
    sizes = [n for n in shape if isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= MAX_ARRAY_BYTES]
    if len(sizes) != len(shape) or len(shape) > MAX_DIMENSIONS:
        raise FrameError(f"{kind!r}: array {name!r} has shape {shape!r}")
    return name, dtype, tuple(sizes)


def _read_array(kind: str, name: str, dtype: str, shape: tuple[int, ...], buffer: memoryview) -> NDArray[Any]:
    wire = _DTYPES[dtype]
    expected = math.prod(shape) * wire.itemsize
    if expected > MAX_ARRAY_BYTES or expected != buffer.nbytes:
        raise FrameError(
            f"{kind!r}: array {name!r} of {dtype} {list(shape)} needs {expected} bytes, its buffer has "
            f"{buffer.nbytes} (at most {MAX_ARRAY_BYTES} are allowed)"
        )
    array: NDArray[Any] = np.frombuffer(buffer, wire).reshape(shape)
    if dtype == "bool":
        raw = array.view(np.uint8)
        if raw.size and int(raw.max()) > 1:
            raise FrameError(f"{kind!r}: array {name!r} of bool holds bytes other than 0 and 1")
    if not array.flags.aligned:
        # Small messages share ZeroMQ's receive buffer at any offset; torch wants aligned memory.
        array = array.copy()
    return array
