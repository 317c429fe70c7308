"""The curves of a run, drawn with matplotlib: as SVG for the report and as one picture.

Used by `report` alone. matplotlib is imported when something is drawn; its object interface is used without
pyplot, so nothing global changes and no window opens.
"""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from trimtab.observability.registry import TIMING_PHASES
from trimtab.observability.run_data import RunData

BLUE, ORANGE, GREEN, RED, PURPLE = "#2f7de1", "#e8833a", "#2fa36b", "#d9534f", "#8b6fd6"
PHASE_COLOURS = (BLUE, GREEN, "#7aa6d9", "#9cc7b0", ORANGE, PURPLE, "#8a8f98")
INK = "#0a0b0c"
"""Stands for the page's text colour: `svg` turns it into currentColor."""
MAX_POINTS = 800
"""Longer series are drawn as means over equal stretches."""
MIN_POINTS_TO_SMOOTH = 20


@dataclass(frozen=True)
class Chart:
    """One chart: it is drawn where the run has any of its metrics."""

    title: str
    caption: str
    metrics: tuple[str, ...]
    draw: Callable[[Any, RunData], None]

    def applies_to(self, run: RunData) -> bool:
        """Whether there is anything to draw."""
        return any(run.has(name) for name in self.metrics)


def thin(steps: Sequence[int], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most `MAX_POINTS` points: means over equal stretches of a longer series."""
    stretch = -(-len(values) // MAX_POINTS)
    if stretch <= 1:
        return list(map(float, steps)), list(values)
    starts = range(0, len(values), stretch)
    return [fmean(steps[i : i + stretch]) for i in starts], [fmean(values[i : i + stretch]) for i in starts]


def smooth(values: Sequence[float]) -> list[float]:
    """Centred moving mean over a tenth of the series."""
    reach = max(1, len(values) // 20)
    return [fmean(values[max(0, i - reach) : i + reach + 1]) for i in range(len(values))]


def _curve(axes: Any, run: RunData, name: str, colour: str, label: str = "") -> None:
    steps, values = run.series(name)
    if not values:
        return
    x, y = thin(steps, values)
    marker = "o" if len(x) == 1 else None
    if len(y) < MIN_POINTS_TO_SMOOTH:
        axes.plot(x, y, color=colour, linewidth=1.8, label=label, marker=marker)
        return
    axes.plot(x, y, color=colour, linewidth=0.8, alpha=0.3)
    axes.plot(x, smooth(y), color=colour, linewidth=1.9, label=label)


def _from_zero(axes: Any) -> None:
    _, top = axes.get_ylim()
    axes.set_ylim(0, top)


def _reward(axes: Any, run: RunData) -> None:
    _curve(axes, run, "critic/score/mean", BLUE, "training")
    steps, values = run.series("val/score/mean")
    if values:
        axes.plot(steps, values, color=ORANGE, linewidth=1.4, marker="o", markersize=4.5, label="validation")


def _kl(axes: Any, run: RunData) -> None:
    _curve(axes, run, "kl/actual", PURPLE, "to the reference")
    _curve(axes, run, "actor/ppo_kl", GREEN, "within the step")
    steps, values = run.series("kl/target")
    if values:
        axes.plot(steps, values, color=RED, linewidth=1, linestyle="--", label="target")


def _entropy(axes: Any, run: RunData) -> None:
    _curve(axes, run, "actor/entropy", GREEN)
    _from_zero(axes)


def _length(axes: Any, run: RunData) -> None:
    steps, high = run.series("response_length/max")
    low_steps, low = run.series("response_length/min")
    if high and steps == low_steps:
        x, top = thin(steps, high)
        axes.fill_between(x, thin(steps, low)[1], top, color=ORANGE, alpha=0.13, linewidth=0, label="range")
    _curve(axes, run, "response_length/mean", ORANGE, "mean")
    _from_zero(axes)


def _timing(axes: Any, run: RunData) -> None:
    phases = [name for name in TIMING_PHASES if run.has(name)]
    lines = [line for line in run.steps if any(line.get(name) is not None for name in phases)]
    steps = [line["step"] for line in lines]
    stacks = [thin(steps, [float(line.get(name) or 0.0) for line in lines])[1] for name in phases]
    colours = [PHASE_COLOURS[TIMING_PHASES.index(name)] for name in phases]
    labels = [name.removeprefix("timing_s/") for name in phases]
    x, _ = thin(steps, [0.0] * len(steps))
    if len(x) == 1:
        x, stacks = [x[0] - 0.4, x[0] + 0.4], [stack * 2 for stack in stacks]
    axes.stackplot(x, *stacks, labels=labels, colors=colours, alpha=0.85, linewidth=0)
    _from_zero(axes)


def _throughput(axes: Any, run: RunData) -> None:
    _curve(axes, run, "perf/throughput", BLUE, "whole step")
    _curve(axes, run, "rollout/throughput", GREEN, "generation")
    _from_zero(axes)


def _logprob_diff(axes: Any, run: RunData) -> None:
    _curve(axes, run, "rollout/logprob_diff_mean", RED, "mean")
    _from_zero(axes)


def _grad_norm(axes: Any, run: RunData) -> None:
    _curve(axes, run, "actor/grad_norm", PURPLE)
    _from_zero(axes)


CHARTS: tuple[Chart, ...] = (
    Chart("Reward", "mean score of a response", ("critic/score/mean", "val/score/mean"), _reward),
    Chart("KL", "nats per token", ("kl/actual", "actor/ppo_kl"), _kl),
    Chart("Entropy", "nats per token", ("actor/entropy",), _entropy),
    Chart("Response length", "tokens", ("response_length/mean",), _length),
    Chart("Time of a step", "seconds by phase", TIMING_PHASES, _timing),
    Chart("Throughput", "tokens per second", ("perf/throughput", "rollout/throughput"), _throughput),
    Chart(
        "Log-prob difference", "rollout against trainer, nats", ("rollout/logprob_diff_mean",), _logprob_diff
    ),
    Chart("Gradient norm", "before clipping", ("actor/grad_norm",), _grad_norm),
)


def charts_of(run: RunData) -> list[Chart]:
    """The charts that the run has data for."""
    return [chart for chart in CHARTS if chart.applies_to(run)]


def svg(chart: Chart, run: RunData, *, key: str) -> str:
    """The chart as an SVG element for a page; `key` keeps its ids apart from other charts'."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    settings = {"svg.fonttype": "none", "svg.hashsalt": key, "font.family": "sans-serif"}
    with rc_context(settings):
        figure = Figure(figsize=(5.6, 2.9), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        _dress(axes, chart, run)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{key}-", text)
    text = re.sub(r'^<svg ([^>]*?)width="[^"]*" height="[^"]*"|^<svg ', _responsive, text)
    return text.replace(INK, "currentColor")


def _responsive(match: re.Match[str]) -> str:
    return f"<svg {match.group(1) or ''}"


def picture(run: RunData, path: Path) -> None:
    """All charts of the run as one PNG; a note where there is nothing to draw yet."""
    from matplotlib.figure import Figure

    charts = charts_of(run)
    rows = max(1, -(-len(charts) // 2))
    figure = Figure(figsize=(11, 0.5 + 2.7 * rows), layout="constrained", dpi=110)
    figure.suptitle(f"{run.name}, {run.num_steps} steps", fontsize=12)
    if not charts:
        figure.text(0.5, 0.45, "no step completed yet", ha="center", color="#777777")
    for number, chart in enumerate(charts, 1):
        axes = figure.add_subplot(rows, 2, number)
        axes.set_title(f"{chart.title}: {chart.caption}", fontsize=9.5, loc="left")
        _dress(axes, chart, run)
    fresh = path.with_name(path.name + ".new")
    figure.savefig(fresh, format="png")
    fresh.replace(path)


def _dress(axes: Any, chart: Chart, run: RunData) -> None:
    from matplotlib.ticker import MaxNLocator

    chart.draw(axes, run)
    first, last = (float(run.steps[index]["step"]) for index in (0, -1))
    margin = max(0.5, 0.02 * (last - first))
    axes.set_xlim(first - margin, last + margin)
    _mark_warnings(axes, chart, run)
    axes.patch.set_alpha(0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#8a8f98")
    axes.grid(visible=True, color="#8a8f98", alpha=0.22, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=8.5, color="#8a8f98")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlabel("step", fontsize=8.5, color=INK)
    handles, labels = axes.get_legend_handles_labels()
    look: dict[str, Any] = {"fontsize": 8, "frameon": False, "labelcolor": INK}
    if len(labels) > 3:
        look |= {"loc": "center left", "bbox_to_anchor": (1, 0.5), "reverse": True}
    if len(labels) > 1:
        axes.legend(handles, labels, **look)


def _mark_warnings(axes: Any, chart: Chart, run: RunData) -> None:
    for warning in run.warnings:
        if warning.metric in chart.metrics:
            axes.axvline(warning.step, color=RED, linewidth=1, linestyle=":")
