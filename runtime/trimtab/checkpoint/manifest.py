"""The manifest: a checkpoint exists from the moment this file does, and it lists what belongs to it.

Written last and atomically by `store.commit`; read by `store.latest_valid` and `trimtab export`.
Sizes are kept of every file, digests of small ones: a cut-off write shows in the size, and hashing
hundreds of gigabytes at every resume would cost more than it finds.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1
HASHED_UP_TO_BYTES = 1 << 20


class InvalidCheckpointError(ValueError):
    """A directory that is no usable checkpoint; the message says why, without the directory's name."""


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint."""

    path: str
    """Relative to the checkpoint."""
    num_bytes: int
    sha256: str | None
    """None for files above `HASHED_UP_TO_BYTES`."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is and what it consists of."""

    step: int
    attempt: int
    training_identity: str
    world_size: int
    """Actor ranks that wrote it; any number may read it."""
    files: tuple[FileEntry, ...]

    @classmethod
    def describe(
        cls, path: Path, *, step: int, attempt: int, training_identity: str, world_size: int
    ) -> "Manifest":
        """List the files that now lie under `path`."""
        found = sorted(item for item in path.rglob("*") if item.is_file() and item.name != MANIFEST_NAME)
        files = tuple(
            FileEntry(str(item.relative_to(path)), item.stat().st_size, _digest(item)) for item in found
        )
        return cls(step, attempt, training_identity, world_size, files)

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Read the manifest of the checkpoint at `path`; raises `InvalidCheckpointError`."""
        try:
            content: dict[str, Any] = json.loads((path / MANIFEST_NAME).read_text())
        except FileNotFoundError:
            raise InvalidCheckpointError("it has no manifest (its save was cut off)") from None
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise InvalidCheckpointError("its manifest is not readable JSON") from None
        version = content.get("format_version") if isinstance(content, dict) else None
        if version != FORMAT_VERSION:
            raise InvalidCheckpointError(
                f"its format is version {version}, this Trimtab reads version {FORMAT_VERSION}"
            )
        try:
            files = tuple(FileEntry(**entry) for entry in content["files"])
            return cls(
                step=int(content["step"]),
                attempt=int(content["attempt"]),
                training_identity=str(content["training_identity"]),
                world_size=int(content["world_size"]),
                files=files,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidCheckpointError(f"its manifest lacks or spoils a field ({error})") from None

    def write(self, path: Path) -> None:
        """Make the checkpoint at `path` exist."""
        write_atomically(
            path / MANIFEST_NAME, json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, indent=1)
        )

    def verify(self, path: Path) -> None:
        """Check sizes and digests; raises `InvalidCheckpointError` naming the first file that is wrong."""
        for entry in self.files:
            file = path / entry.path
            try:
                num_bytes = file.stat().st_size
            except FileNotFoundError:
                raise InvalidCheckpointError(f"{entry.path} is missing") from None
            if num_bytes != entry.num_bytes:
                raise InvalidCheckpointError(
                    f"{entry.path} has {num_bytes} bytes, the manifest says {entry.num_bytes}"
                )
            if entry.sha256 is not None and _digest(file) != entry.sha256:
                raise InvalidCheckpointError(f"{entry.path} has other contents than the manifest says")


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that it is there whole or not at all, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Make renames and new names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path) -> str | None:
    if path.stat().st_size > HASHED_UP_TO_BYTES:
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()
