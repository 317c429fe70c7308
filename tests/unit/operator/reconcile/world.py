"""A small model of a cluster around one job: API server, nodes, kubelets, the training, and operators.

`World` keeps the truth and every snapshot of it that an operator's cache may still show. Names, uids,
resourceVersions, conflicts, delete preconditions and graceful deletion are as in Kubernetes. `Training` is
what the job's processes do: a coordinator that registers workers, steps, checkpoints and says its final
word, with its journal and checkpoints on shared storage. `Operator` is the adapter: caches that may be
stale, a poll of the coordinator, the status written first, then one action after the other, each of which
may be late, lost or cut short.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from trimtab.api.conditions import ConditionType
from trimtab.api.status import JobStatus
from trimtab.errors import ExitCode
from trimtab_operator.model.actions import (
    ACT_WITHIN_S,
    Action,
    CreatePod,
    CreateResolved,
    Decision,
    DeleteJob,
    DeletePod,
    EnsureChildren,
    Event,
    Resize,
    StopTraining,
)
from trimtab_operator.model.observed import Job, Observed, Pod, Progress, RestartWish
from trimtab_operator.model.plan import PodPlan
from trimtab_operator.model.resolved import Resolved, Settings
from trimtab_operator.reconcile import reconcile
from trimtab_operator.reconcile.finishing import is_finished
from trimtab_operator.reconcile.units import has_ended

START = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
SAID: set[tuple[str, str, str, str]] = set()
"""Phase, condition, its status and its reason, of every status that was written."""
UIDS = itertools.count(1)
SPEC: dict[str, Any] = {
    "model": {"path": "/models/tiny"},
    "data": {"train": {"path": "/data/train.jsonl"}},
    "algorithm": {"grpo": {"groupSize": 8, "kl": {"coefficient": 0.0}}},
    "training": {"steps": 25, "promptsPerStep": 16},
    "rewards": [{"function": "exact_match"}],
    "storage": {"claim": {"size": "10Gi"}},
    "roles": {"actor": {"nodes": 2}, "rollout": {"replicas": 2, "minReplicas": 1}},
}
SETTINGS = Settings.model_validate(
    {
        "roles": {
            role: {"image": f"registry.test/{image}:1"}
            for role, image in (
                ("coordinator", "control"),
                ("actor", "worker"),
                ("rollout", "worker"),
                ("reward", "control"),
            )
        }
    }
)
GRACE_S = {"coordinator": 30, "actor": 600, "rollout": 30, "reward": 30}
LOST_AFTER_S = 15
GIVE_UP_S = 120
"""After which a worker without a coordinator ends."""


class ConflictError(Exception):
    """409 of the API server."""


@dataclass
class Words:
    """What a coordinator's process knows and nobody else."""

    stop_since: datetime | None = None
    grace_s: float = 0.0
    registered: dict[tuple[str, int], int] = field(default_factory=dict)
    """Incarnation by place."""
    gone: dict[tuple[str, int], tuple[int, datetime]] = field(default_factory=dict)
    actor: int | None = None
    """Incarnation of the actor that it works with."""
    waits_since: datetime | None = None
    sizes: Resize | None = None
    phase: str = "Starting"
    final: Progress | None = None


@dataclass
class Training:
    """What is on the shared storage."""

    step: int = 0
    checkpoint: int = -1
    attempt: int = 0
    complete: bool = False


@dataclass(frozen=True)
class Snapshot:
    """What a watch has delivered up to some time."""

    job: Job | None
    pods: tuple[Pod, ...]


