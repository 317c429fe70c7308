"""Condition types, reasons and phases of a job, each with the sentence that the docs show.

The coordinator, the launcher and the operator write these names and no others; `docs/` tables are made
from the texts. `phase` is derived from the conditions, for printing.
"""

from enum import StrEnum


class _Named(StrEnum):
    """A name with the sentence that explains it."""

    text: str

    def __new__(cls, value: str, text: str) -> "_Named":
        """A member whose value is the name and whose `text` is its sentence."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.text = text
        return member


class ConditionType(_Named):
    """Types of `status.conditions`."""

    VALIDATED = "Validated", "The spec was accepted; False names the field and what would be right."
    ADMITTED = "Admitted", "Quota and gang scheduling let the job in."
    WORKERS_READY = "WorkersReady", "Every required worker is registered with the coordinator."
    RUNNING = "Running", "Steps are being taken."
    DEGRADED = "Degraded", "Running with fewer rollout or reward replicas than minReplicas."
    METRICS_HEALTHY = "MetricsHealthy", "False when a metric is not finite; it is left out of the status."
    SUSPENDED = "Suspended", "Stopped on request or preempted, with a checkpoint written."
    COMPLETE = "Complete", "Finished: all steps are done."
    FAILED = "Failed", "Given up; the message names the role, the pod, the exit code and the last log line."


class Phase(_Named):
    """`status.phase`."""

    PENDING = "Pending", "Accepted; pods are being made or wait for a node."
    INVALID = "Invalid", "The spec was refused; an edit cures it."
    STARTING = "Starting", "Pods run; workers register and load their models."
    RUNNING = "Running", "Steps are being taken."
    RECOVERING = "Recovering", "A unit is started again, from the last checkpoint where it is the actor."
    SUSPENDING = "Suspending", "A checkpoint is being written before the pods go."
    STOPPING = "Stopping", "The running step ends and a checkpoint is written."
    SUSPENDED = "Suspended", "Held by spec.suspend; no pods."
    STOPPED = "Stopped", "Ended on request with a checkpoint."
    COMPLETE = "Complete", "All steps are done."
    FAILED = "Failed", "Given up."


class Reason(_Named):
    """Reasons of conditions and events."""

    # Validated
    ACCEPTED = "Accepted", "The spec is valid and was resolved."
    INVALID_SPEC = "InvalidSpec", "A field is wrong; the message names it, the value and what is allowed."
    INVALID_EDIT = "InvalidEdit", "An edit is not taken up; the job runs on as it was resolved before."
    STORAGE_NOT_SHARED = (
        "StorageNotShared",
        "Several pods must write the checkpoint volume, and it allows one node only.",
    )
    # Admitted
    NO_QUEUE = "NoQueue", "No queue is asked for: the job is let in at once."
    WAITING_FOR_QUOTA = "WaitingForQuota", "A quota or admission webhook does not let the pods in yet."
    # WorkersReady
    ALL_REGISTERED = "AllRegistered", "Every worker is registered."
    WAITING_FOR_WORKERS = "WaitingForWorkers", "The message names who is missing."
    PODS_PENDING = "PodsPending", "Pods are being made, or their containers are not started yet."
    UNSCHEDULABLE = "Unschedulable", "Pods find no node; the message has the scheduler's words."
    IMAGE_PULL = "ImagePull", "An image cannot be pulled; the message names it."
    CANNOT_START = (
        "CannotStart",
        "A container cannot be started for another reason; the message has the kubelet's words.",
    )
    PENDING_DEADLINE = (
        "PendingDeadline",
        "Not all pods found a node within spec.pendingDeadlineSeconds; all are released and tried again.",
    )
    # Running
    TAKING_STEPS = "TakingSteps", "The coordinator takes steps."
    NOT_STARTED = "NotStarted", "No step has been begun in this start of the job."
    ACTOR_LOST = "ActorLost", "The actor is started again from the last checkpoint."
    COORDINATOR_LOST = "CoordinatorLost", "The coordinator is started again; it takes up its journal."
    REPLICA_LOST = "ReplicaLost", "A rollout or reward replica is replaced while training goes on."
    STOP_REQUESTED = "StopRequested", "Asked to stop."
    # Degraded
    BELOW_MIN_REPLICAS = "BelowMinReplicas", "Fewer replicas than minReplicas; the message has the numbers."
    ENOUGH_REPLICAS = "EnoughReplicas", "At least minReplicas of each role are there."
    # MetricsHealthy
    ALL_FINITE = "AllFinite", "Every metric is a finite number."
    NOT_FINITE = "NotFinite", "The message names the metrics that are not finite."
    # Suspended
    SUSPEND_REQUESTED = "SuspendRequested", "spec.suspend is true."
    RESUMED = "Resumed", "spec.suspend is false again."
    NOT_SUSPENDED = "NotSuspended", "spec.suspend is false."
    # Complete and Failed
    NOT_FINISHED = "NotFinished", "The job has not ended."
    STEPS_DONE = "StepsDone", "All steps are done."
    USER_ERROR = "UserError", "A mistake that only an edit cures (exit code 64)."
    OUT_OF_MEMORY = "OutOfMemory", "A device or the pod ran out of memory; the message names the setting."
    INTERNAL_ERROR = "InternalError", "A process failed for a reason of its own."
    RESTARTS_EXHAUSTED = "RestartsExhausted", "failurePolicy.maxRestarts restarts brought no progress."
    DEADLINE_EXCEEDED = "DeadlineExceeded", "A deadline of the job passed; the message names it."
    # Events alone
    PODS_CREATED = "PodsCreated", "The pods of a start of the job were created."
    POD_FAILED = "PodFailed", "A pod ended with an error; the message has the exit code and the last line."
    POD_REPLACED = "PodReplaced", "A pod is replaced; the message says why."
    POD_FORCED = "PodForced", "A pod on a dead node was deleted by force."
    SCALED = "Scaled", "The number of rollout replicas was changed."
    OBJECT_NOT_MADE = (
        "ObjectNotMade",
        "An object that the job needs was refused, or its name is taken; the message says which.",
    )
    CLEANED_UP = "CleanedUp", "Pods or the job were removed after its end."
