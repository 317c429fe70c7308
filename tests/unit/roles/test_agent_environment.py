"""What the agent works out before it starts anything, and what it says afterwards."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.small_job import small_job

from trimtab.api import ResolvedJob
from trimtab.errors import UserError
from trimtab.roles import agent
from trimtab.roles.agent import last_error, rank_environments, thread_environ
from trimtab.roles.environment import PodEnvironment, WorkerEnvironment

POD = {
    "TRIMTAB_JOB": "/run/resolved.json",
    "TRIMTAB_ROLE": "actor",
    "TRIMTAB_REPLICA": "0",
    "TRIMTAB_NODE": "1",
    "TRIMTAB_INCARNATION": "3",
    "TRIMTAB_COORDINATOR": "127.0.0.1:7000",
    "TRIMTAB_HOST": "10.0.0.7",
    "TRIMTAB_TERMINATION_LOG": "/dev/termination-log",
    "TRIMTAB_TLS_DIR": "/etc/trimtab/tls",
}


def resolved(**roles: Any) -> ResolvedJob:
    return small_job(Path("/tmp"), roles=roles)  # noqa: S108


def test_pod_environment_survives_the_way_through_variables() -> None:
    env = PodEnvironment.from_environ(POD)
    assert env.to_environ() == POD
    assert env.pod_name == "actor-0-1"
    assert env.in_pod
    assert not PodEnvironment.from_environ(POD | {"TRIMTAB_LAUNCHER_PID": "7"}).in_pod


def test_worker_environment_survives_the_way_through_variables() -> None:
    variables = POD | {"TRIMTAB_RANK": "5", "TRIMTAB_LOCAL_RANK": "1", "TRIMTAB_WORLD_SIZE": "8"}
    env = WorkerEnvironment.from_environ(variables)
    assert env.to_environ() == variables
    assert env.worker_name == "actor-0/rank-5"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"TRIMTAB_JOB": ""}, "TRIMTAB_JOB is not set"),
        ({"TRIMTAB_ROLE": "trainer"}, "TRIMTAB_ROLE is 'trainer', allowed are coordinator, actor"),
        ({"TRIMTAB_NODE": "first"}, "TRIMTAB_NODE is 'first', not a whole number"),
        ({"TRIMTAB_TLS_DIR": ""}, "TRIMTAB_HOST is 10.0.0.7, .* TRIMTAB_TLS_DIR is not set"),
    ],
    ids=["a variable is missing", "the role is unknown", "a number is text", "plain beyond the machine"],
)
def test_pod_environment_that_is_wrong_names_the_variable(changes: dict[str, str], text: str) -> None:
    with pytest.raises(UserError, match=text):
        PodEnvironment.from_environ(POD | changes)


@pytest.mark.parametrize(
    ("host", "bound"), [("127.0.0.9", "127.0.0.9"), ("::1", "[::1]"), ("localhost", "localhost")]
)
def test_plain_pod_stays_on_its_machine_and_its_host_fits_before_a_port(host: str, bound: str) -> None:
    env = PodEnvironment.from_environ(POD | {"TRIMTAB_HOST": host, "TRIMTAB_TLS_DIR": ""})
    assert (env.tls_dir, env.bind_host) == (None, bound)


def test_rank_environments_of_an_actor_pod_are_its_share_of_the_world() -> None:
    ranks = rank_environments(
        PodEnvironment.from_environ(POD), resolved(actor={"nodes": 2, "gpusPerNode": 2})
    )
    assert [(r.rank, r.local_rank, r.world_size) for r in ranks] == [(2, 0, 4), (3, 1, 4)]


def test_ranks_of_a_pod_serve_their_gauges_beside_each_other() -> None:
    env = PodEnvironment.from_environ(POD | {"TRIMTAB_METRICS_PORT": "7071"})
    job = resolved(actor={"nodes": 2, "gpusPerNode": 2})
    ranks = rank_environments(env, job)
    assert [WorkerEnvironment.from_environ(r.to_environ()).metrics_port for r in ranks] == [7071, 7072]
    anywhere = rank_environments(PodEnvironment.from_environ(POD), job)
    assert [WorkerEnvironment.from_environ(r.to_environ()).metrics_port for r in anywhere] == [0, 0]


@pytest.mark.parametrize("role", ["coordinator", "rollout", "reward"])
def test_rank_environments_of_other_roles_are_one(role: str) -> None:
    env = PodEnvironment.from_environ(POD | {"TRIMTAB_ROLE": role, "TRIMTAB_NODE": "0"})
    ranks = rank_environments(env, resolved(actor={"gpusPerNode": 4}))
    assert [(r.rank, r.local_rank, r.world_size) for r in ranks] == [(0, 0, 1)]


def test_last_error_is_the_message_that_the_worker_ended_with() -> None:
    output = b"12:00:00 INFO loading\nerror: model.path is /x:\nno such folder\n"
    assert last_error(output) == "error: model.path is /x:\nno such folder"


def test_last_error_without_a_message_is_the_end_of_the_output() -> None:
    assert last_error("\n".join(map(str, range(100))).encode()) == "\n".join(map(str, range(88, 100)))
    assert last_error(b"\xff\n") == "\ufffd"
    assert last_error(b"") == ""


@pytest.mark.parametrize(
    ("usable", "ranks", "expected"),
    [
        pytest.param(64, 1, {}, id="no quota: left to the libraries"),
        pytest.param(6, 1, {"OMP_NUM_THREADS": "6"}, id="one rank gets what the quota pays for"),
        pytest.param(6, 4, {"OMP_NUM_THREADS": "1"}, id="several ranks share it"),
        pytest.param(2, 8, {"OMP_NUM_THREADS": "1"}, id="one thread at least"),
    ],
)
def test_ranks_get_no_more_threads_than_the_pods_quota_pays_for(
    monkeypatch: pytest.MonkeyPatch, usable: int, ranks: int, expected: dict[str, str]
) -> None:
    monkeypatch.setattr(agent, "allowed_cores", lambda: list(range(64)))
    monkeypatch.setattr(agent, "num_usable_cores", lambda: usable)
    assert thread_environ(ranks) == expected
