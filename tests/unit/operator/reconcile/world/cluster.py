"""The truth: one job and its pods, in every state that they were in, with scheduler, kubelets and nodes."""

import itertools
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tests.unit.operator.reconcile.world.accounts import Accounts
from tests.unit.operator.reconcile.world.job import SPEC, START, changed

from trimtab.api.conditions import ConditionType
from trimtab.api.status import JobStatus
from trimtab.errors import ExitCode
from trimtab_operator.model.actions import ACT_WITHIN_S, CreatePod
from trimtab_operator.model.observed import BY_TAINT, Job, Pod
from trimtab_operator.model.plan import PodPlan
from trimtab_operator.model.resolved import Resolved
from trimtab_operator.reconcile.units import EXCLUSIVE, has_ended

GRACE_S = {"coordinator": 30, "actor": 600, "rollout": 30, "reward": 30}


def clashes(plan: PodPlan, pod: Pod) -> bool:
    """Whether both would write: another incarnation of a unit of which there must be one."""
    same = (pod.role, pod.replica) == (plan.role, plan.replica) and plan.role in EXCLUSIVE
    return same and (pod.attempt, pod.incarnation) != (plan.attempt, plan.incarnation)


class ConflictError(Exception):
    """409 of the API server."""


@dataclass(frozen=True)
class Change:
    """One event of a watch; its place in the log is its version."""

    uid: str
    pod: Pod | None
    """None: it is gone."""


