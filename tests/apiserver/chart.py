"""The chart as the real helm renders it."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

CHART = Path(__file__).resolve().parents[2] / "charts" / "trimtab"


def helm_binary() -> str:
    """The real one; skips the test where there is none."""
    folder = os.environ.get("KUBEBUILDER_ASSETS", "")
    found = shutil.which("helm", path=f"{folder}:{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(
            "helm is neither in KUBEBUILDER_ASSETS nor on the PATH: https://helm.sh/docs/intro/install"
        )
    return found


def helm(*arguments: str, values: dict[str, Any] | None = None, check: bool = True, **options: Any) -> Any:
    """Run it; `values` as those of a file."""
    command = [helm_binary(), *arguments]
    if values is not None:
        command += ["--values", "-"]
    result = subprocess.run(
        command,
        input=json.dumps(values) if values is not None else None,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )
    assert result.returncode == 0 or not check, f"{' '.join(command)}: {result.stderr}\n{result.stdout}"
    return result


def render(values: dict[str, Any], namespace: str = "default") -> list[dict[str, Any]]:
    """Every object of a release named `release`."""
    result = helm("template", "release", str(CHART), "--namespace", namespace, values=values)
    return [document for document in YAML(typ="safe").load_all(result.stdout) if document]


def granted(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """(group, resource, verb) of each right that a role gives."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
