import json
from collections.abc import Callable

import pytest

from trimtab.api import ResolvedJob
from trimtab_operator.builders.config_map import ResolvedError, load_resolved, resolved_manifest
from trimtab_operator.constants import JOB_FILE, RENDERING_FILE
from trimtab_operator.model.resolved import Resolved

Make = Callable[..., Resolved]

VOLUME = {"name": "data", "nfs": {"server": "s", "path": "/", "readOnly": True}}


def test_resolved_spec_survives_its_config_map(make: Make) -> None:
    resolved = make(settings={"egress": [{"ports": [{"port": 443}]}]}, volumes=[VOLUME])
    assert load_resolved(resolved_manifest(resolved)) == resolved


def test_resolved_config_map_is_immutable_and_the_jobs(make: Make) -> None:
    manifest = resolved_manifest(make())
    assert manifest["immutable"] is True
    assert manifest["metadata"]["name"] == make().name
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == make().job_uid
    assert ResolvedJob.model_validate_json(manifest["data"][JOB_FILE]) == make().resolved_job


def test_resolved_spec_of_a_later_operator_is_read_without_what_is_new(make: Make) -> None:
    resolved = make(volumes=[VOLUME])
    manifest = resolved_manifest(resolved)
    for key in (JOB_FILE, RENDERING_FILE):
        manifest["data"][key] = json.dumps(json.loads(manifest["data"][key]) | {"fromTheFuture": 1})
    job = json.loads(manifest["data"][JOB_FILE])
    job["job"]["spec"]["roles"]["rollout"]["alsoNew"] = 1
    manifest["data"][JOB_FILE] = json.dumps(job)
    assert load_resolved(manifest) == resolved


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        (JOB_FILE, None, "has no job.json"),
        (JOB_FILE, "{", "no resolved job"),
        (JOB_FILE, "{}", "no resolved job"),
        (RENDERING_FILE, '{"schemaVersion": 99}', "schema version 99"),
    ],
)
def test_resolved_spec_that_cannot_be_read_says_why(
    make: Make, key: str, text: str | None, words: str
) -> None:
    manifest = resolved_manifest(make())
    if text is None:
        del manifest["data"][key]
    else:
        manifest["data"][key] = text
    with pytest.raises(ResolvedError, match=words):
        load_resolved(manifest)
