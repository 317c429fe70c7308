from collections.abc import Callable
from typing import Any

import pytest

from trimtab.api import JobSpec
from trimtab_operator.builders.resolve import parse
from trimtab_operator.builders.storage import claim_names, storage_problem
from trimtab_operator.model.observed import Job

MakeJob = Callable[..., Job]

HOST = "kubernetes.io/hostname"
PINNED = {"scheduling": {"nodeSelector": {HOST: "node-1"}}}


def spec_of(make_job: MakeJob, **changes: Any) -> JobSpec:
    return parse(make_job(**changes)).spec


def on_claim(**changes: Any) -> dict[str, Any]:
    return {
        "storage": {"volume": {"name": "runs"}},
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs-claim"}}],
    } | changes


@pytest.mark.parametrize(
    ("modes", "pinned", "accepted"),
    [
        (("ReadWriteMany",), False, True),
        (("ReadWriteOnce", "ReadWriteMany"), False, True),
        (("ReadWriteOnce",), False, False),
        (("ReadWriteOnce",), True, True),
        (("ReadWriteOncePod",), False, False),
        (("ReadWriteOncePod",), True, False),
        (("ReadOnlyMany",), False, False),
    ],
)
def test_claim_for_the_run_is_accepted_where_all_pods_can_write(
    make_job: MakeJob, modes: tuple[str, ...], pinned: bool, accepted: bool
) -> None:
    spec = spec_of(make_job, **on_claim(), **(PINNED if pinned else {}))
    problem = storage_problem(spec, {"runs-claim": modes})
    assert (problem is None) is accepted
    if problem is not None:
        assert "runs-claim" in problem
        assert modes[0] in problem


def test_claim_of_the_operators_making_is_judged_by_its_spec(make_job: MakeJob) -> None:
    claim = {"storage": {"claim": {"size": "1Gi", "accessModes": ["ReadWriteOnce"]}}}
    assert "ReadWriteOnce" in (storage_problem(spec_of(make_job, **claim), None) or "")
    assert storage_problem(spec_of(make_job, **claim, **PINNED), None) is None


def test_pinning_only_some_roles_does_not_share_a_claim(make_job: MakeJob) -> None:
    def roles(**hosts: str) -> dict[str, Any]:
        return {
            role: {"podTemplate": {"spec": {"nodeSelector": {HOST: host}}}} for role, host in hosts.items()
        }

    names = ("coordinator", "actor", "rollout", "reward")
    claims = {"runs-claim": ("ReadWriteOnce",)}
    one = roles(**dict.fromkeys(names, "node-1"))
    assert storage_problem(spec_of(make_job, **on_claim(roles=one)), claims) is None
    assert storage_problem(spec_of(make_job, **on_claim(roles=roles(actor="node-1"))), claims)
    assert storage_problem(spec_of(make_job, **on_claim(roles=roles(actor="node-2")), **PINNED), claims)


@pytest.mark.parametrize(
    ("read_only", "modes", "accepted"),
    [
        (True, ("ReadOnlyMany",), True),
        (False, ("ReadOnlyMany",), True),
        (True, ("ReadWriteOnce", "ReadOnlyMany"), True),
        (False, ("ReadWriteOnce", "ReadOnlyMany"), False),
        (True, ("ReadWriteOnce",), False),
    ],
)
def test_claim_with_data_is_accepted_where_all_pods_can_mount_it(
    make_job: MakeJob, read_only: bool, modes: tuple[str, ...], accepted: bool
) -> None:
    data = {"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": read_only}}
    spec = spec_of(make_job, volumes=[data], volumeMounts=[{"name": "data", "mountPath": "/data"}])
    assert (storage_problem(spec, {"data": modes}) is None) is accepted


def test_claim_that_is_not_there_yet_is_no_problem(make_job: MakeJob) -> None:
    spec = spec_of(make_job, **on_claim())
    assert storage_problem(spec, {}) is None
    assert storage_problem(spec, None) is None


def test_claim_names_are_those_of_the_volumes_each_once(make_job: MakeJob) -> None:
    volumes = [
        {"name": "a", "persistentVolumeClaim": {"claimName": "one"}},
        {"name": "b", "emptyDir": {}},
        {"name": "c", "persistentVolumeClaim": {"claimName": "one"}},
    ]
    assert claim_names(spec_of(make_job, volumes=volumes)) == ("one",)
