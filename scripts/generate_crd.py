"""Writes the CustomResourceDefinition of the chart and its reference page from trimtab.api.

`--check` writes nothing and fails where one has drifted.
"""

import argparse
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter

from trimtab.api.changes import When, parts
from trimtab.api.crd import PRINTER_COLUMNS, SCALE, custom_resource_definition
from trimtab.api.rules import rules_by_place

ROOT = Path(__file__).resolve().parent.parent
CRD = ROOT / "charts" / "trimtab" / "files" / "crd.yaml"
PAGE = ROOT / "docs" / "reference" / "crd.md"

CRD_HEAD = "# Written by scripts/generate_crd.py from trimtab.api: edit the models there, then `make crd`.\n"

PAGE_HEAD = """# RLTrainingJob in a cluster

<!-- Written by scripts/generate_crd.py from trimtab.api: edit the texts there. -->

What the API server knows of a job: the [fields](job.md) with their types and bounds, and the rules below.
What it lets through and is wrong all the same, the operator says in the condition `Validated`. `kubectl
explain rltj.spec` shows the fields, `rltj` is the short name, and `kubectl get trimtab` lists all jobs too.

The CustomResourceDefinition is in the chart (`charts/trimtab/files/crd.yaml`) and needs Kubernetes 1.30 or
later. There is one version, `v1alpha1`. A later one will hold the same fields or more, so that the API
server converts between them by itself, without a webhook.
"""

CHANGES = """## What may change, and when

An edit is judged by `spec.suspend` as it was before the edit. So a suspended job can be changed and resumed
in one edit, and a running one is suspended first, in an edit of its own. Changes to a suspended job take
effect when it resumes. An edit that is refused changes nothing. A job that was never started, because its
spec is refused (`Validated` is False) or it is held, is free to change, all but `spec.managedBy`.
"""

WHEN: dict[When, str] = {
    "always": "At any time, while the job runs too:",
    "suspended": "While `spec.suspend` is true:",
    "never": "Never, as they are what the training is (its checkpoints would not fit another), or whose job:",
}

TAIL = """## Defaults

A default that is the same for every job is in the schema: the API server stores it with a job when the job
is created, so a later version's other default does not reach a job that exists. A field that a later version
adds appears with its default in jobs that exist, without a new generation; such a default always means what
the version before did.

Not in the schema are defaults that follow from other fields (`training.miniBatchPrompts`, the name of a
reward), that the platform team sets (images, resources), and empty lists and objects. The operator fills
these in when a job starts, and keeps the outcome in a ConfigMap until the job starts anew.

`null` says something only where a field has a default that it switches off, as in `checkpoint: {everySteps:
null}`; elsewhere it is the same as leaving the field out.
"""


def render_crd() -> str:
    """The text of the CustomResourceDefinition."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.representer.sort_base_mapping_type_on_output = False
    yaml.width = 4096  # a text is one line, and so one line of a difference
    yaml.representer.add_representer(float, _represent_float)
    text = io.StringIO(CRD_HEAD)
    text.seek(0, io.SEEK_END)
    yaml.dump(custom_resource_definition(), text)
    return text.getvalue()


def render_page() -> str:
    """The text of the reference page."""
    return "\n".join([PAGE_HEAD, *_columns(), *_scale(), *_changes(), *_rules(), TAIL])


def _represent_float(representer: SafeRepresenter, value: float) -> ScalarNode:
    """1e-06 is a number in YAML 1.2 and text in 1.1; 1.0e-06 is a number in both."""
    text = repr(value)
    text = text if "." in text else text.replace("e", ".0e")
    return representer.represent_scalar("tag:yaml.org,2002:float", text)


def _columns() -> Iterator[str]:
    yield "## Columns\n"
    yield "| Column | Field | Shown by |\n|---|---|---|"
    for column in PRINTER_COLUMNS:
        shown_by = "`kubectl get -o wide`" if column.get("priority") else "`kubectl get`"
        yield f"| {column['name']} | `{column['jsonPath'].lstrip('.')}` | {shown_by} |"
    yield ""


def _scale() -> Iterator[str]:
    spec, status, selector = (path.lstrip(".") for path in SCALE.values())
    yield "## Scale\n"
    yield (
        f"`kubectl scale rltj NAME --replicas=4` sets `{spec}`, also of a job that does not name it.\n"
        f"An autoscaler reads `{status}`, the rollout replicas that exist, and `{selector}`,\n"
        "which selects their pods.\n"
    )


def _changes() -> Iterator[str]:
    yield CHANGES
    for when, text in WHEN.items():
        by_parent: dict[str, list[str]] = {}
        for part in parts():
            if part.when == when:
                parent, _, name = f"spec.{part.path}".rpartition(".")
                by_parent.setdefault(parent, []).append(f"`{name}`")
        yield text + "\n"
        yield from (f"- `{parent}`: {', '.join(names)}" for parent, names in by_parent.items())
        yield ""


def _rules() -> Iterator[str]:
    yield "## Rules beside the schema\n"
    yield "| Where | What is allowed |\n|---|---|"
    for place, rule in rules_by_place():
        if "oldSelf" not in rule.expression:
            yield f"| `{(place + (rule.field_path or '')).lstrip('.')}` | {rule.message} |"
    yield ""


def main() -> int:
    """Write both files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file has drifted")
    args = parser.parse_args()
    drifted = []
    for path, text in ((CRD, render_crd()), (PAGE, render_page())):
        if args.check:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                drifted.append(str(path.relative_to(ROOT)))
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    if drifted:
        print(f"{' and '.join(drifted)} drifted from trimtab.api: run `make crd`", file=sys.stderr)
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main())
