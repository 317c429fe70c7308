"""What the end of a pod means for its unit and its job: pure judgement, by exit code and pod state.

fatal    the job has failed; only an edit cures it
counts   the unit starts again, against failurePolicy.maxRestarts
free     the unit starts again; the cause is elsewhere (node, eviction, a peer)
nothing  the unit goes on, or its end is as it should be
"""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

from trimtab.api.conditions import Reason
from trimtab.errors import ExitCode
from trimtab_operator.constants import COORDINATOR
from trimtab_operator.model.observed import NOT_PREPARED, Pod
from trimtab_operator.reconcile.clock import Clock
from trimtab_operator.reconcile.units import Survey, Unit, ended_well, has_ended

LEFT_GRACE_S = 30.0
"""In which the coordinator ends after it told its workers to leave; one that still runs then misses them."""
UNHEARD_S = 90.0
"""A coordinator that has given no sign of life for so long is taken to be away: longer than it takes to
notice that one is gone which a question was left with."""
OOM_KILLED = "OOMKilled"
NODE_GONE = frozenset({"ContainerStatusUnknown", "Unknown"})
"""The kubelet's word, and containerd's, for a container that was lost sight of, as when its node restarts."""
_IMAGE = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_CONTAINER = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"}
)
"""Waiting reasons that seldom cure themselves. (CrashLoopBackOff: of a sidecar that starts first.)"""
_STUCK = _IMAGE | _CONTAINER
PREPARED_WITHIN_S = 60.0
"""In which a node sets up a pod's volumes and network; one that takes longer lacks something."""
TAKEN_AWAY = frozenset(
    {
        *("EvictionByEvictionAPI", "PreemptionByScheduler", "DeletionByTaintManager", "DeletionByPodGC"),
        *("TerminationByKubelet", "DisruptionTarget", "Evicted", "NodeLost", "Preempting", "Terminated"),
        *("Shutdown", "NodeShutdown"),
    }
)
"""Reasons of a cluster that takes a pod away which a node had; others are the node's for not taking it."""
REJECTED_PAUSE_S = 10.0
"""Before a pod that its node did not take is made again: the next one is likely to meet the same node."""
MAX_LINES = 12
MAX_TEXT = 3000


class Severity(IntEnum):
    """How much an end matters: the gravest of a unit's pods decides."""

    FREE = 1
    COUNTS = 2
    CLUSTER = 3
    """The cluster took a pod away: free, and what becomes of the unit's other pods follows from it."""
    FATAL = 4


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is to be done about a unit."""

    severity: Severity
    reason: Reason
    text: str
    """Unit, pod, exit code and last lines, for the event and for the condition."""
    at: datetime
    """When it happened, as far as known: of several pods the first is the cause."""
    pause_s: float = 0.0
    """Before the unit starts again, where the end is free."""


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What a pod's end is judged by, beside itself."""

    clock: Clock
    units: Survey
    gang_waits: bool
    """Whether pods that the job cannot do without have no node."""
    registration_s: float
    heard: datetime | None
    """The coordinator's last sign of life; None: none since it was made, or since the operator was."""


def judge(unit: Unit, around: Circumstances) -> Verdict | None:
    """The verdict on a unit; None: nothing is to be done."""
    verdicts = list(_verdicts(unit, around))
    if not verdicts:
        return None
    return min(verdicts, key=lambda verdict: (-verdict.severity, verdict.at))


def _verdicts(unit: Unit, around: Circumstances) -> Iterator[Verdict]:
    if unit.state.seen and unit.missing:
        nodes = ", ".join(map(str, unit.missing))
        text = f"{unit.name}: the pod of node {nodes} was removed"
        yield Verdict(severity=Severity.CLUSTER, reason=Reason.POD_REPLACED, text=text, at=around.clock.now)
    for pod in unit.pods.values():
        if has_ended(pod):
            found = _of_end(unit, pod, around)
        elif pod.deleted is not None:
            found = _free(unit, pod, f"is being deleted{_because(pod)}", Severity.CLUSTER)
        else:
            found = None
        if found is not None:
            yield found


def _of_end(unit: Unit, pod: Pod, around: Circumstances) -> Verdict | None:
    if pod.exit_code in (ExitCode.USER_ERROR, ExitCode.JOB_FAILED):
        return _of_final_code(unit, pod, around)
    if pod.disruption or pod.exit_reason in NODE_GONE:
        if pod.exit_code is None and pod.disruption not in TAKEN_AWAY:
            what = f"was not taken by its node{_because(pod)}"
            return _free(unit, pod, what, Severity.CLUSTER, pause_s=REJECTED_PAUSE_S)
        return _free(unit, pod, f"was ended by the cluster{_because(pod)}", Severity.CLUSTER)
    if ended_well(pod):
        return _of_success(unit, pod, around)
    if pod.deleted is not None:
        return _free(unit, pod, describe_end(pod), Severity.CLUSTER)
    if pod.exit_code == ExitCode.RESTART_REQUESTED:
        return _free(unit, pod, describe_end(pod))
    if pod.exit_code == ExitCode.COORDINATOR_LOST and _coordinator_was_away(pod, around):
        return _free(unit, pod, describe_end(pod))
    if pod.exit_code == ExitCode.OUT_OF_MEMORY or pod.exit_reason == OOM_KILLED:
        return _verdict(Severity.COUNTS, Reason.OUT_OF_MEMORY, unit, pod)
    return _verdict(Severity.COUNTS, Reason.INTERNAL_ERROR, unit, pod)


