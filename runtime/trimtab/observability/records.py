"""The JSON-lines files of a run: one record per line, appended, cut back on a resume.

Used by `writer` (coordinator) and read by `report` and the CLI. Plain synchronous file I/O of a few
kilobytes a step, on the caller's thread.

A line is written whole and flushed at once, so that a reader of a running job sees complete lines and a
killed process leaves at most one broken line, the last; readers leave that one out and writers cut it off.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

JsonObject = dict[str, Any]


def read_lines(path: Path) -> Iterator[JsonObject]:
    """Yield the whole records of a file; none where there is no file."""
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                record = _parse(line)
                if record is not None:
                    yield record


def _parse(line: bytes) -> JsonObject | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:  # what a killed process or a full disk leaves behind
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


class JsonLines:
    """An append-only file of records, each with its integer `step`."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("ab")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line and hand it to the operating system."""
        line = json.dumps(record, allow_nan=False, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def cut_after(self, step: int | None) -> None:
        """Remove records of later steps and a broken line; None keeps every whole record.

        The rest moves to a new file that then takes the old one's name, so that a reader sees either.
        """
        kept = [r for r in read_lines(self.path) if step is None or r["step"] <= step]
        fresh = self.path.with_name(self.path.name + ".new")
        with fresh.open("wb") as file:
            for record in kept:
                file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        self._file.close()
        fresh.replace(self.path)
        self._file = self.path.open("ab")

    def close(self) -> None:
        """Close the file; safe to repeat."""
        self._file.close()