class Cluster:
    """API server, scheduler, kubelets. What the processes in the pods do is a subclass's."""

    def __init__(self, *, uid: str = "job-1", **changes: Any) -> None:
        self.now = START
        self._versions = itertools.count(100)
        self._pod_uids = itertools.count(1)
        self.job: Job | None = Job(
            namespace="team-a",
            name="sums",
            uid=uid,
            generation=1,
            resource_version="1",
            created=START,
            spec=changed(SPEC, **changes),
        )
        self.pods: dict[str, Pod] = {}
        self.config_maps: dict[str, Resolved] = {}
        self.claims: dict[str, tuple[str, ...]] = {}
        self.accounts = Accounts()
        self.dead: set[str] = set()
        self.capacity = 100
        self.quota = 100
        self.broken_image: set[str] = set()
        """Roles whose image cannot be pulled."""
        self.leave_s = 0
        """How long a process takes to end when it is told to."""
        self._told: dict[str, datetime] = {}
        self.crashes = 0
        """Failures that count."""
        self.job_log: list[Job | None] = [self.job]
        self.pod_log: list[Change] = []
        self.promised: list[tuple[CreatePod, float]] = []
        """Creates that operators decided on and have not carried out, with the time of the decision."""

    # -- the API server -------------------------------------------------------------------------------

    def _change_job(self, **fields: Any) -> None:
        assert self.job is not None
        self.job = replace(self.job, resource_version=str(next(self._versions)), **fields)
        self.job_log.append(self.job)

    def edit(self, **changes: Any) -> None:
        """A user changes the spec."""
        assert self.job is not None
        spec = changed(self.job.spec, **changes)
        if spec != self.job.spec:
            self._change_job(spec=spec, generation=self.job.generation + 1)

    def delete_job(self) -> None:
        """The job goes, and its pods with it."""
        self.job = None
        self.job_log.append(None)
        for pod in list(self.pods.values()):
            self._gone(pod)

    def put_status(self, job: Job, status: JobStatus) -> Job:
        """Replace the status, as JSON says it."""
        if self.job is None or self.job.uid != job.uid:
            raise ConflictError("the job is gone")
        if self.job.resource_version != job.resource_version:
            raise ConflictError("the object has been modified")
        written = JobStatus.model_validate_json(status.model_dump_json(by_alias=True, exclude_none=True))
        assert written == status, "the status does not survive the API server"
        self.accounts.write(self.job.status, written, has_pods=bool(self.pods))
        self._change_job(status=written)
        return self.job

    def creates_under_way(self) -> list[CreatePod]:
        """Creates that may still be carried out by whoever decided on them."""
        time_s = self.now.timestamp()
        self.promised = [item for item in self.promised if time_s - item[1] <= ACT_WITHIN_S]
        return [create for create, _ in self.promised]

    def create_pod(self, plan: PodPlan) -> str:
        """POST; `created`, `exists` or `refused`."""
        if self.job is None:
            return "refused"
        if plan.name in self.pods:
            return "exists"
        if len(self.pods) >= self.quota:
            return "refused"
        self.accounts.create(plan, self.job.status)
        beside = [pod for pod in self.pods.values() if not has_ended(pod) and clashes(plan, pod)]
        assert not beside, f"{plan.name} is created beside {beside}"
        self._put(
            Pod(
                name=plan.name,
                uid=f"pod-{next(self._pod_uids)}",
                role=plan.role,
                replica=plan.replica,
                node=plan.node,
                incarnation=plan.incarnation,
                attempt=plan.attempt,
                phase="Pending",
                created=self.now,
            )
        )
        return "created"

    def delete_pod(self, name: str, uid: str, grace_s: int | None = None) -> None:
        """DELETE with a precondition."""
        pod = self.pods.get(name)
        if pod is None or pod.uid != uid:
            return
        if grace_s == 0 or (not pod.node_name and pod.deleted is None):
            self._gone(pod)
        else:
            until = self.now + timedelta(seconds=GRACE_S[pod.role] if grace_s is None else grace_s)
            if pod.deleted is None or until < pod.deleted:
                self._put(replace(pod, deleted=until))

    def evict(self, pod: Pod) -> None:
        """Somebody drains the node."""
        self.accounts.causes += 1
        self._put(replace(pod, disruption="EvictionByEvictionAPI"))
        self.delete_pod(pod.name, pod.uid)
        if pod.name not in self.pods:
            self.accounts.removed_by_others.add(pod.name)

    def remove(self, pod: Pod) -> None:
        """Somebody deletes a pod by force."""
        self.accounts.causes += 1
        self.accounts.removed_by_others.add(pod.name)
        self._gone(pod)

    def _put(self, pod: Pod) -> None:
        self.pods[pod.name] = pod
        self.pod_log.append(Change(pod.uid, pod))

    def _gone(self, pod: Pod) -> None:
        del self.pods[pod.name]
        self.pod_log.append(Change(pod.uid, None))

    # -- nodes and kubelets ---------------------------------------------------------------------------

    def runs(self, pod: Pod) -> bool:
        """Whether its process is there."""
        return pod.phase == "Running" and pod.exit_code is None and pod.node_name not in self.dead

    def running(self, role: str | None = None) -> list[Pod]:
        """Pods whose processes are there."""
        return [pod for pod in self.pods.values() if self.runs(pod) and role in (None, pod.role)]

    def end(self, pod: Pod, code: int, *, reason: str = "", message: str = "") -> None:
        """Its main process ends, and nobody else is to blame."""
        if code == ExitCode.RESTART_REQUESTED or (code == 0 and pod.role != "coordinator"):
            self.accounts.causes += 1
        else:
            self.accounts.failed()
        self._end(pod, code, reason=reason, message=message)

    def report(self, pod: Pod, **fields: Any) -> None:
        """The kubelet says something about a pod that may cost its unit a restart."""
        self.accounts.causes += 1
        self._put(replace(pod, **fields))

    def _end(self, pod: Pod, code: int, *, reason: str = "", message: str = "") -> None:
        pod = self.pods[pod.name]
        self._put(
            replace(
                pod,
                phase="Succeeded" if code == 0 else "Failed",
                exit_code=code,
                exit_reason=reason or ("Completed" if code == 0 else "Error"),
                exit_message=message,
                finished=self.now,
            )
        )

    def crash(self, pod: Pod, code: int = 1, *, reason: str = "") -> None:
        """It fails by itself: this counts, unless it asks to be started again."""
        self.crashes += code != ExitCode.RESTART_REQUESTED
        self.end(pod, code, reason=reason, message="Traceback ...\nerror: it broke")

    def stop_node(self, node: str) -> None:
        """A node dies; what ran there is as good as gone, and nobody says so yet."""
        self.accounts.causes += sum(pod.node_name == node for pod in self.pods.values())
        self.dead.add(node)

    def start_node(self, node: str) -> None:
        """It comes back: the containers are gone, and their pods are reported as failed."""
        self.dead.discard(node)
        for pod in [pod for pod in self.pods.values() if pod.node_name == node and not has_ended(pod)]:
            self.accounts.causes += 1
            self._end(pod, 137, reason="ContainerStatusUnknown")

    def taint_dead_nodes(self) -> None:
        """The node controller deletes the pods of dead nodes; nobody there ends them."""
        for pod in list(self.pods.values()):
            if pod.node_name in self.dead and not has_ended(pod) and pod.deleted is None:
                self.accounts.causes += 1
                self._put(replace(pod, disruption=BY_TAINT, ready=False))
                self.delete_pod(pod.name, pod.uid)

    def _kubelets(self) -> None:
        """Scheduler and kubelets do a bit."""
        for pod in list(self.pods.values()):
            if pod.deleted is not None and pod.node_name not in self.dead:
                self._terminate(pod)
            elif not pod.node_name:
                self._place(pod)
            elif pod.phase == "Pending" and pod.node_name not in self.dead:
                self._start(pod)

    def _place(self, pod: Pod) -> None:
        taken = sum(bool(other.node_name) and not has_ended(other) for other in self.pods.values())
        if taken < self.capacity:
            nodes = [node for node in ("n1", "n2", "n3") if node not in self.dead]
            self._put(replace(pod, node_name=nodes[pod.node % len(nodes)], unschedulable=""))
        elif not pod.unschedulable:
            self._put(replace(pod, unschedulable="0/3 nodes are available: 3 Insufficient cpu."))

    def _start(self, pod: Pod) -> None:
        if all(resolved.attempt != pod.attempt for resolved in self.config_maps.values()):
            return  # it waits for the ConfigMap that it mounts
        if pod.role in self.broken_image:
            stuck = replace(
                pod,
                waiting_reason="ErrImagePull",
                waiting_message="not found",
                started=pod.started or self.now,
            )
            if stuck != pod:
                self._put(stuck)
            return
        fine = {"waiting_reason": "", "waiting_message": "", "ready": True}
        self._put(replace(pod, phase="Running", started=self.now, **fine))

    def _terminate(self, pod: Pod) -> None:
        """SIGTERM: the process leaves, and the pod is gone with the next tick."""
        if has_ended(pod) or pod.phase == "Pending":
            self._gone(pod)
            if pod.disruption:
                self.accounts.removed_by_others.add(pod.name)
            return
        told = self._told.setdefault(pod.uid, self.now)
        if (self.now - told).total_seconds() < self.leave_s:
            return
        self._before_leaving(pod)
        self._end(pod, 0 if pod.role in ("rollout", "reward") else ExitCode.RESTART_REQUESTED)

    def _before_leaving(self, pod: Pod) -> None:
        """What a process does when it is told to leave."""

    # -- what always holds ----------------------------------------------------------------------------

    def check(self) -> None:
        """Never two coordinators at once, and never ranks of two actors."""
        coordinators = self.running("coordinator")
        assert len(coordinators) <= 1, f"two coordinators: {[pod.name for pod in coordinators]}"
        actors = self.running("actor")
        assert len({(pod.attempt, pod.incarnation) for pod in actors}) <= 1, f"two actors: {actors}"

    def condition(self, kind: ConditionType) -> tuple[str, str]:
        """Status and reason."""
        assert self.job is not None
        found = next(c for c in self.job.status.conditions if c.type == kind)
        return found.status, found.reason