def _of_final_code(unit: Unit, pod: Pod, around: Circumstances) -> Verdict:
    """The process gave the job up. A coordinator that waited for workers without a node is not to blame."""
    if unit.role == COORDINATOR and pod.exit_code == ExitCode.JOB_FAILED and waited_in_vain(pod, around):
        if around.gang_waits:
            return _free(unit, pod, describe_end(pod))
        return _verdict(Severity.COUNTS, Reason.DEADLINE_EXCEEDED, unit, pod)
    user = pod.exit_code == ExitCode.USER_ERROR
    return _verdict(Severity.FATAL, Reason.USER_ERROR if user else Reason.INTERNAL_ERROR, unit, pod)


def _of_success(unit: Unit, pod: Pod, around: Circumstances) -> Verdict | None:
    if unit.role == COORDINATOR:  # one with a final word was dealt with before
        text = f"{unit.name}: pod {pod.name} ended without a final word"
        return Verdict(severity=Severity.COUNTS, reason=Reason.INTERNAL_ERROR, text=text, at=_when(pod))
    if not around.clock.been(LEFT_GRACE_S, _when(pod)):
        return None
    return _free(unit, pod, "has left, and the coordinator goes on")


def _coordinator_was_away(pod: Pod, around: Circumstances) -> bool:
    """Whether there was none, another one, one that had just begun, or one that the operator did not hear."""
    coordinator, heard = around.units.coordinator, around.heard
    long_ago = _when(pod) - timedelta(seconds=UNHEARD_S)
    return (
        not coordinator.is_up
        or any(
            other.created > pod.created or other.started is None or other.started > long_ago
            for other in coordinator.pods.values()
        )
        or heard is None
        or heard < long_ago
    )


def waited_in_vain(pod: Pod, around: Circumstances) -> bool:
    """Whether workers had no node, or less time to register than is theirs, when the coordinator ended."""
    end = _when(pod)
    return around.gang_waits or any(
        worker.started is None or (end - worker.started).total_seconds() < around.registration_s
        for unit in around.units.wanted
        if unit.role != COORDINATOR
        for worker in unit.pods.values()
    )


def _free(
    unit: Unit, pod: Pod, what: str, severity: Severity = Severity.FREE, *, pause_s: float = 0.0
) -> Verdict:
    text = f"{unit.name}: pod {pod.name} {what}"
    return Verdict(severity=severity, reason=Reason.POD_REPLACED, text=text, at=_when(pod), pause_s=pause_s)


def _verdict(severity: Severity, reason: Reason, unit: Unit, pod: Pod) -> Verdict:
    text = f"{unit.name}: pod {pod.name} {describe_end(pod)}"
    return Verdict(severity=severity, reason=reason, text=text, at=_when(pod))


def _when(pod: Pod) -> datetime:
    return pod.finished or pod.created


def _because(pod: Pod) -> str:
    reason = pod.disruption or (pod.exit_reason if pod.exit_reason in NODE_GONE else "")
    return f" ({reason})" if reason else ""


def describe_end(pod: Pod, message: str | None = None) -> str:
    """How a pod ended, in words: `exited with code 66 (out of memory): ...`, with its last lines."""
    text = _describe_code(pod)
    lines = [line.rstrip() for line in (pod.exit_message if message is None else message).splitlines()]
    last = "\n".join([line for line in lines if line][-MAX_LINES:])[-MAX_TEXT:]
    return f"{text}: {last}" if last else text


def _describe_code(pod: Pod) -> str:
    code = pod.exit_code
    if code is None:
        return "ended" if pod.phase == "Succeeded" else "failed before its container ran"
    if pod.exit_reason == OOM_KILLED:
        return f"was ended for want of memory ({OOM_KILLED}, code {code}): raise its memory limit"
    if code > 128 and code - 128 in set(signal.Signals):
        return f"was ended by {signal.Signals(code - 128).name} (code {code})"
    if code in set(ExitCode):
        return f"exited with code {code} ({ExitCode(code).name.lower().replace('_', ' ')})"
    return f"exited with code {code}"


def stuck_pod(unit: Unit, clock: Clock) -> Pod | None:
    """A pod of the unit whose container cannot be started."""
    pods = unit.pods.values()
    return next((pod for pod in pods if pod.waiting_reason in _STUCK or _is_unprepared(pod, clock)), None)


def _is_unprepared(pod: Pod, clock: Clock) -> bool:
    """Whether its node takes longer than usual to set up its volumes and network."""
    since = pod.started or pod.created
    return pod.waiting_reason == NOT_PREPARED and clock.been(PREPARED_WITHIN_S, since)


def stuck_reason(pod: Pod) -> Reason:
    """Why it cannot: its image or something else."""
    return Reason.IMAGE_PULL if pod.waiting_reason in _IMAGE else Reason.CANNOT_START
