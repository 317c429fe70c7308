"""Writes docs/metrics.md and the table of health rules in docs/troubleshooting.md.

Both come from trimtab.observability. `--check` fails where a page has drifted and changes nothing.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from trimtab.observability.health import NON_FINITE, NON_FINITE_ADVICE, NON_FINITE_CONDITION, RULES
from trimtab.observability.registry import SECTIONS, Metric, prometheus_name

DOCS = Path(__file__).resolve().parent.parent / "docs"
METRICS_PAGE = DOCS / "metrics.md"
TROUBLESHOOTING_PAGE = DOCS / "troubleshooting.md"
BEGIN = "<!-- health rules: written by scripts/generate_metrics_page.py from trimtab.observability.health -->"
END = "<!-- end of health rules -->"

HEAD = f"""# Metrics

<!-- Written by scripts/generate_metrics_page.py from trimtab.observability.registry: edit them there. -->

Every number that a job reports. Names marked with * are verl's, for the same quantity. A metric that does not
apply to a job (a validation score without `spec.validation`, say) is left out, never reported as 0.

In the run's folder:

- `metrics.jsonl`: one line for each step with `step`, `time` (seconds since 1970) and the metrics by name;
  step 0 is the validation before training. A number that is not finite is `null`, and `warnings.jsonl` says
  so. `pandas.read_json("metrics.jsonl", lines=True)` reads it.
- `tensorboard/`: the same as scalars, unless `spec.tracking.tensorboard` is false.
- `samples.jsonl`: responses to read, with `step`, `kind` (`train` or `validation`), `prompt`, `response`,
  `score`, `rewards` and `finish_reason`.
- `warnings.jsonl`: health rules that fired, each once, with what to try
  ([troubleshooting](troubleshooting.md#health-rules)).
- `report.html` and `curves.png`: curves and samples to look at; `trimtab report RUN` writes them anew at any
  time.

A step appears once in each file: a job that resumes from a checkpoint removes the lines of later steps.

Each process also serves Prometheus gauges at an endpoint of its own, with the labels `role`, `replica` and
`rank`; `actor/ppo_kl` is `{prometheus_name("actor/ppo_kl")}` there. The ports are free ones. Each process
logs its own ("metrics at http://..."), and while the job runs `metrics-endpoints.json` in the run's folder
lists them all, in the form that Prometheus reads by itself:

```yaml
scrape_configs:
  - job_name: trimtab
    file_sd_configs: [{{files: [/path/to/run/metrics-endpoints.json]}}]
```
"""


def metrics_page() -> str:
    """The whole of docs/metrics.md."""
    parts = [HEAD]
    for section in SECTIONS:
        parts += [f"## {section.title}\n", *([f"{section.intro}\n"] if section.intro else [])]
        parts += ["| name | unit | meaning |", "|---|---|---|", *map(_metric_row, section.metrics), ""]
    return "\n".join(parts).rstrip() + "\n"


def _metric_row(metric: Metric) -> str:
    star = " *" if metric.from_verl else ""
    return f"| `{metric.name}`{star} | {metric.unit} | {metric.description} |"


def troubleshooting_page(current: str) -> str:
    """docs/troubleshooting.md with its table of health rules made anew; the rest stays."""
    before, begin, rest = current.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{TROUBLESHOOTING_PAGE}: the lines that enclose the health rules are missing")
    return before + "\n".join([BEGIN, "", *_rule_rows(), "", END]) + after


def _rule_rows() -> Iterator[str]:
    yield "| rule | metric | fires on | what to try |"
    yield "|---|---|---|---|"
    for rule in RULES:
        yield f"| `{rule.name}` | `{rule.metric}` | {rule.condition} | {rule.advice} |"
    yield f"| `{NON_FINITE}` | any | {NON_FINITE_CONDITION} | {NON_FINITE_ADVICE} |"


def main() -> int:
    """Write both pages, or with --check say which has drifted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where a page has drifted")
    check = parser.parse_args().check
    pages = {
        METRICS_PAGE: metrics_page(),
        TROUBLESHOOTING_PAGE: troubleshooting_page(TROUBLESHOOTING_PAGE.read_text(encoding="utf-8")),
    }
    drifted = [
        page for page, text in pages.items() if not page.exists() or page.read_text(encoding="utf-8") != text
    ]
    for page in drifted:
        if check:
            print(f"{page.relative_to(DOCS.parent)} has drifted: run `make docs`", file=sys.stderr)
        else:
            page.write_text(pages[page], encoding="utf-8")
    return 1 if check and drifted else 0


if __name__ == "__main__":
    sys.exit(main())
