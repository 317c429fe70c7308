"""Reads torch.distributed.checkpoint files without running what a stranger has put into them.

Used by `state`. torch keeps a checkpoint's list of tensors (`.metadata`) as a pickle and loads it as it
stands, which would run whatever its author wanted; entries that are no tensors it unpickles as well. Here
only the classes that such a list is made of are let through, and none that stands for such an entry.
"""

import pathlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from trimtab.errors import UserError

_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
_METADATA = (
    "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex",
    "StorageMeta", "_MEM_FORMAT_ENCODING",
)  # fmt: skip


def _member(kind: object, name: str) -> metadata._MEM_FORMAT_ENCODING:
    """What `getattr` may do: Python before 3.11.4 writes an enumeration's member as `getattr(kind, name)`."""
    if kind is not metadata._MEM_FORMAT_ENCODING or name not in metadata._MEM_FORMAT_ENCODING.__members__:
        raise pickle.UnpicklingError(f"it asks {kind} for {name!r}")
    return metadata._MEM_FORMAT_ENCODING[name]


_ALLOWED: Final[Mapping[tuple[str, str], Any]] = {
    ("builtins", "getattr"): _member,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): filesystem._StorageInfo,
    **{("torch", name): getattr(torch, name) for name in _DTYPES},
    **{("torch.distributed.checkpoint.metadata", name): getattr(metadata, name) for name in _METADATA},
    # Where the checkpoint was written; the name changed with Python 3.13.
    **{(module, "PosixPath"): pathlib.PosixPath for module in ("pathlib", "pathlib._local")},
}


class SafeReader(FileSystemReader):
    """torch's reader of a folder, with a list of tensors that holds nothing else."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The list; UserError where it holds something that has no place there, or is no list."""
        path = Path(self.path) / ".metadata"
        try:
            with path.open("rb") as file:
                found = _Unpickler(file).load()
        except FileNotFoundError as error:
            raise UserError(f"checkpoint.uri: {path} is missing; the checkpoint cannot be read") from error
        except (pickle.UnpicklingError, EOFError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise UserError(
                f"checkpoint.uri: {path} is damaged, or not of a checkpoint of Trimtab ({error})"
            ) from error
        if not isinstance(found, Metadata):
            raise UserError(f"checkpoint.uri: {path} holds a {type(found).__name__}, not a list of tensors")
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Called for every name in the pickle before anything is done with it."""
        try:
            return _ALLOWED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module_name}.{global_name}") from None
