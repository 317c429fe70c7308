"""The report of a run: one HTML file with everything in it, and one picture of the curves.

Called by `trimtab report`, and by the launcher at the end of a run; on the caller's thread, a second or two.

The page holds no script and a content policy that forbids any. Whatever comes from outside (the model's
responses, prompts, names, the job's text) passes through `shown`, which escapes markup and makes control and
direction characters visible.
"""

import html
import re
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trimtab.observability.charts import charts_of, picture, svg
from trimtab.observability.format import quantity
from trimtab.observability.records import JsonObject
from trimtab.observability.report_style import CSS
from trimtab.observability.run_data import ENDED_PHASES, RunData, load_run, summary_rows

REPORT_FILE = "report.html"
PICTURE_FILE = "curves.png"
NUM_SAMPLED_STEPS = 6
"""Steps, evenly spread over the run, of which samples are shown."""
SAMPLES_PER_KIND = 3
"""Of each such step, of training and of validation each."""
MAX_PROMPT_CHARACTERS = 800
MAX_RESPONSE_CHARACTERS = 2000
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

TILES: tuple[tuple[str, str], ...] = (
    ("validation score", "val/score/mean"),
    ("reward", "critic/score/mean"),
    ("KL to reference", "kl/actual"),
    ("entropy", "actor/entropy"),
    ("response length", "response_length/mean"),
    ("tokens/s", "perf/throughput"),
)


def write_report(run_dir: Path, *, output: Path | None = None) -> Path:
    """Write the report (`report.html` in the run's folder by default) and `curves.png` beside it.

    Returns the report's path. `UserError` where `run_dir` is not a run directory. Safe to repeat, also while
    the run goes on: a reader sees the old files or the new ones.
    """
    run = load_run(run_dir)
    path = output or run_dir / REPORT_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(run, path.with_name(PICTURE_FILE))
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(page(run, now=time.time()), encoding="utf-8")
    fresh.replace(path)
    return path


def page(run: RunData, *, now: float) -> str:
    """The whole HTML document."""
    parts = [
        *_header(run),
        *_failure(run),
        *_tiles(run),
        *_warnings(run),
        *_charts(run),
        *_summary(run),
        *_samples(run),
        *_job(run),
        _footer(run, now),
    ]
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{shown(run.name)}: Trimtab report</title>\n<style>{CSS}</style></head>\n"
        "<body><main>\n" + "\n".join(parts) + "\n</main></body></html>\n"
    )


def shown(text: object, *, limit: int | None = None) -> str:
    """Text from outside as HTML: escaped, cut to `limit`, unprintable characters made visible."""
    whole = str(text)
    cut = whole if limit is None or len(whole) <= limit else whole[:limit]
    visible = "".join(c if c.isprintable() or c in "\n\t" else _visible(c) for c in cut)
    rest = "" if cut is whole else f"… ({len(whole) - len(cut)} more characters)"
    return html.escape(visible + rest)


