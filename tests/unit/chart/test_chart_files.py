"""The chart's files agree with each other; no helm needed. What helm makes of them is in tests/apiserver."""

import importlib.util
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from trimtab.observability.registry import SECTIONS, prometheus_name
from trimtab_operator.adapter.metrics import OperatorMetrics
from trimtab_operator.builders.resolve import resolve
from trimtab_operator.constants import ROLES
from trimtab_operator.model.observed import Job
from trimtab_operator.model.resolved import Settings

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "trimtab"
NAME = re.compile(r"trimtab_\w+")


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location(
        "chart_readme", ROOT / "scripts" / "generate_chart_readme.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_readme_is_what_the_values_say(generator):
    assert (CHART / "README.md").read_text(encoding="utf-8") == generator.page()


def test_every_value_is_described_and_has_a_type_in_the_schema(generator):
    values = YAML().load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    words = generator.described((CHART / "values.yaml").read_text(encoding="utf-8"))
    for path, _ in generator.leaves(values, schema):
        assert words.get(path) or words.get(path.rpartition(".")[0]), f"{path} has no description"
        node = schema
        for name in path.split("."):
            node = node["properties"][name] if "properties" in node else schema["$defs"]["role"]
        assert node, f"{path} is not in values.schema.json"


def test_chart_and_operator_carry_one_version():
    chart = YAML(typ="safe").load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = (ROOT / "operator" / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{chart["appVersion"]}"' in project


def test_example_for_artifact_hub_is_a_job_that_the_operator_accepts():
    chart = YAML(typ="safe").load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    (example,) = YAML(typ="safe").load(chart["annotations"]["artifacthub.io/crdsExamples"])
    job = Job(
        namespace="team-a",
        name=example["metadata"]["name"],
        uid="uid",
        generation=1,
        resource_version="1",
        created=datetime(2026, 11, 1, tzinfo=UTC),
        spec=example["spec"],
    )
    roles = {role: {"image": "registry.test/image"} for role in ROLES}
    assert resolve(job, Settings.model_validate({"roles": roles}), attempt=1)


def test_dashboard_asks_for_metrics_that_the_operator_and_the_jobs_have():
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expression = " ".join(expressions).replace("trimtab_dev_job", "job")  # what is left are metrics
    asked = {name.removesuffix("_bucket").removesuffix("_total") for name in NAME.findall(expression)}
    of_jobs = {prometheus_name(metric.name) for section in SECTIONS for metric in section.metrics}
    operator = OperatorMetrics()
    operator.count_from(list, list)
    of_operator = {family.name for family in operator.registry.collect()}
    assert asked & of_jobs
    assert asked & of_operator
    assert asked - of_jobs - of_operator == set()