class World:
    """The truth."""

    def __init__(self, **changes: Any) -> None:
        self.now = START
        self._versions = itertools.count(100)
        number = next(UIDS)
        self._pod_uids = itertools.count(1)
        self.job: Job | None = Job(
            namespace="team-a",
            name="sums",
            uid=f"job-{number}",
            generation=1,
            resource_version="1",
            created=START,
            spec=changed(SPEC, **changes),
        )
        self.pods: dict[str, Pod] = {}
        self.words: dict[str, Words] = {}
        self.config_maps: dict[str, Resolved] = {}
        self.claims: dict[str, tuple[str, ...]] = {}
        self.training = Training()
        self.dead: set[str] = set()
        self.capacity = 100
        self.quota = 100
        self.broken_image: set[str] = set()
        """Roles whose image cannot be pulled."""
        self.silent = False
        """Whether no coordinator can be reached."""
        self.metrics: dict[str, float] = {"critic/rewards/mean": 0.5, "actor/entropy": 1.0}
        """Of every step."""
        self.hangs = False
        """Whether steps are begun and none is done."""
        self.created: dict[str, int] = {}
        """How often a pod of a name came into being."""
        self.removed_by_others: set[str] = set()
        self.crashes = 0
        """Failures that count."""
        self.history: list[Snapshot] = []
        self._remember()

    # -- the API server -------------------------------------------------------------------------------

    def _remember(self) -> None:
        snapshot = Snapshot(self.job, tuple(self.pods.values()))
        if not self.history or self.history[-1] != snapshot:
            self.history.append(snapshot)
        del self.history[:-30]

    def _change_job(self, **fields: Any) -> None:
        assert self.job is not None
        self.job = replace(self.job, resource_version=str(next(self._versions)), **fields)
        self._remember()

    def edit(self, **changes: Any) -> None:
        """A user changes the spec."""
        assert self.job is not None
        spec = changed(self.job.spec, **changes)
        if spec != self.job.spec:
            self._change_job(spec=spec, generation=self.job.generation + 1)

    def put_status(self, job: Job, status: JobStatus) -> Job:
        """Replace the status, as JSON says it."""
        if self.job is None or self.job.uid != job.uid:
            raise ConflictError("the job is gone")
        if self.job.resource_version != job.resource_version:
            raise ConflictError("the object has been modified")
        written = JobStatus.model_validate_json(status.model_dump_json(by_alias=True, exclude_none=True))
        assert written == status, "the status does not survive the API server"
        SAID.update((status.phase, c.type, c.status, c.reason) for c in status.conditions)
        self._change_job(status=written)
        return self.job

    def create_pod(self, plan: PodPlan) -> str:
        """POST; `created`, `exists` or `refused`."""
        if plan.name in self.pods:
            return "exists"
        if len(self.pods) >= self.quota:
            return "refused"
        again = self.created.get(plan.name, 0)
        assert not again or plan.name in self.removed_by_others, f"{plan.name} was created twice"
        self.created[plan.name] = again + 1
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
        elif pod.deleted is None:
            self._put(replace(pod, deleted=self.now + timedelta(seconds=GRACE_S[pod.role])))

    def evict(self, pod: Pod) -> None:
        """Somebody drains the node."""
        self._put(replace(pod, disruption="EvictionByEvictionAPI"))
        self.delete_pod(pod.name, pod.uid)
        if pod.name not in self.pods:
            self.removed_by_others.add(pod.name)

    def remove(self, pod: Pod) -> None:
        """Somebody deletes a pod by force."""
        self.removed_by_others.add(pod.name)
        self._gone(pod)

    def _put(self, pod: Pod) -> None:
        self.pods[pod.name] = pod
        self._remember()

    def _gone(self, pod: Pod) -> None:
        del self.pods[pod.name]
        self.words.pop(pod.uid, None)
        self._remember()

    # -- nodes and kubelets ---------------------------------------------------------------------------

    def runs(self, pod: Pod) -> bool:
        """Whether its process is there."""
        return pod.phase == "Running" and pod.exit_code is None and pod.node_name not in self.dead

    def running(self, role: str | None = None) -> list[Pod]:
        """Pods whose processes are there."""
        return [pod for pod in self.pods.values() if self.runs(pod) and role in (None, pod.role)]

    def end(self, pod: Pod, code: int, *, reason: str = "", message: str = "") -> None:
        """Its main process ends."""
        pod = self.pods[pod.name]
        phase = "Succeeded" if code == 0 else "Failed"
        self._put(
            replace(
                pod,
                phase=phase,
                exit_code=code,
                exit_reason=reason or ("Completed" if code == 0 else "Error"),
                exit_message=message,
                finished=self.now,
            )
        )

    def crash(self, pod: Pod, code: int = 1, *, reason: str = "") -> None:
        """A failure that counts."""
        self.crashes += 1
        self.end(pod, code, reason=reason, message="Traceback ...\nerror: it broke")

    def stop_node(self, node: str) -> None:
        """A node dies; what ran there is as good as gone, and nobody says so yet."""
        self.dead.add(node)

    def start_node(self, node: str) -> None:
        """It comes back: the containers are gone, and their pods are reported as failed."""
        self.dead.discard(node)
        for pod in [pod for pod in self.pods.values() if pod.node_name == node and not has_ended(pod)]:
            self.end(pod, 137, reason="ContainerStatusUnknown")

    def taint_dead_nodes(self) -> None:
        """The node controller deletes the pods of dead nodes; nobody there ends them."""
        for pod in list(self.pods.values()):
            if pod.node_name in self.dead and not has_ended(pod) and pod.deleted is None:
                self._put(replace(pod, disruption="DeletionByTaintManager"))
                self.delete_pod(pod.name, pod.uid)

    def tick(self, seconds: int = 5) -> None:
        """Time goes by, and everybody does a bit."""
        self.now += timedelta(seconds=seconds)
        for pod in list(self.pods.values()):
            self._kubelet(pod)
        for pod in self.running("coordinator"):
            self._coordinate(pod)
        self._workers()
        self.check()

    def _kubelet(self, pod: Pod) -> None:
        if pod.deleted is not None and pod.node_name not in self.dead:
            self._terminate(pod)
        elif not pod.node_name:
            free = sum(bool(p.node_name) and not has_ended(p) for p in self.pods.values()) < self.capacity
            if free:
                nodes = [node for node in ("n1", "n2", "n3") if node not in self.dead]
                self._put(replace(pod, node_name=nodes[pod.node % len(nodes)], unschedulable=""))
            elif not pod.unschedulable:
                self._put(replace(pod, unschedulable="0/3 nodes are available: 3 Insufficient cpu."))
        elif pod.phase == "Pending" and pod.node_name not in self.dead:
            if pod.role in self.broken_image:
                self._put(
                    replace(pod, waiting_reason="ErrImagePull", waiting_message="not found", started=self.now)
                )
            else:
                self._put(
                    replace(
                        pod,
                        phase="Running",
                        ready=True,
                        started=self.now,
                        waiting_reason="",
                        waiting_message="",
                    )
                )

    def _terminate(self, pod: Pod) -> None:
        """SIGTERM: the process leaves at once, and the pod is gone with the next tick."""
        if has_ended(pod) or pod.phase == "Pending":
            self._gone(pod)
            if pod.disruption:
                self.removed_by_others.add(pod.name)
            return
        if pod.role == "actor":
            self.training.checkpoint = max(self.training.checkpoint, self.training.step)
        self.end(pod, 0 if pod.role in ("rollout", "reward") else ExitCode.RESTART_REQUESTED)

    # -- the training ---------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        assert self.job is not None
        return int(self.job.spec["training"]["steps"])

    def _coordinate(self, pod: Pod) -> None:
        words = self.words.setdefault(pod.uid, Words())
        if self.training.attempt > pod.attempt:
            self.end(pod, ExitCode.REFUSED)
            return
        if self.training.attempt < pod.attempt:
            self.training.attempt = pod.attempt
            self.training.step = max(self.training.checkpoint, 0)
        if self.training.complete:
            self._final(pod, words, "Complete")
            return
        self._register(pod, words)
        ready = self._is_ready(pod, words)
        if words.stop_since is not None:
            self._stop(pod, words, ready)
        elif ready:
            words.phase, words.waits_since = "Running", None
            self._step(pod, words)
        else:
            words.phase = "Recovering" if words.actor is not None else "Starting"
            words.waits_since = words.waits_since or self.now
            if (self.now - words.waits_since).total_seconds() > 900:
                text = "waited 900 s for workers"
                self._final(
                    pod, words, "Failed", code=ExitCode.JOB_FAILED, reason="DeadlineExceeded", message=text
                )

    def _register(self, pod: Pod, words: Words) -> None:
        here: dict[tuple[str, int], int] = {}
        for worker in self.running():
            if worker.role == "coordinator" or worker.attempt != pod.attempt:
                continue
            place = (worker.role, worker.replica)
            here[place] = max(here.get(place, 0), worker.incarnation)
        for place, incarnation in words.registered.items():
            if place not in here and place not in words.gone:
                words.gone[place] = (incarnation, self.now)
        for place, incarnation in here.items():
            if place in words.gone and incarnation > words.gone[place][0]:
                del words.gone[place]
            words.registered[place] = max(incarnation, words.registered.get(place, 0))
        words.registered = {place: n for place, n in words.registered.items() if place in here}

    def sizes(self, pod: Pod) -> Resize:
        """Replicas that the coordinator works with."""
        words = self.words.get(pod.uid)
        if words is not None and words.sizes is not None:
            return words.sizes
        (resolved,) = [r for r in self.config_maps.values() if r.attempt == pod.attempt]
        roles = resolved.resolved_job.job.spec.roles
        return Resize(
            rollout_replicas=roles.rollout.replicas,
            min_rollout_replicas=roles.rollout.min_replicas,
            reward_replicas=roles.reward.replicas,
            min_reward_replicas=roles.reward.min_replicas,
        )

    def _is_ready(self, pod: Pod, words: Words) -> bool:
        assert self.job is not None
        sizes = self.sizes(pod)
        ranks = [w for w in self.running("actor") if w.attempt == pod.attempt]
        newest = max((rank.incarnation for rank in ranks), default=0)
        nodes = {rank.node for rank in ranks if rank.incarnation == newest}
        whole = len(nodes) == self.job.spec["roles"]["actor"]["nodes"]
        if words.actor is not None and (newest != words.actor or not whole):
            self.training.step = min(self.training.step, max(self.training.checkpoint, 0))
            for rank in ranks:
                if rank.incarnation <= words.actor:
                    self.end(rank, ExitCode.RESTART_REQUESTED)
            if newest == words.actor:
                words.registered.pop(("actor", 0), None)
                words.gone.setdefault(("actor", 0), (words.actor, self.now))
            words.actor = None
            return False
        if whole:
            words.actor = newest
        counts = {role: sum(place[0] == role for place in words.registered) for role in ("rollout", "reward")}
        return whole and (
            counts["rollout"] >= sizes.min_rollout_replicas and counts["reward"] >= sizes.min_reward_replicas
        )

    def _step(self, pod: Pod, words: Words) -> None:
        self.training.step += not self.hangs
        if self.training.step % 3 == 0:
            self.training.checkpoint = self.training.step
        if self.training.step >= self.total:
            self.training.checkpoint = self.training.step
            self.training.complete = True
            self._goodbye(pod)
            self._final(pod, words, "Complete")

    def _stop(self, pod: Pod, words: Words, ready: bool) -> None:
        assert words.stop_since is not None
        words.phase = "Stopping"
        if ready:
            self.training.checkpoint = self.training.step
        if ready or (self.now - words.stop_since).total_seconds() >= words.grace_s:
            self._goodbye(pod)
            self._final(pod, words, "Stopped", reason="StopRequested")

    def _goodbye(self, pod: Pod) -> None:
        for worker in self.running():
            if worker.role != "coordinator" and worker.attempt == pod.attempt:
                self.end(worker, 0)

    def _final(
        self,
        pod: Pod,
        words: Words,
        phase: str,
        *,
        code: int = 0,
        reason: str = "StepsDone",
        message: str = "",
    ) -> None:
        words.phase = phase
        words.final = replace(self.progress(pod, self.now), final=True, reason=reason, message=message)
        self.end(pod, code)

    def _workers(self) -> None:
        """A worker that finds no coordinator for too long gives up."""
        if self.running("coordinator"):
            self._with_coordinator = self.now
        alone = (self.now - getattr(self, "_with_coordinator", START)).total_seconds()
        for pod in self.running():
            age = 0.0 if pod.started is None else (self.now - pod.started).total_seconds()
            if pod.role != "coordinator" and min(alone, age) > GIVE_UP_S:
                self.end(pod, ExitCode.COORDINATOR_LOST)

    def progress(self, pod: Pod, now: datetime) -> Progress:
        """What GetStatus of the coordinator in this pod answers."""
        words = self.words.setdefault(pod.uid, Words())
        sizes = self.sizes(pod)
        nodes = self.job.spec["roles"]["actor"]["nodes"] if self.job is not None else 1
        ready = {
            role: sum(place[0] == role for place in words.registered)
            for role in ("actor", "rollout", "reward")
        }
        ready["actor"] = nodes if words.actor is not None else 0
        desired = {"actor": nodes, "rollout": sizes.rollout_replicas, "reward": sizes.reward_replicas}
        lost = [(p, n) for p, (n, at) in words.gone.items() if (now - at).total_seconds() > LOST_AFTER_S]
        return Progress(
            attempt=pod.attempt,
            incarnation=pod.incarnation,
            phase=words.phase,
            activity=f"doing step {self.training.step + 1}",
            step=self.training.step,
            total_steps=self.total,
            epoch=self.training.step / 10,
            metrics=self.metrics if self.training.step else {},
            ready=ready,
            desired=desired,
            minimum={
                "actor": nodes,
                "rollout": sizes.min_rollout_replicas,
                "reward": sizes.min_reward_replicas,
            },
            missing=", ".join(role for role in desired if ready[role] < desired[role]),
            checkpoint_step=self.training.checkpoint,
            checkpoint_path=f"/trimtab/run/checkpoints/{self.training.checkpoint}",
            restart_wishes=tuple(
                RestartWish(role=role, replica=replica, incarnation=n, reason="lost")
                for (role, replica), n in lost
            ),
            received=now,
        )

    # -- what always holds ----------------------------------------------------------------------------

    def check(self) -> None:
        """Never two coordinators at once, and never ranks of two actors."""
        coordinators = self.running("coordinator")
        assert len(coordinators) <= 1, f"two coordinators: {[pod.name for pod in coordinators]}"
        places = [(pod.role, pod.replica, pod.node) for pod in self.running("actor")]
        assert len(places) == len(set(places)), f"two actor ranks of one place: {places}"

    def condition(self, kind: ConditionType) -> tuple[str, str]:
        """Status and reason."""
        assert self.job is not None
        found = next(c for c in self.job.status.conditions if c.type == kind)
        return found.status, found.reason


