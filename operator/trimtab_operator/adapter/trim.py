"""Kubernetes JSON to the model's types, keeping what decisions need and nothing else.

Pure functions, called for every object of a list or watch: a pod of 8 KB becomes a record of a few hundred
bytes. What cannot be a pod of ours (a label is missing or no number, the job does not own it) is none: None.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, get_args

from pydantic import ValidationError

from trimtab.api.status import JobStatus
from trimtab_operator.constants import (
    LABEL_ATTEMPT,
    LABEL_INCARNATION,
    LABEL_JOB_UID,
    LABEL_NODE,
    LABEL_REPLICA,
    LABEL_ROLE,
    MAIN_CONTAINER,
)
from trimtab_operator.kube.errors import JsonObject
from trimtab_operator.model.observed import NOT_PREPARED, Job, Pod, PodPhase

MAX_WORDS: Final = 4096
"""Longest message that is kept, as the kubelet's longest termination message."""
NOT_STARTED_YET: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons of a waiting container that say nothing is wrong."""
_PHASES: Final[dict[str, PodPhase]] = {phase: phase for phase in get_args(PodPhase)}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class StatusError(ValueError):
    """A job's status is nothing that this operator understands: it must not act on it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownPod:
    """A pod in the cache."""

    pod: Pod
    namespace: str
    job_uid: str
    version: int
    """Its resourceVersion."""
    address: str = ""
    """Its IP, once it has one."""


def trim_job(raw: JsonObject) -> Job:
    """A job. StatusError where its status cannot be read."""
    metadata = raw["metadata"]
    try:
        status = JobStatus.model_validate(raw.get("status") or {})
    except ValidationError as error:
        raise StatusError(
            f"{metadata['namespace']}/{metadata['name']}: its status cannot be read: {error}"
        ) from error
    return Job(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=int(metadata.get("generation") or 0),
        resource_version=metadata["resourceVersion"],
        created=parse_time(metadata["creationTimestamp"]) or _EPOCH,
        deleted=parse_time(metadata.get("deletionTimestamp")),
        spec=raw.get("spec") or {},
        status=status,
    )


def trim_pod(raw: JsonObject) -> KnownPod | None:
    """A pod of a job."""
    metadata = raw["metadata"]
    labels = metadata.get("labels") or {}
    place = [labels.get(name, "") for name in (LABEL_REPLICA, LABEL_NODE, LABEL_INCARNATION, LABEL_ATTEMPT)]
    job_uid, owners = labels.get(LABEL_JOB_UID, ""), metadata.get("ownerReferences") or ()
    if not labels.get(LABEL_ROLE) or not all(map(str.isdecimal, place)):
        return None
    if not any(owner.get("uid") == job_uid for owner in owners):
        return None
    replica, node, incarnation, attempt = map(int, place)
    status = raw.get("status") or {}
    phase = status.get("phase") or "Pending"
    main = _main_container(status.get("containerStatuses") or ())
    ended = main.get("state", {}).get("terminated") or _failed_init(status)
    conditions = {item.get("type"): item for item in status.get("conditions") or ()}
    waiting = _waiting(status) or _not_prepared(status, conditions)
    return KnownPod(
        namespace=sys.intern(metadata["namespace"]),
        job_uid=sys.intern(job_uid),
        version=version_number(metadata.get("resourceVersion")),
        address=status.get("podIP") or "",
        pod=Pod(
            name=metadata["name"],
            uid=metadata["uid"],
            role=sys.intern(labels[LABEL_ROLE]),
            replica=replica,
            node=node,
            incarnation=incarnation,
            attempt=attempt,
            phase=_PHASES.get(phase, "Unknown"),
            created=parse_time(metadata.get("creationTimestamp")) or _EPOCH,
            deleted=parse_time(metadata.get("deletionTimestamp")),
            node_name=sys.intern((raw.get("spec") or {}).get("nodeName") or ""),
            started=parse_time(status.get("startTime")),
            ready=conditions.get("Ready", {}).get("status") == "True",
            exit_code=None if ended is None else int(ended.get("exitCode", -1)),
            exit_reason="" if ended is None else str(ended.get("reason") or ""),
            exit_message="" if ended is None else _words(ended.get("message")),
            finished=None if ended is None else parse_time(ended.get("finishedAt")),
            disruption=_disruption(status, conditions, started=bool(main.get("state", {}).get("terminated"))),
            waiting_reason=str(waiting.get("reason") or ""),
            waiting_message=_words(waiting.get("message")),
            unschedulable=_unschedulable(conditions.get("PodScheduled", {})),
        ),
    )


def version_number(text: object) -> int:
    """A resourceVersion as a number: the API orders them as such; 0 where it is none."""
    return int(text) if isinstance(text, str) and text.isdecimal() else 0


def parse_time(text: object) -> datetime | None:
    """A time of the API; None where there is none."""
    return datetime.fromisoformat(text) if isinstance(text, str) and text else None


def _main_container(statuses: Iterable[JsonObject]) -> JsonObject:
    return next((status for status in statuses if status.get("name") == MAIN_CONTAINER), {})


def _failed_init(status: Mapping[str, Any]) -> JsonObject | None:
    """The end of the init container because of which the main container was never started."""
    if status.get("phase") != "Failed":
        return None
    for container in status.get("initContainerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if ended and ended.get("exitCode"):
            words = str(ended.get("message") or "")
            return {**ended, "message": f"init container {container.get('name')}: {words}".rstrip(": ")}
    return None


def _waiting(status: Mapping[str, Any]) -> JsonObject:
    """What holds up the first container that cannot start."""
    for group in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(group) or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason", "") not in NOT_STARTED_YET:
                return dict(waiting)
    return {}


def _not_prepared(status: Mapping[str, Any], conditions: Mapping[Any, JsonObject]) -> JsonObject:
    """A pod that its node has taken on, and that has no sandbox yet: images are pulled after that."""
    prepared = conditions.get("PodReadyToStartContainers", {}).get("status")
    if prepared != "False" or status.get("phase") != "Pending" or not status.get("startTime"):
        return {}
    words = "its node has not set up its volumes or its network; `kubectl describe pod` says why"
    return {"reason": NOT_PREPARED, "message": words}


def _disruption(status: Mapping[str, Any], conditions: Mapping[Any, JsonObject], *, started: bool) -> str:
    """Why the cluster took the pod away: its condition, or the kubelet's reason for failing the pod.

    A kubelet that does not admit a pod (a node that lost its devices, or is full) fails it with a reason
    and no container was ever started.
    """
    target = conditions.get("DisruptionTarget", {})
    if target.get("status") == "True":
        return str(target.get("reason") or "DisruptionTarget")
    reason = str(status.get("reason") or "")
    if reason in {"Evicted", "NodeLost", "Preempting", "Terminated", "Shutdown", "NodeShutdown"}:
        return reason
    return reason if status.get("phase") == "Failed" and reason and not started else ""


def _unschedulable(condition: Mapping[str, Any]) -> str:
    if condition.get("status") == "False" and condition.get("reason") == "Unschedulable":
        return _words(condition.get("message")) or "Unschedulable"
    return ""


def _words(text: object) -> str:
    return str(text or "")[:MAX_WORDS]
