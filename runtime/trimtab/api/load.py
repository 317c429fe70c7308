"""Read a job from a YAML file. Called by the CLI, the local launcher and tests."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trimtab.api.job import RLTrainingJob
from trimtab.api.problems import JobError, Problem


def parse_job(data: Any, *, source: str = "the job") -> RLTrainingJob:
    """Validate a job given as plain data with the file's names; raises `JobError` with every problem."""
    try:
        return RLTrainingJob.model_validate_json(json.dumps(data), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        problems = [Problem(".".join(map(str, e["loc"])), e["input"], e["msg"]) for e in error.errors()]
        raise JobError(problems, source=source) from error


def load_job(path: Path) -> RLTrainingJob:
    """Read one job from a YAML 1.2 file; raises `JobError` with every problem."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    return parse_job(yaml.load(path.read_text(encoding="utf-8")), source=str(path))
