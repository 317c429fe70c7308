"""The live view of a running job in a terminal, and its plain twin for logs and pipes.

`trimtab run` makes one, gives it each `JobStatus` it receives, and closes it with the run's summary.
Everything is called from that one thread; on a terminal, rich redraws from a thread of its own.

On a terminal: one panel that redraws in place, with warnings above it. Elsewhere: one line for each step,
one for each warning, and one for a change of phase or activity at most every ten seconds.
"""

import time
from collections.abc import Callable, Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from trimtab.observability.format import duration, first_of, quantity
from trimtab.v1 import job_control_pb2 as pb

PLAIN_ACTIVITY_INTERVAL_S = 10.0
MAX_WARNINGS = 3
"""Warnings that the panel keeps in sight; all of them stand above it and in the report."""
SPARK_WIDTH = 8
FIGURE_WIDTH = 11
BLOCKS = "▁▂▃▄▅▆▇█"
PHASE_COLOURS = {"Failed": "red", "Complete": "green", "Recovering": "yellow", "Stopped": "yellow"}

FIGURES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("reward", ("critic/score/mean", "critic/rewards/mean")),
    ("validation", ("val/score/mean",)),
    ("KL", ("kl/actual", "actor/kl_loss")),
    ("entropy", ("actor/entropy",)),
    ("length", ("response_length/mean",)),
    ("tokens/s", ("perf/throughput", "rollout/throughput")),
    ("s/step", ("timing_s/step", "perf/time_per_step")),
)
"""Label and the metrics that can fill it, in order of preference."""


