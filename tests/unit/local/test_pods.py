import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.small_job import small_job

from trimtab.api import ResolvedJob
from trimtab.errors import UserError
from trimtab.local.pods import check_local, local_gpus, pod_environ, replicas_of
from trimtab.roles.environment import PodEnvironment


def resolved(folder: Path, *, roles: dict[str, Any] | None = None, **spec: Any) -> ResolvedJob:
    return small_job(folder, roles=roles or {}, **spec)


def test_replicas_are_the_coordinator_an_actor_and_what_is_asked_for(tmp_path: Path) -> None:
    job = resolved(tmp_path, roles={"actor": {"nodes": 2}, "rollout": {"replicas": 2}})
    found = [(replica.name, replica.nodes) for replica in replicas_of(job, [])]
    assert found == [
        ("coordinator-0", 1),
        ("actor-0", 2),
        ("rollout-0", 1),
        ("rollout-1", 1),
        ("reward-0", 1),
    ]


def test_gpus_are_dealt_out_in_order_each_once(tmp_path: Path) -> None:
    roles = {
        "actor": {"gpusPerNode": 2},
        "rollout": {"replicas": 2, "gpusPerNode": 1, "engine": {"vllm": {"tensorParallelSize": 1}}},
    }
    given = {r.name: r.gpus for r in replicas_of(resolved(tmp_path, roles=roles), ["0", "1", "2", "3"])}
    assert given["actor-0"] == (("0", "1"),)
    assert given["rollout-0"] == (("2",),)
    assert given["rollout-1"] == (("3",),)
    assert given["coordinator-0"] == ((),)


def test_local_gpus_are_those_that_the_environment_leaves() -> None:
    assert local_gpus({"CUDA_VISIBLE_DEVICES": "3,GPU-ab"}) == ["3", "GPU-ab"]
    assert local_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []


def test_pod_environment_has_the_role_s_variables_and_the_user_s_code(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    job = resolved(
        tmp_path, code={"path": "code"}, roles={"reward": {"env": [{"name": "LIMIT", "value": "3"}]}}
    )
    check_local(job, [])
    reward = replicas_of(job, [])[-1]
    env, variables = pod_environ(
        job,
        reward,
        node=0,
        incarnation=4,
        coordinator="127.0.0.1:7000",
        job_path=tmp_path / "resolved.json",
        logs=tmp_path / "logs",
        environ={"PYTHONPATH": "/before", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert PodEnvironment.from_environ(variables) == env
    assert (env.role, env.incarnation, env.launcher_pid) == ("reward", 4, os.getpid())
    assert variables["LIMIT"] == "3"
    assert variables["PYTHONPATH"] == f"{tmp_path / 'code'}:/before"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a suspended job": ({"suspend": True}, "spec.suspend is true"),
    "code from git": (
        {"code": {"git": {"url": "https://example.com/rewards.git", "revision": "main"}}},
        "only `path`",
    ),
    "code that is not there": ({"code": {"path": "nowhere"}}, "there is no folder"),
    "a variable from a secret": (
        {"roles": {"reward": {"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "a"}}}]}}},
        "give `value`",
    ),
}


@pytest.mark.parametrize(("spec", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_check_local_refuses_what_only_a_cluster_has(tmp_path: Path, spec: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        check_local(resolved(tmp_path, **spec), [])


GPU_ROLES: dict[str, Any] = {
    "actor": {"gpusPerNode": 2},
    "rollout": {"replicas": 2, "gpusPerNode": 1, "engine": {"vllm": {"tensorParallelSize": 1}}},
}


def test_check_local_refuses_more_gpus_than_there_are_and_names_the_fields(tmp_path: Path) -> None:
    job = resolved(tmp_path, roles=GPU_ROLES)
    check_local(job, ["0", "1", "2", "3"])
    with pytest.raises(UserError) as refused:
        check_local(job, ["0", "1", "2"])
    text = str(refused.value)
    assert "spec.roles.actor.gpusPerNode 2 + spec.roles.rollout.gpusPerNode 1 in each of 2 pods" in text
    assert "4 GPUs in all, and this machine offers 3" in text
