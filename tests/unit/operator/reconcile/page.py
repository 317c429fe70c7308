"""The tables of docs/reference/conditions.md, as the script that writes it has them."""

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from trimtab.api.conditions import Phase

PATH = Path(__file__).resolve().parents[4] / "scripts" / "generate_conditions.py"


def load_script() -> ModuleType:
    """scripts/generate_conditions.py."""
    spec = importlib.util.spec_from_file_location("generate_conditions", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = load_script()


def off_the_page(said: Iterable[tuple[str, str, str, str]]) -> list[tuple[str, str, str, str]]:
    """What was said (phase, condition, status, reason) and the page does not have."""
    return [entry for entry in said if not _is_on_the_page(*entry)]


def _is_on_the_page(phase: str, kind: str, status: str, reason: str) -> bool:
    values = dict(zip(SCRIPT.COLUMNS, SCRIPT.MATRIX[Phase(phase)], strict=True))
    if status not in values[kind]:
        return False
    if phase in (Phase.COMPLETE, Phase.FAILED) and kind in SCRIPT.AFTER_THE_END:
        return reason in (*SCRIPT.FAILURES, *SCRIPT.REASONS["Complete"]["True"])
    return reason in SCRIPT.REASONS[kind][status]