class LiveView:
    """Shows the job's latest status until `close`."""

    def __init__(
        self,
        total_steps: int,
        name: str,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to show; `total_steps` counts until the first status gives its own."""
        self._console = console or Console(highlight=False)
        self._clock = clock
        self._began = clock()
        self._status = pb.JobStatus(name=name, total_steps=total_steps, seconds_left=-1, phase="Starting")
        self._warned: set[str] = set()
        self._history: dict[str, list[float]] = {label: [] for label, _ in FIGURES}
        self._history_step = -1
        terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self._spinner = Spinner("dots", style="cyan")
        self._plain = None if terminal else _PlainLines(self._console, clock)
        self._live = Live(self, console=self._console, refresh_per_second=4) if terminal else None
        if self._live is not None:
            self._live.start()

    def update(self, status: pb.JobStatus) -> None:
        """Take a new status; call it as often as one arrives."""
        total = status.total_steps or self._status.total_steps
        self._status = pb.JobStatus()
        self._status.CopyFrom(status)
        self._status.total_steps = total
        if status.step != self._history_step and status.metrics:
            self._history_step = status.step
            self._remember(status.metrics)
        if self._plain is not None:
            self._plain.update(self._status)
        for text in status.warnings:
            if text not in self._warned:
                self._warned.add(text)
                line = Text.assemble(("warning: ", "bold yellow"), text)
                self._console.print(line, soft_wrap=self._live is None)

    def log_line(self, text: str) -> None:
        """Print a line above the panel."""
        self._console.print(Text(text), soft_wrap=self._live is None)

    def close(self, summary: Mapping[str, object] | None = None) -> None:
        """End the view and print the summary's rows; safe to repeat."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if summary:
            self._console.print(self._summary(summary))

    def __rich__(self) -> RenderableType:
        """The panel as it is now; rich calls this for each redraw."""
        status = self._status
        title = Text.assemble((status.name, "bold"), " · ", (status.phase, _phase_style(status.phase)))
        if status.attempt > 1:
            title.append(f" · attempt {status.attempt}", "dim")
        parts: list[RenderableType] = [self._progress_row(), self._activity_row(), Text()]
        parts += [self._figures(), Text(), self._roles_row()]
        for text in status.warnings[-MAX_WARNINGS:]:
            parts.append(Text(f"! {text}", style="yellow", overflow="ellipsis", no_wrap=True))
        return Panel(Group(*parts), title=title, title_align="left", border_style="cyan", padding=(0, 1))

    def _remember(self, metrics: Mapping[str, float]) -> None:
        for label, names in FIGURES:
            value = first_of(metrics, names)
            if value is not None:
                self._history[label].append(value)
                del self._history[label][:-SPARK_WIDTH]

    def _progress_row(self) -> RenderableType:
        status, total = self._status, max(1, self._status.total_steps)
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True, justify="right")
        row.add_row(
            Text(f"step {status.step}/{status.total_steps}", style="bold"),
            ProgressBar(total=total, completed=status.step),
            Text.assemble(f"{status.step / total:.0%}", ("  left ", "dim"), _left(status)),
        )
        return row

    def _activity_row(self) -> RenderableType:
        status = self._status
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
        row.add_column(no_wrap=True, justify="right")
        if status.phase in ("Complete", "Failed", "Stopped"):
            now: RenderableType = Text(status.activity or status.phase)
        else:
            self._spinner.update(text=Text(status.activity or "starting"))
            now = self._spinner
        row.add_row(now, Text.assemble(("elapsed ", "dim"), duration(self._clock() - self._began)))
        return row

    def _figures(self) -> RenderableType:
        grid = Table.grid(expand=True, padding=(0, 1, 0, 0))
        reported = [label for label, _ in FIGURES if self._history[label]] or ["reward", "KL", "entropy"]
        shown = reported[: max(1, self._console.width // FIGURE_WIDTH)]
        for _ in shown:
            grid.add_column(no_wrap=True, ratio=1)
        grid.add_row(*(Text(label, style="dim") for label in shown))
        grid.add_row(*(Text(self._last(label), style="bold") for label in shown))
        grid.add_row(*(Text(sparkline(self._history[label]), style="cyan") for label in shown))
        return grid

    def _last(self, label: str) -> str:
        values = self._history[label]
        return quantity(values[-1]) if values else "–"

    def _roles_row(self) -> RenderableType:
        status = self._status
        row = Table.grid(expand=True, padding=(0, 1))
        row.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        row.add_column(justify="right", no_wrap=True)
        roles = Text()
        for role in status.roles:
            complete = role.ready >= role.desired
            roles.append(f"{role.role} ", "dim")
            roles.append(f"{role.ready}/{role.desired}", "green" if complete else "yellow")
            if role.restarts:
                roles.append(f" ({role.restarts} restarted)", "yellow")
            roles.append("   ")
        checkpoint = f"checkpoint at step {status.checkpoint_step}" if status.checkpoint_path else ""
        row.add_row(roles, Text(checkpoint, style="dim"))
        return row

    def _summary(self, summary: Mapping[str, object]) -> RenderableType:
        if self._plain is not None:
            width = max(len(label) for label in summary)
            return Text("\n".join(f"{label:<{width}}  {value}" for label, value in summary.items()))
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for label, value in summary.items():
            grid.add_row(label, Text(str(value)))
        style = _phase_style(self._status.phase)
        title = Text(self._status.name, "bold")
        return Panel(grid, title=title, title_align="left", border_style=style, padding=(0, 1))


class _PlainLines:
    """One line per step; activity changes at most every `PLAIN_ACTIVITY_INTERVAL_S`."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console, self._clock = console, clock
        self._step = 0
        self._said = ""
        self._said_at = -PLAIN_ACTIVITY_INTERVAL_S

    def update(self, status: pb.JobStatus) -> None:
        if 0 < status.step < self._step:  # back to a checkpoint: these steps are taken, and shown, again
            self._step = status.step
        if status.step > self._step:
            self._step = status.step
            self._print(step_line(status))
            return
        said = ": ".join(part for part in (status.phase, status.activity) if part)
        due = self._clock() - self._said_at >= PLAIN_ACTIVITY_INTERVAL_S
        if said != self._said and due:
            self._said, self._said_at = said, self._clock()
            self._print(said)

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


def step_line(status: pb.JobStatus) -> str:
    """A completed step in one line."""
    parts = [f"step {status.step}/{status.total_steps}"]
    for label, names in FIGURES:
        value = first_of(status.metrics, names)
        if value is not None:
            parts.append(f"{label} {quantity(value)}")
    return "  ".join([*parts, f"left {_left(status)}"])


def sparkline(values: list[float]) -> str:
    """The course of a few values in block characters."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] for value in values)


def _left(status: pb.JobStatus) -> str:
    return duration(status.seconds_left) if status.seconds_left >= 0 else "–"


def _phase_style(phase: str) -> str:
    return PHASE_COLOURS.get(phase, "cyan")