def _prose(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", shown(text))


def _visible(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def _header(run: RunData) -> Iterable[str]:
    phase = run.phase
    kind = {"Complete": "good", "Failed": "bad", "Recovering": "warn", "Stopped": "warn"}.get(phase, "")
    yield "<header>"
    yield f"<h1>{shown(run.name)}</h1>"
    if phase:
        yield f'<span class="badge {kind}">{shown(phase)}</span>'
    total = run.status.total_steps if run.status else 0
    of_total = f" of {total}" if total else ""
    yield f'<span class="soft">step {run.num_steps}{of_total}</span>'
    if run.status and run.status.activity and phase not in ENDED_PHASES:
        yield f'<span class="soft">{shown(run.status.activity)}</span>'
    yield "</header>"


def _failure(run: RunData) -> Iterable[str]:
    if run.failure:
        yield '<div class="card failure"><b>The job failed.</b>'
        yield f"<pre>{shown(run.failure, limit=4000)}</pre></div>"


def _tiles(run: RunData) -> Iterable[str]:
    tiles = []
    for label, name in TILES:
        _, values = run.series(name)
        if values:
            start = f"from {quantity(values[0])}" if len(values) > 1 else "one step"
            tiles.append(
                f'<div class="card tile"><span>{shown(label)}</span><b>{quantity(values[-1])}</b>'
                f"<span>{start}</span></div>"
            )
    if tiles:
        yield '<div class="tiles">' + "".join(tiles) + "</div>"
    else:
        yield '<div class="card soft">No step has been completed yet.</div>'


def _warnings(run: RunData) -> Iterable[str]:
    if run.warnings:
        yield "<h2>Warnings</h2>"
    for warning in run.warnings:
        yield (
            f'<div class="card warning"><b>{_prose(warning.message[:1].upper() + warning.message[1:])}</b> '
            f'<span class="badge warn">{shown(warning.rule)}, step {warning.step}</span>'
            f"<p>{_prose(warning.advice)}</p></div>"
        )


def _charts(run: RunData) -> Iterable[str]:
    charts = charts_of(run)
    if charts:
        yield "<h2>Curves</h2>"
        yield '<div class="charts">'
        for number, chart in enumerate(charts):
            yield (
                f'<div class="card chart"><h3>{shown(chart.title)} <span>{shown(chart.caption)}</span></h3>'
                f"{svg(chart, run, key=f'c{number}')}</div>"
            )
        yield "</div>"


def _summary(run: RunData) -> Iterable[str]:
    yield '<h2>Summary</h2><div class="card"><table>'
    for label, value in summary_rows(run).items():
        yield f"<tr><th>{shown(label)}</th><td>{shown(value)}</td></tr>"
    yield "</table></div>"


def _samples(run: RunData) -> Iterable[str]:
    steps = spread(sorted({sample["step"] for sample in run.samples}), NUM_SAMPLED_STEPS)
    if steps:
        yield "<h2>Samples over time</h2>"
    for step in steps:
        of_step = [sample for sample in run.samples if sample["step"] == step]
        opened = " open" if step in (steps[0], steps[-1]) else ""
        yield f"<details{opened}><summary>Step {step}</summary>"
        for validation in (False, True):
            of_kind = [sample for sample in of_step if (sample.get("kind") == "validation") is validation]
            yield from (_sample(sample) for sample in of_kind[:SAMPLES_PER_KIND])
        yield "</details>"


def _sample(sample: JsonObject) -> str:
    return (
        f'<div class="card sample"><div class="meta">{"".join(_sample_badges(sample))}</div>'
        f"<pre>{shown(sample.get('prompt', ''), limit=MAX_PROMPT_CHARACTERS)}</pre>"
        f"<pre>{shown(sample.get('response', ''), limit=MAX_RESPONSE_CHARACTERS)}</pre></div>"
    )


def _sample_badges(sample: JsonObject) -> Iterable[str]:
    score = sample.get("score")
    if isinstance(score, int | float):
        yield f'<span class="badge {"good" if score > 0 else "bad"}">score {quantity(score)}</span>'
    else:
        yield '<span class="badge warn">not scored</span>'
    rewards: Any = sample.get("rewards")
    if isinstance(rewards, dict) and len(rewards) > 1:
        for name, value in rewards.items():
            number = quantity(value) if isinstance(value, int | float) else "failed"
            yield f'<span class="badge">{shown(name)} {number}</span>'
    if sample.get("finish_reason") == "length":
        yield '<span class="badge warn">cut off</span>'
    if sample.get("kind") == "validation":
        yield '<span class="badge">validation</span>'


def _job(run: RunData) -> Iterable[str]:
    if run.job_yaml:
        yield f"<h2>Job</h2><details><summary>job.yaml</summary><pre>{shown(run.job_yaml)}</pre></details>"


def _footer(run: RunData, now: float) -> str:
    written = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"<footer>Written by Trimtab on {written} from {shown(run.folder.resolve())}.</footer>"


def spread(values: Sequence[int], num: int) -> list[int]:
    """At most `num` of the values, evenly spread, the first and the last among them."""
    if len(values) <= num:
        return list(values)
    return [values[round(i * (len(values) - 1) / (num - 1))] for i in range(num)]
