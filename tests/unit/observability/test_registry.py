import ast
import re
from pathlib import Path

import pytest

import trimtab
from trimtab.observability.registry import SECTIONS, TIMING_PHASES, all_metrics, lookup, prometheus_name

GROUPS = sorted({metric.name.split("/")[0] for metric in all_metrics()})
METRIC_NAME = re.compile(rf"(?:{'|'.join(GROUPS)})(?:/[a-z0-9_]+)+")


def names_in(source: Path) -> set[str]:
    constants = (
        node.value for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Constant)
    )
    return {value for value in constants if isinstance(value, str) and METRIC_NAME.fullmatch(value)}


def test_every_metric_that_the_sources_name_is_in_the_registry() -> None:
    package = Path(trimtab.__file__).parent
    prefixes = {metric.name.rsplit("/", 1)[0] for metric in all_metrics()} | {"val/reward"}
    unknown = {
        f"{path.relative_to(package)}: {name}"
        for path in package.rglob("*.py")
        for name in names_in(path)
        if lookup(name) is None and name not in prefixes
    }
    assert unknown == set(), "describe these in trimtab.observability.registry, then `make docs`"


def test_every_metric_of_the_registry_is_reported_by_some_source() -> None:
    """`a/b/mean` counts as reported by "a/b/mean", f"a/{name}/mean", or "a/b" beside f"{prefix}/mean"."""
    package = Path(trimtab.__file__).parent
    nodes = [
        node
        for path in package.rglob("*.py")
        if path.parent.name != "observability"  # that is who reads and describes them
        for node in ast.walk(ast.parse(path.read_text()))
    ]
    said = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    families = [pattern_of(node) for node in nodes if isinstance(node, ast.JoinedStr)]
    silent = []
    for metric in all_metrics():
        name = re.sub(r"\{\w+\}", "x", metric.name)
        prefix, last = metric.name.rsplit("/", 1)
        prefix = re.sub(r"/\{\w+\}", "", prefix)
        if not (
            name in said
            or any(family.fullmatch(name) for family in families)
            or (prefix in said and f"/{last}" in said)
        ):
            silent.append(metric.name)
    assert silent == [], "report these, or take them out of trimtab.observability.registry"


def pattern_of(text: ast.JoinedStr) -> re.Pattern[str]:
    """What an f-string that begins with a metric's group can become; of any other, nothing."""
    parts = [
        re.escape(part.value) if isinstance(part, ast.Constant) and isinstance(part.value, str) else "[^/]+"
        for part in text.values
    ]
    return re.compile("".join(parts) if parts and parts[0].partition("/")[0] in GROUPS else "(?!)")


def test_names_are_unique_in_the_registry_and_in_prometheus() -> None:
    names = [metric.name for metric in all_metrics()]
    assert len(set(names)) == len(names)
    assert len({prometheus_name(name) for name in names}) == len(names)
    assert all(metric.description.endswith(".") for metric in all_metrics())
    assert all(section.metrics for section in SECTIONS)
    assert set(TIMING_PHASES) <= set(names)


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("actor/ppo_kl", "actor/ppo_kl"),
        ("reward/my_rewards:score/mean", "reward/{name}/mean"),
        ("val/reward/exact/mean", "val/reward/{name}/mean"),
        ("reward/failed/timeout", "reward/failed/{kind}"),
        ("reward/mean", None),
        ("actor/ppo_kl2", None),
    ],
)
def test_lookup_finds_exact_names_families_and_nothing_else(name: str, entry: str | None) -> None:
    found = lookup(name)
    assert (found.name if found else None) == entry
