"""What the job's processes do: `World`, a cluster whose pods are those of a training.

A coordinator registers workers, steps, checkpoints, asks for restarts and says its final word; its journal
and the checkpoints are on shared storage. Workers leave with it, or when they have missed it for too long.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from tests.unit.operator.reconcile.world.cluster import Cluster
from tests.unit.operator.reconcile.world.job import START

from trimtab.errors import ExitCode
from trimtab_operator.model.actions import Resize
from trimtab_operator.model.observed import Pod, Progress, RestartWish

LOST_AFTER_S = 15
GIVE_UP_S = 120
"""After which a worker without a coordinator ends."""


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


class World(Cluster):
    """The truth."""

    def __init__(self, *, uid: str = "job-1", **changes: Any) -> None:
        super().__init__(uid=uid, **changes)
        self.words: dict[str, Words] = {}
        """By the uid of the coordinator's pod."""
        self.training = Training()
        self.silent = False
        """Whether no coordinator can be reached."""
        self.metrics: Mapping[str, float] = {"critic/rewards/mean": 0.5, "actor/entropy": 1.0}
        """Of every step."""
        self.hangs = False
        """Whether steps are begun and none is done."""
        self._with_coordinator = START

    def tick(self, seconds: int = 5) -> None:
        """Time goes by, and everybody does a bit."""
        self.now += timedelta(seconds=seconds)
        self._kubelets()
        for pod in self.running("coordinator"):
            self._coordinate(pod)
        self._workers()
        self.check()

    def _before_leaving(self, pod: Pod) -> None:
        if pod.role == "actor":
            self.training.checkpoint = max(self.training.checkpoint, self.training.step)

    # -- the training ---------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        assert self.job is not None
        return int(self.job.spec["training"]["steps"])

    def _coordinate(self, pod: Pod) -> None:
        words = self.words.setdefault(pod.uid, Words())
        if self.training.attempt > pod.attempt:
            self._end(pod, ExitCode.REFUSED)
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
                    self._end(rank, ExitCode.RESTART_REQUESTED)
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
            if not (self.job and self.job.spec.get("suspend")):
                self.accounts.failed()  # somebody else stopped it
            self._goodbye(pod)
            self._final(pod, words, "Stopped", reason="StopRequested")

    def _goodbye(self, pod: Pod) -> None:
        for worker in self.running():
            if worker.role != "coordinator" and worker.attempt == pod.attempt:
                self.accounts.causes += 1
                self._end(worker, 0)

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
        if phase == "Failed":
            self.accounts.failed()
        words.phase = phase
        words.final = replace(self.progress(pod, self.now), final=True, reason=reason, message=message)
        self._end(pod, code)

    def _workers(self) -> None:
        """A worker that finds no coordinator for too long gives up."""
        if self.running("coordinator"):
            self._with_coordinator = self.now
        alone = (self.now - self._with_coordinator).total_seconds()
        for pod in self.running():
            age = 0.0 if pod.started is None else (self.now - pod.started).total_seconds()
            if pod.role != "coordinator" and min(alone, age) > GIVE_UP_S:
                self.accounts.causes += 1
                self._end(pod, ExitCode.COORDINATOR_LOST)

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
