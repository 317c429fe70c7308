from typing import Any

import pytest

from trimtab_operator.adapter.trim import StatusError, trim_job, trim_pod, version_number
from trimtab_operator.constants import LABEL_REPLICA


def pod(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """A pod of rollout-1 as the API gives it."""
    labels = {
        "trimtab.dev/job-uid": "uid-of-job",
        "trimtab.dev/role": "rollout",
        "trimtab.dev/replica": "1",
        "trimtab.dev/node": "0",
        "trimtab.dev/incarnation": "2",
        "trimtab.dev/attempt": "5001",
    }
    return {
        "metadata": {
            "name": "a",
            "namespace": "ns",
            "uid": "u",
            "resourceVersion": "41",
            "creationTimestamp": "2026-11-30T10:00:00Z",
            "labels": labels,
            "ownerReferences": [{"uid": "uid-of-job"}],
            "managedFields": [{"manager": "x" * 1000}],
            **metadata,
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "trimtab"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.9", **(status or {})},
    }


def main_container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "proxy", "state": {}}, {"name": "trimtab", "state": state}]}


def test_pod_keeps_its_place_and_address() -> None:
    known = trim_pod(pod())
    assert known is not None
    assert (known.job_uid, known.namespace, known.version, known.address) == (
        "uid-of-job",
        "ns",
        41,
        "10.0.0.9",
    )
    place = known.pod
    assert (place.role, place.replica, place.node, place.incarnation, place.attempt) == (
        "rollout",
        1,
        0,
        2,
        5001,
    )
    assert (place.phase, place.node_name, place.ready, place.exit_code) == ("Running", "node-1", False, None)


@pytest.mark.parametrize("value", ["", "x", "-1"], ids=["missing", "no number", "negative"])
def test_pod_with_a_label_that_is_no_place_is_none_of_ours(value: str) -> None:
    raw = pod()
    raw["metadata"]["labels"][LABEL_REPLICA] = value
    assert trim_pod(raw) is None


def test_pod_that_the_job_does_not_own_is_none_of_ours() -> None:
    raw = pod()
    raw["metadata"]["ownerReferences"] = [{"uid": "another"}]
    assert trim_pod(raw) is None


def test_end_of_the_main_container_counts_and_a_sidecar_does_not() -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled", "message": "last", "finishedAt": "2026-11-30T10:01:00Z"}
    known = trim_pod(pod(main_container(terminated=ended)))
    assert known is not None
    assert (known.pod.phase, known.pod.exit_code, known.pod.exit_reason, known.pod.exit_message) == (
        "Running",
        137,
        "OOMKilled",
        "last",
    )
    assert known.pod.finished is not None
    only_proxy = trim_pod(pod({"containerStatuses": [{"name": "proxy", "state": {"terminated": ended}}]}))
    assert only_proxy is not None
    assert only_proxy.pod.exit_code is None


def unprepared(status: str, **fields: Any) -> dict[str, Any]:
    return {
        "phase": "Pending",
        "startTime": "2026-11-30T10:00:00Z",
        "conditions": [{"type": "PodReadyToStartContainers", "status": status}],
        **main_container(waiting={"reason": "ContainerCreating"}),
        **fields,
    }


def test_failed_init_container_is_the_end_of_a_pod_that_never_started() -> None:
    status = {
        "phase": "Failed",
        "initContainerStatuses": [
            {"name": "code", "state": {"terminated": {"exitCode": 128, "message": "no such branch"}}}
        ],
        **main_container(waiting={"reason": "PodInitializing"}),
    }
    known = trim_pod(pod(status))
    assert known is not None
    assert known.pod.exit_code == 128
    assert known.pod.exit_message == "init container code: no such branch"
    assert known.pod.waiting_reason == ""


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (main_container(waiting={"reason": "ContainerCreating"}), ""),
        (unprepared("False"), "PodNotPrepared"),
        (unprepared("True"), ""),
        (unprepared("False", startTime=None), ""),
        (main_container(waiting={"reason": "ImagePullBackOff", "message": "Back-off"}), "ImagePullBackOff"),
        (
            {
                "initContainerStatuses": [{"name": "i", "state": {"waiting": {"reason": "ErrImagePull"}}}],
                **main_container(waiting={"reason": "PodInitializing"}),
            },
            "ErrImagePull",
        ),
    ],
    ids=[
        *("nothing is wrong", "volumes not mounted", "an image is pulled", "no node yet"),
        *("main container", "init container"),
    ],
)
def test_what_holds_up_a_container(status: dict[str, Any], reason: str) -> None:
    known = trim_pod(pod(status))
    assert known is not None
    assert known.pod.waiting_reason == reason


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({}, ""),
        (
            {
                "conditions": [
                    {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
                ]
            },
            "PreemptionByScheduler",
        ),
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, "UnexpectedAdmissionError"),
        ({"phase": "Failed", "reason": "Odd", **main_container(terminated={"exitCode": 1})}, ""),
    ],
    ids=["none", "preempted", "evicted", "not admitted by the kubelet", "ended by itself"],
)
def test_why_the_cluster_took_a_pod_away(status: dict[str, Any], reason: str) -> None:
    known = trim_pod(pod(status))
    assert known is not None
    assert known.pod.disruption == reason


@pytest.mark.parametrize(
    ("reason", "words"),
    [("Unschedulable", "0/3 nodes"), ("SchedulingGated", "")],
    ids=["no node", "gated by a queue"],
)
def test_words_of_the_scheduler(reason: str, words: str) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": "0/3 nodes"}
    known = trim_pod(pod({"phase": "Pending", "conditions": [condition]}))
    assert known is not None
    assert known.pod.unschedulable == words


def _job(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "j",
            "namespace": "ns",
            "uid": "u",
            "resourceVersion": "3",
            "generation": 2,
            "creationTimestamp": "2026-11-30T10:00:00Z",
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "1"},
            "managedFields": [],
        },
        "spec": {"seed": 1},
        "status": status,
    }


def test_job_is_kept_with_the_part_of_its_status_that_this_version_knows() -> None:
    job = trim_job(_job(phase="Running", step=3, fromTheFuture=1))
    assert (job.generation, job.spec) == (2, {"seed": 1})
    assert (job.status.phase, job.status.step) == ("Running", 3)


def test_job_whose_status_cannot_be_read_is_an_error_that_names_it() -> None:
    with pytest.raises(StatusError, match="ns/j: its status cannot be read"):
        trim_job(_job(attempt="many"))


def test_version_that_is_no_number_is_older_than_all() -> None:
    assert [version_number(text) for text in ("12", "", None, "a")] == [12, 0, 0, 0]
