import pytest

from trimtab.api import parse_job
from trimtab.api.changes import ALWAYS, NEVER, changed, parts
from trimtab.api.fields import find, walk
from trimtab.api.job import JobSpec
from trimtab.api.resolve import training_identity


def differences(job_data, **changes):
    return {
        part.path: part.when
        for part in changed(parse_job(job_data()).spec, parse_job(job_data(**changes)).spec)
    }


def test_parts_cover_every_field_once():
    paths = [part.path for part in parts()]
    for path, field in walk(JobSpec):
        if field.info.model is None:
            assert sum(path == part or path.startswith((f"{part}.", f"{part}[")) for part in paths) == 1, path


def test_listed_paths_exist_and_are_parts():
    assert {part.path for part in parts() if part.when == "always"} == ALWAYS
    assert {part.path for part in parts() if part.when == "never"} == NEVER
    assert all(find(f"spec.{path}") for path in ALWAYS | NEVER)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"suspend": True}, {"suspend": "always"}, id="suspending"),
        pytest.param(
            {"roles": {"rollout": {"replicas": 2}}}, {"roles.rollout.replicas": "always"}, id="scaling"
        ),
        pytest.param(
            {"roles": {"rollout": {"engine": {"hf": {}}}}},
            {"roles.rollout.engine": "suspended"},
            id="another engine",
        ),
        pytest.param(
            {"training": {"optimizer": {"learningRate": 1e-3}}},
            {"training.optimizer": "suspended"},
            id="the learning rate",
        ),
        pytest.param({"cleanupPolicy": "Running"}, {}, id="a default that is written out"),
        pytest.param({"model": {"revision": "v2"}}, {"model": "never"}, id="another model"),
        pytest.param(
            {"roles": {"reference": {"model": {"path": "other"}}}},
            {"roles.reference.model": "never"},
            id="a reference that was not there",
        ),
        pytest.param({"managedBy": "example.org/other"}, {"managedBy": "never"}, id="another controller"),
    ],
)
def test_change_says_when_it_is_allowed(changes, expected, job_data):
    assert differences(job_data, **changes) == expected


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"seed": 1}, id="the seed"),
        pytest.param({"model": {"tokenizer": {"path": "other"}}}, id="the tokenizer"),
        pytest.param({"data": {"maxPromptTokens": 100}}, id="the prompt's length"),
        pytest.param({"algorithm": {"grpo": {"groupSize": 4}}}, id="the group size"),
        pytest.param({"training": {"precision": {"compute": "float32"}}}, id="the precision"),
        pytest.param({"roles": {"actor": {"model": {"path": "other"}}}}, id="the actor's model"),
        pytest.param({"roles": {"reference": {"model": {"path": "other"}}}}, id="the reference's model"),
    ],
)
def test_what_the_training_identity_covers_never_changes(changes, job_data):
    before, after = parse_job(job_data()), parse_job(job_data(**changes))
    assert training_identity(before) != training_identity(after)
    assert {part.when for part in changed(before.spec, after.spec)} == {"never"}


def test_identity_depends_on_nothing_that_may_change(job_data):
    changes = {
        "suspend": True,
        "storage": {"claim": {"size": "1Gi"}},
        "roles": {"rollout": {"replicas": 3, "sharedMemory": "1Gi"}, "reward": {"replicas": 2}},
        "training": {"steps": 3, "shardSize": 1},
        "scheduling": {"rdma": {}, "affinity": {}},
        "networkPolicy": {},
        "cleanupPolicy": "All",
    }
    before, after = parse_job(job_data()), parse_job(job_data(**changes))
    assert {part.when for part in changed(before.spec, after.spec)} == {"always", "suspended"}
    assert training_identity(before) == training_identity(after)
