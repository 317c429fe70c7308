"""Importing what a user wrote (`pkg.mod:name`), and telling the user what went wrong in it.

Called by the data reader on the coordinator and by the reward workers, never at our own import time.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from trimtab.errors import UserError


def import_object(path: str, code_paths: Sequence[Path], *, field: str) -> Any:
    """Import `module:name` (name may be dotted), looking first in `code_paths`.

    Raises `UserError` naming `field`, with the last lines of the user's own traceback where the import
    itself failed.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise UserError(f"{field}: {path!r} must have the form module:name, such as my_code:thing")
    for folder in reversed(code_paths):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        target: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (the user's module may raise anything)
        raise UserError(
            f"{field}: cannot import {path!r}: {_import_failure(error, module_name, code_paths)}"
        ) from None
    for part in name.split("."):
        if not hasattr(target, part):
            offered = ", ".join(sorted(item for item in vars(target) if not item.startswith("_"))[:20])
            raise UserError(
                f"{field}: {module_name!r} has no {name!r}; it has: {offered or 'nothing public'}"
            )
        target = getattr(target, part)
    return target


def describe_exception(error: BaseException) -> str:
    """One line: type, message, and the innermost frame, where it was raised."""
    text = str(error).strip().replace("\n", " ")[:500]
    head = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return head
    return f"{head} ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})"


def _import_failure(error: BaseException, module_name: str, code_paths: Sequence[Path]) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        # In a cluster spec.code reaches the process as PYTHONPATH, however it is given.
        folders = [*map(str, code_paths), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        looked = ", ".join(filter(None, folders)) or "no folder of your own: set spec.code"
        if error.name == module_name.partition(".")[0] or module_name.startswith(f"{error.name}."):
            return f"there is no module {error.name!r} (looked in {looked}, then in the installed packages)"
    lines = traceback.format_exception(type(error), error, _users_part(error.__traceback__))
    tail = "".join(lines).rstrip().splitlines()[-8:]
    return "the module failed while it was imported:\n  " + "\n  ".join(tail)


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Drop the frames of this file and of the import machinery."""
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if filename != __file__ and "importlib" not in filename:
            return trace
        trace = trace.tb_next
    return None
