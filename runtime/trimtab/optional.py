"""Libraries that only some jobs need: imported when a job names them, with the remedy where they are absent.

Called by the data reader and by the reward functions.
"""

import importlib
import warnings
from types import ModuleType

from trimtab.errors import UserError


def import_optional(module: str, *, field: str) -> ModuleType:
    """Import a library of the extra `train`; `field` is what asked for it."""
    try:
        with warnings.catch_warnings():
            # Of their own dependencies, when Python first compiles them; nothing a user can act on.
            warnings.simplefilter("ignore", SyntaxWarning)
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{field}: the package {error.name!r} is not installed here; "
            "install it with `pip install 'trimtab[train]'`"
        ) from None
