import json
import math
import os
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from google.protobuf import json_format

from trimtab.errors import UserError
from trimtab.observability.charts import CHARTS, MAX_POINTS, thin
from trimtab.observability.report import shown, spread, write_report
from trimtab.observability.run_data import load_run, summary_rows
from trimtab.observability.warning import HealthWarning
from trimtab.observability.writer import MetricsWriter
from trimtab.v1 import job_control_pb2 as pb

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>"


def make_run(
    folder: Path, *, steps: int, phase: str = "Complete", failure: str = "", charts: tuple = CHARTS[:1]
) -> Path:
    with MetricsWriter(folder, tensorboard=False) as writer:
        writer.write(0, {"val/score/mean": 0.3}, time=0.0)
        for step in range(1, steps + 1):
            metrics = {name: 1.0 + step / 10 for chart in charts for name in chart.metrics}
            metrics |= {"actor/grad_norm": math.nan if step == 2 else 1.0}
            metrics |= {"response_length/min": 1.0, "response_length/max": 9.0, "timing_s/step": 2.0}
            writer.write(step, metrics, time=2.0 * step)
            writer.sample(step, prompt=EVIL, response=EVIL, score=0.5, finish_reason="length")
    status = pb.JobStatus(name="arithmetic", phase=phase, step=steps, total_steps=40)
    if failure:
        status.conditions.add(type="Failed", status="True", reason="OutOfMemory", message=failure)
    (folder / "status.json").write_text(json_format.MessageToJson(status))
    (folder / "job.yaml").write_text("metadata: {name: arithmetic}\nspec: {seed: 7} # <b>\n")
    return folder


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_write_report_stands_alone_and_shows_every_chart(tmp_path: Path) -> None:
    path = write_report(make_run(tmp_path, steps=30, charts=CHARTS))
    assert path == tmp_path / "report.html"
    page = path.read_text()
    tags = Tags(page)
    assert all(link.startswith("#") for link in tags.links)
    assert "url(http" not in page and "@import" not in page
    assert page.count("<svg ") == len(CHARTS)
    for element in re.findall(r"<svg .*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(element)  # noqa: S314 (our own page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for part in (
        "arithmetic",
        "Complete",
        "step 30 of 40",
        "0.3 → 4",
        "actor/grad_norm",
        "Samples over time",
    ):
        assert part in page
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_write_report_text_of_the_model_is_inert(tmp_path: Path) -> None:
    tags = Tags(write_report(make_run(tmp_path, steps=2)).read_text())
    assert not {"script", "img", "iframe", "b2"} & tags.names
    assert not {name for name in tags.attributes if name.startswith("on")}


def test_write_report_failed_run_says_why(tmp_path: Path) -> None:
    run = make_run(tmp_path, steps=3, phase="Failed", failure="rollout-1 exited with 66: <out of memory>")
    page = write_report(run).read_text()
    assert "The job failed." in page
    assert "OutOfMemory: rollout-1 exited with 66: &lt;out of memory&gt;" in page


@pytest.mark.parametrize("num_steps", [0, 1])
def test_write_report_young_run(tmp_path: Path, num_steps: int) -> None:
    page = write_report(make_run(tmp_path, steps=num_steps, phase="Running", charts=CHARTS)).read_text()
    assert f"step {num_steps} of 40" in page


def test_write_report_empty_run(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("metadata: {name: young}\n")
    page = write_report(tmp_path).read_text()
    assert "young" in page and "No step has been completed yet." in page
    assert (tmp_path / "curves.png").exists()


def test_write_report_of_a_killed_run_leaves_broken_files_out(tmp_path: Path) -> None:
    make_run(tmp_path, steps=3)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "actor/ent')
    (tmp_path / "status.json").write_text('{"name": "arith')
    (tmp_path / "summary.json").write_text("[")
    assert load_run(tmp_path).num_steps == 3
    assert "arithmetic" in write_report(tmp_path).read_text()


def test_write_report_elsewhere_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    before = sorted(run.iterdir())
    assert write_report(run, output=tmp_path / "out" / "page.html") == tmp_path / "out" / "page.html"
    assert sorted(run.iterdir()) == before
    assert (tmp_path / "out" / "curves.png").exists()


def test_load_run_of_another_folder_names_it_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a run directory .* give the folder"):
        load_run(tmp_path)


def test_summary_rows_tell_the_course(tmp_path: Path) -> None:
    rows = summary_rows(load_run(make_run(tmp_path, steps=30)))
    assert rows["result"] == "Complete" and rows["steps"] == "30 of 40"
    assert rows["validation score"] == "0.3 → 4"
    assert rows["steps took"] == "1:00, median 2 s"
    assert rows["warnings"] == "non-finite"


def test_summary_written_before_the_last_status_decides_the_phase(tmp_path: Path) -> None:
    run = make_run(tmp_path, steps=1, phase="Running")
    os.utime(run / "status.json", (100, 100))
    summary = run / "summary.json"
    summary.write_text(json.dumps({"phase": "Failed", "message": "a rollout was lost", "wall_s": 61}))
    os.utime(summary, (200, 200))
    rows = summary_rows(load_run(run))
    assert rows["result"] == "Failed: a rollout was lost" and rows["time"].startswith("1:01")
    os.utime(run / "status.json", (300, 300))
    rows = summary_rows(load_run(run))
    assert rows["result"] == "Running" and "time" not in rows


def test_warning_record_survives_the_file(tmp_path: Path) -> None:
    warning = HealthWarning("reward-flat", 3, "critic/score/mean", 0.5, "flat.", "Try more.")
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.warn(warning)
    assert load_run(tmp_path).warnings == (warning,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<b> & \"'", "&lt;b&gt; &amp; &quot;&#x27;"),
        ("a\x1b[31m\x00", "a\\x1b[31m\\x00"),
        ("\u202eevil \ud800", "\\u202eevil \\ud800"),
        ("né 日本語\n\t", "né 日本語\n\t"),
    ],
    ids=["markup", "terminal codes", "direction and surrogate", "letters and line ends stay"],
)
def test_shown_makes_text_harmless(text: str, expected: str) -> None:
    assert shown(text) == expected


def test_shown_cuts_before_escaping() -> None:
    assert shown("<<<<", limit=2) == "&lt;&lt;… (2 more characters)"


def test_spread_keeps_the_ends() -> None:
    assert spread(list(range(100)), 4) == [0, 33, 66, 99]
    assert spread([1, 2], 4) == [1, 2]


def test_thin_long_series_keeps_its_mean() -> None:
    steps = list(range(10 * MAX_POINTS))
    x, y = thin(steps, [float(step % 10) for step in steps])
    assert len(x) == MAX_POINTS and set(y) == {4.5}
