"""Prints a diagnosis for people. Called by `trimtab doctor`."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trimtab.doctor.checks import Diagnosis, Finding, Level

MARKS: dict[Level, tuple[str, str]] = {"ok": ("✓", "green"), "note": ("!", "yellow"), "problem": ("✗", "red")}


def show(diagnosis: Diagnosis, *, console: Console | None = None) -> None:
    """Print what was found, role by role, each problem with its remedy."""
    out = console or Console(highlight=False)
    out.print(Text("This machine", "bold"))
    out.print(_table(diagnosis.machine))
    out.print()
    out.print(Text("Roles", "bold"))
    for role in diagnosis.roles:
        mark, style = MARKS["ok" if role.ready else "problem"]
        verdict = "ready" if role.ready else "cannot run here"
        out.print(Text.assemble("  ", (mark, style), f" {role.role:<15}{verdict}"))
        if role.findings:
            out.print(_table(role.findings, indent=4))
    out.print()
    ready = "Every role can run here: try `trimtab run examples/quickstart/job.yaml`."
    out.print(Text(ready if diagnosis.ready else "Some roles cannot run here; see the remedies above."))


def _table(findings: tuple[Finding, ...], *, indent: int = 2) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=indent - 1)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, min_width=14)
    table.add_column(overflow="fold")
    for finding in findings:
        mark, style = MARKS[finding.level]
        text = Text(finding.value)
        if finding.remedy:
            text.append(f"\n→ {finding.remedy}", "cyan")
        table.add_row("", Text(mark, style), finding.name, text)
    return table
