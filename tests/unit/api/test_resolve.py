import json

import pytest

from trimtab.api import ResolvedJob, parse_job, training_identity
from trimtab.errors import UserError

SAME = {
    "replica counts": {"roles": {"rollout": {"replicas": 4}, "actor": {"nodes": 2}}},
    "the learning rate": {"training": {"optimizer": {"learningRate": 1e-3}}},
    "the length": {"training": {"steps": 99}},
    "suspend": {"suspend": True},
    "a pod template": {"roles": {"actor": {"podTemplate": {"metadata": {"labels": {"a": "b"}}}}}},
    "deadlines": {"deadlines": {"updateSeconds": 5}},
    "a default that is written out": {"seed": 0, "algorithm": {"grpo": {"groupSize": 8}}},
    "where the rollout reads the model": {"roles": {"rollout": {"model": {"path": "/local/model"}}}},
}
OTHER = {
    "the seed": {"seed": 1},
    "the model": {"model": {"path": "other"}},
    "the model's revision": {"model": {"revision": "v2"}},
    "the data": {"data": {"train": {"path": "other.jsonl"}}},
    "the prompt's length": {"data": {"maxPromptTokens": 100}},
    "the group size": {"algorithm": {"grpo": {"groupSize": 4}}},
    "the precision": {"training": {"precision": {"compute": "float32"}}},
    "the reference's model": {"roles": {"reference": {"model": {"path": "other"}}}},
}


@pytest.mark.parametrize("case", SAME)
def test_identity_stays_where_it_is_the_same_training(case, job_data):
    assert training_identity(parse_job(job_data(**SAME[case]))) == training_identity(parse_job(job_data()))


@pytest.mark.parametrize("case", OTHER)
def test_identity_changes_where_it_is_another_training(case, job_data):
    assert training_identity(parse_job(job_data(**OTHER[case]))) != training_identity(parse_job(job_data()))


def test_identity_does_not_depend_on_the_order_of_fields(job_data):
    data = job_data(data={"shuffle": True, "maxPromptTokens": 64})
    reversed_data = data | {"spec": dict(reversed(data["spec"].items()))}
    reversed_data["spec"]["data"] = dict(reversed(data["spec"]["data"].items()))
    assert training_identity(parse_job(data)) == training_identity(parse_job(reversed_data))


def test_resolved_job_survives_its_file(tmp_path, job_data):
    job = parse_job(job_data(rewards=[{"function": "a:b", "arguments": {"x": [1, 2.5, None, "é"]}}]))
    resolved = ResolvedJob.resolve(job, attempt=3, base_dir=tmp_path, run_dir=tmp_path / "run")
    resolved.save(tmp_path / "resolved.json")
    assert ResolvedJob.load(tmp_path / "resolved.json") == resolved
    assert [path.name for path in tmp_path.iterdir()] == ["resolved.json"]


def test_resolved_job_has_every_default_filled_in(tmp_path, job_data):
    resolved = ResolvedJob.resolve(parse_job(job_data()), attempt=1, base_dir=tmp_path, run_dir=tmp_path)
    resolved.save(tmp_path / "resolved.json")
    written = json.loads((tmp_path / "resolved.json").read_text(encoding="utf-8"))
    assert written["job"]["spec"]["training"]["miniBatchPrompts"] == 64
    assert written["job"]["spec"]["roles"]["rollout"]["engine"]["vllm"]["dtype"] == "bfloat16"
    assert written["trainingIdentity"] == training_identity(resolved.job)


def test_resolved_folders_are_absolute(tmp_path, job_data, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from pathlib import Path

    resolved = ResolvedJob.resolve(parse_job(job_data()), attempt=1, base_dir=Path(), run_dir=Path("run"))
    assert resolved.base_dir == str(tmp_path)
    assert resolved.run_dir == str(tmp_path / "run")


def test_file_of_another_version_is_refused_by_name(tmp_path):
    path = tmp_path / "resolved.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"resolved\.json is no resolved job"):
        ResolvedJob.load(path)
