"""Writes docs/reference/conditions.md from trimtab.api.conditions: every condition, phase and reason.

Run by `make docs`; `make verify` fails where the page is not what this writes.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from trimtab.api.conditions import ConditionType, Phase, Reason

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "conditions.md"


def table(heading: str, members: Iterable[ConditionType | Phase | Reason]) -> str:
    """One row a name."""
    rows = "\n".join(f"| `{member.value}` | {member.text} |" for member in members)
    return f"| {heading} | meaning |\n|---|---|\n{rows}"


def page() -> str:
    """The whole page."""
    return f"""# Conditions

<!-- Written by scripts/generate_conditions.py from trimtab.api.conditions. -->

`status.conditions` is what scripts and people rely on; `status.phase` is derived from it, for printing. A
condition always has a reason; its time moves only when its status does. No condition is named Ready: tools
wait for that one for ever on a job that has finished.

    kubectl wait rltj/NAME --for=condition=Complete --timeout=24h

## Types

{table("type", ConditionType)}

## Phases

{table("phase", Phase)}

## Reasons

Of conditions and of events. [Operations](../operations.md#by-condition-reason) says what to do.

{table("reason", Reason)}
"""


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