def changed(spec: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy with values set by path (`roles__rollout__replicas=2`); None removes."""

    def copy(value: Any) -> Any:
        return {key: copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value

    result: dict[str, Any] = copy(spec)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return result


@dataclass
class Todo:
    """An action that is under way."""

    job: Job
    action: Action
    decided: datetime


class Operator:
    """One operator's adapter."""

    def __init__(self, world: World, settings: Settings = SETTINGS) -> None:
        self.world = world
        self.settings = settings
        self.heard: tuple[str, Progress] | None = None
        self.refused = ""
        self.todo: list[Todo] = []
        self.events: list[Event] = []
        self.writes = 0
        self.job_age = 0
        self.pods_age = 0
        """How many changes its caches are behind."""
        self.last: Decision | None = None

    def restart(self) -> None:
        """The process ends and another one begins: what it was about to do is lost."""
        self.heard, self.refused, self.todo = None, "", []
        self.job_age = self.pods_age = 0

    def observe(self) -> Observed | None:
        """Look, through caches that may be behind."""
        history = self.world.history
        job = history[max(len(history) - 1 - self.job_age, 0)].job
        pods = history[max(len(history) - 1 - self.pods_age, 0)].pods
        if job is None:
            return None
        state = job.status.resolved
        return Observed(
            job=job,
            pods=pods,
            progress=self._progress(job, pods),
            resolved=None if state is None else self.world.config_maps.get(state.name),
            claims=self.world.claims,
            settings=self.settings,
            refused=self.refused,
        )

    def _progress(self, job: Job, pods: tuple[Pod, ...]) -> Progress | None:
        mine = [p for p in pods if p.role == "coordinator" and p.attempt == job.status.attempt]
        if not mine or is_finished(job.status):
            self.heard = None
            return None
        newest = max(mine, key=lambda pod: pod.incarnation)
        finals = [words.final for pod in mine if (words := self.world.words.get(pod.uid)) and has_ended(pod)]
        complete = next((final for final in finals if final and final.phase == "Complete"), None)
        if complete is not None:
            return complete
        words = self.world.words.get(newest.uid)
        if has_ended(newest) and words is not None and words.final is not None:
            return words.final
        now = self.world.pods.get(newest.name)
        if now is not None and now.uid == newest.uid and self.world.runs(now) and not self.world.silent:
            self.heard = (newest.uid, self.world.progress(now, self.world.now))
        return self.heard[1] if self.heard is not None and self.heard[0] == newest.uid else None

    def decide(self) -> Decision | None:
        """Look, decide, write the status; what is to be done waits in `todo`."""
        observed = self.observe()
        if observed is None:
            return None
        decision = reconcile(observed, self.world.now)
        assert decision == reconcile(observed, self.world.now), "deciding twice gives two decisions"
        job = observed.job
        if decision.status != job.status:
            try:
                job = self.world.put_status(job, decision.status)
            except ConflictError:
                self.job_age = 0
                return None
            self.writes += 1
        self.last = decision
        self.events += decision.events
        self.todo += [Todo(job, action, self.world.now) for action in decision.actions]
        return decision

    def act(self) -> None:
        """Carry the oldest of the actions out."""
        if self.todo:
            todo = self.todo.pop(0)
            self._do(todo)
            self.world.check()

    def turn(self) -> Decision | None:
        """One look, and all that follows."""
        decision = self.decide()
        while self.todo:
            self.act()
        return decision

    def _do(self, todo: Todo) -> None:
        world = self.world
        match todo.action:
            case CreateResolved(resolved=resolved):
                world.config_maps.setdefault(resolved.name, resolved)
            case CreatePod(plan=plan, exclusive=exclusive):
                if (world.now - todo.decided).total_seconds() <= ACT_WITHIN_S and not (
                    exclusive and self._another(plan)
                ):
                    refused = world.create_pod(plan) == "refused"
                    self.refused = "exceeded quota: pods=0" if refused else ""
            case DeletePod(name=name, uid=uid, grace_s=grace_s):
                world.delete_pod(name, uid, grace_s)
            case StopTraining(grace_s=grace_s):
                self._tell(lambda words: _stop(words, world.now, grace_s))
            case Resize() as sizes:
                self._tell(lambda words: setattr(words, "sizes", sizes))
            case DeleteJob(uid=uid):
                if world.job is not None and world.job.uid == uid:
                    world.job = None
                    world.pods.clear()
                    world._remember()
            case EnsureChildren():
                pass

    def _another(self, plan: PodPlan) -> bool:
        return any(
            pod.role == plan.role
            and pod.replica == plan.replica
            and (pod.attempt, pod.incarnation) != (plan.attempt, plan.incarnation)
            and not has_ended(pod)
            for pod in self.world.pods.values()
        )

    def _tell(self, what: Any) -> None:
        for pod in self.world.running("coordinator"):
            if not self.world.silent:
                what(self.world.words.setdefault(pod.uid, Words()))


def _stop(words: Words, now: datetime, grace_s: float) -> None:
    if words.stop_since is None:
        words.stop_since, words.grace_s, words.phase = now, grace_s, "Stopping"


def run(world: World, operator: Operator, *, seconds: int, until: Any = None) -> None:
    """Let everybody work for so long, or until something holds."""
    for _ in range(seconds // 5):
        operator.turn()
        if until is not None and until():
            return
        world.tick(5)
    if until is not None:
        raise AssertionError(f"not within {seconds} s: {world.job and world.job.status!r}")
