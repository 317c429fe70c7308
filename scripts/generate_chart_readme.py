"""Writes charts/trimtab/README.md from Chart.yaml, values.yaml (its `# --` comments) and values.schema.json.

Run by `make docs`; `make verify` fails where the page is not what this writes.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "trimtab"
PAGE = CHART / "README.md"
MARK = "# -- "
OPEN_ENDED = (
    "defaults.roles.coordinator",
    "defaults.roles.actor",
    "defaults.roles.rollout",
    "defaults.roles.reward",
)


def described(text: str) -> dict[str, str]:
    """The comment above each value of values.yaml, by the value's dotted path."""
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    words: list[str] = []
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith(MARK):
            words = [bare.removeprefix(MARK)]
        elif bare.startswith("#") and words:
            words.append(bare.lstrip("# "))
        elif bare and not bare.startswith("#"):
            indent = len(line) - len(line.lstrip())
            path = [entry for entry in path if entry[0] < indent] + [(indent, bare.split(":")[0])]
            if words:
                found[".".join(name for _, name in path)] = " ".join(words)
            words = []
        else:
            words = []
    return found


def leaves(values: Any, schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its path; an object that the schema leaves open is one value."""
    properties = schema.get("properties", {})
    if not isinstance(values, CommentedMap) or not properties or path in OPEN_ENDED:
        yield path, values
        return
    for name, value in values.items():
        below = f"{path}.{name}" if path else str(name)
        yield from leaves(value, properties.get(name, {}), below)


def page() -> str:
    """The whole page."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    values = YAML().load(text)
    chart = YAML(typ="safe").load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    words = described(text)
    rows = []
    for path, value in leaves(values, schema):
        said = words.get(path) or words.get(path.rpartition(".")[0], "")
        shown = json.dumps(value, ensure_ascii=False)
        rows.append(f"| `{path}` | `{shown}` | {said} |")
    table = "\n".join(rows)
    return f"""# {chart["name"]}

<!-- Written by scripts/generate_chart_readme.py: edit values.yaml, then `make docs`. -->

{chart["description"]} Version {chart["version"]}; Kubernetes {chart["kubeVersion"].removesuffix("-0")}.

    helm install trimtab charts/trimtab --namespace trimtab-system --create-namespace

[Installation](../../docs/installation.md) says what it needs, [operations](../../docs/operations.md) how to
run it, [security](../../docs/security.md) what it may do.

The CRD is a template of the chart, so that `helm upgrade` upgrades it, and is kept when the release is
uninstalled (`helm.sh/resource-policy: keep`), so that no job is lost. `crd.install: false` leaves it to you.

| value | default | meaning |
|---|---|---|
{table}
"""


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
