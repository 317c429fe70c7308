"""Who is here: the workers of a job by role, on the coordinator's asyncio loop.

`ControlServer` calls `admit`, `joined`, `left`; everything else in the coordinator asks and waits here.
A wait has a deadline and names who is missing. `restart_requests` is level-based: the launcher or
operator restarts the places it names until a newer incarnation has joined. A worker whose stream broke
gets a grace in which to come back with what it holds; one that was condemned gets none.

The actor is one unit: it counts as present only when all ranks of one incarnation are here, and
losing one rank loses the unit (`actor_lost` is set until the coordinator has dealt with it).

The numbers of rollouts and rewards may change while the job runs (`resize`). A replica beyond them is not
refused for good: it may be of a size that the coordinator has yet to hear of, and so it dials again.
"""

import asyncio
import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from trimtab.api import ResolvedJob
from trimtab.comm.control import NotAdmitted, WorkerKey
from trimtab.errors import DeadlineError
from trimtab.v1 import control_pb2 as pb

ROLES = ("actor", "rollout", "reward")
RECONNECT_GRACE_S = 15.0
"""In which a worker that only lost its stream is back; a dead one is replaced by who started it anyway."""


@dataclass
class Member:
    """A registered worker. `weight_version` follows what the coordinator knows it serves."""

    key: WorkerKey
    register: pb.Register
    weight_version: int

    @property
    def place(self) -> str:
        """Role and replica: what is restarted together."""
        return f"{self.key.role}-{self.key.replica}"


@dataclass(frozen=True)
class Restart:
    """A place that has to start again: every incarnation up to this one is to be replaced."""

    role: str
    replica: int
    incarnation: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers of replicas, which may change while the job runs."""

    rollouts: int
    min_rollouts: int
    rewards: int
    min_rewards: int

    def of_role(self, role: str) -> int:
        """Replicas that a role may have; the actor is one."""
        return {"actor": 1, "rollout": self.rollouts, "reward": self.rewards}[role]

    def least(self, role: str) -> int:
        """Replicas without which training waits."""
        return {"actor": 1, "rollout": self.min_rollouts, "reward": self.min_rewards}[role]


@dataclass(frozen=True, kw_only=True)
class Desired(Sizes):
    """How many of each role the job wants."""

    actor_ranks: int


def desired_members(job: ResolvedJob) -> Desired:
    """Read the sizes off the job."""
    roles = job.job.spec.roles
    return Desired(
        actor_ranks=roles.actor.num_ranks,
        rollouts=roles.rollout.replicas,
        min_rollouts=roles.rollout.min_replicas,
        rewards=roles.reward.replicas,
        min_rewards=roles.reward.min_replicas,
    )


class Members:
    """The coordinator's view of its workers."""

    def __init__(self, desired: Desired) -> None:
        self.desired = desired
        self._condemned: dict[tuple[str, int], Restart] = {}
        self._left: dict[tuple[str, int], tuple[float, Restart]] = {}
        self.num_restarts: dict[str, int] = {"actor": 0, "rollout": 0, "reward": 0}
        self.failure: tuple[str, str] | None = None
        """(message, kind) of a worker that cannot go on and that a restart would not cure."""
        self.actor_lost = asyncio.Event()
        self.actor_lost_reason = ""
        self.on_join: list[Callable[[Member], None]] = []
        self.on_leave: list[Callable[[Member, str], None]] = []
        self.on_leaving: list[Callable[[WorkerKey, str], None]] = []
        """A worker's pod is about to be ended."""
        self._members: dict[WorkerKey, Member] = {}
        self._newest: dict[tuple[str, int], int] = {}
        self._changed = asyncio.Event()

    # -- called by the control server ------------------------------------------------------------

    def admit(self, register: pb.Register) -> NotAdmitted | None:
        """Why not, or None. Attempt, identity and protocol were checked before this."""
        worker = register.worker
        if worker.role not in ROLES:
            return NotAdmitted(f"role {worker.role!r} is not part of this job; it has {', '.join(ROLES)}")
        limit = self.desired.of_role(worker.role)
        if worker.replica >= limit:
            text = f"{worker.role} replica {worker.replica} is beyond the job's {limit}"
            return NotAdmitted(text, final=worker.role == "actor")
        newest = self._newest.get((worker.role, worker.replica), 0)
        if worker.incarnation < newest:
            place = f"{worker.role}-{worker.replica}"
            return NotAdmitted(f"incarnation {worker.incarnation} of {place} is older than {newest}")
        if worker.role == "actor" and register.world_size != self.desired.actor_ranks:
            ranks = self.desired.actor_ranks
            return NotAdmitted(f"world size {register.world_size}; the job's actor has {ranks} ranks")
        return None

    def joined(self, key: WorkerKey, register: pb.Register) -> None:
        """Add a worker that was admitted (also one that reconnects)."""
        place = (key.role, key.replica)
        newest = self._newest.get(place)
        if newest is not None and key.incarnation > newest:
            self.num_restarts[key.role] += 1
        self._newest[place] = max(newest or 0, key.incarnation)
        condemned = self._condemned.get(place)
        if condemned is not None and key.incarnation > condemned.incarnation:
            del self._condemned[place]
        self._left.pop(place, None)
        member = Member(key=key, register=register, weight_version=register.weight_version)
        self._members[key] = member
        for callback in self.on_join:
            callback(member)
        self._notify()

    def left(self, key: WorkerKey, reason: str) -> None:
        """Remove a worker whose stream broke or whose heartbeats stopped."""
        member = self._members.pop(key, None)
        if member is None:
            return
        restart = Restart(key.role, key.replica, key.incarnation, f"{key}: {reason}")
        self._left[(key.role, key.replica)] = (time.monotonic(), restart)
        for callback in self.on_leave:
            callback(member, reason)
        if key.role == "actor" and not self.actor_lost.is_set():
            self.actor_lost_reason = f"{key} was lost: {reason}"
            self.actor_lost.set()
        self._notify()

    def failed(self, key: WorkerKey, message: str, kind: str) -> None:
        """Note a worker's own word that it cannot go on; a user's mistake or want of memory ends the job.

        The message begins with the worker's name.
        """
        if kind in ("user", "oom") and self.failure is None:
            self.failure = (message, kind)
        self._notify()

    def leaving(self, key: WorkerKey, reason: str) -> None:
        """Pass on a worker's word that its pod is about to be ended."""
        for callback in self.on_leaving:
            callback(key, reason)

    # -- asked by the coordinator ----------------------------------------------------------------

    def resize(self, sizes: Sizes) -> list[WorkerKey]:
        """Go by these numbers from now on; returns those who were here and are beyond them.

        They have left, as far as everything else is concerned, and nobody is to start them again.
        """
        self.desired = Desired(actor_ranks=self.desired.actor_ranks, **asdict(sizes))
        beyond = [key for key in self._members if key.replica >= self.desired.of_role(key.role)]
        for key in beyond:
            self.left(key, "the job has fewer replicas now")
        for place in {*self._left, *self._condemned}:
            if place[1] >= self.desired.of_role(place[0]):
                self._left.pop(place, None)
                self._condemned.pop(place, None)
        self._notify()
        return sorted(beyond)

    def condemn(self, key: WorkerKey, reason: str) -> None:
        """Ask the launcher or operator to start this place again, whatever its process looks like."""
        place = (key.role, key.replica)
        if key.incarnation >= self._newest.get(place, 0):
            self._condemned[place] = Restart(key.role, key.replica, key.incarnation, f"{key}: {reason}")
            self._notify()

    def restart_requests(self) -> list[Restart]:
        """Places to start again: condemned ones, and those that have been gone for longer than the grace."""
        gone = [r for at, r in self._left.values() if time.monotonic() - at > RECONNECT_GRACE_S]
        places = {(r.role, r.replica): r for r in gone} | self._condemned
        return list(places.values())

    def of_role(self, role: str) -> list[Member]:
        """Present workers of a role, by replica, node and rank."""
        found = [m for m in self._members.values() if m.key.role == role]
        return sorted(found, key=lambda m: (m.key.replica, m.key.rank))

    def actor_ranks(self) -> list[Member]:
        """All ranks of the newest actor incarnation in rank order, or [] while one is missing."""
        newest = self._newest.get(("actor", 0), 0)
        ranks = [m for m in self.of_role("actor") if m.key.incarnation == newest]
        return ranks if len(ranks) == self.desired.actor_ranks else []

    def missing(self, role: str) -> list[str]:
        """Names of the places of a role that are not here, each with why it left, if it did."""
        if role == "actor":
            here = {m.key.rank for m in self.of_role("actor")}
            places = [f"actor-0 rank {r}" for r in range(self.desired.actor_ranks) if r not in here]
            why = self._why("actor", 0)
            return [f"{p}{why}" for p in places]
        here = {m.key.replica for m in self.of_role(role)}
        names = []
        for replica in range(self.desired.of_role(role)):
            if replica not in here:
                names.append(f"{role}-{replica}{self._why(role, replica)}")
        return names

    def _why(self, role: str, replica: int) -> str:
        left = self._left.get((role, replica))
        return f" ({left[1].reason})" if left else ""

    async def wait_until(self, predicate: Callable[[], bool], *, timeout_s: float, what: str) -> None:
        """Wait until `predicate()` holds; `what` names who is waited for, evaluated by the caller.

        Raises DeadlineError past the deadline. A worker's permanent failure is the caller's to check.
        """
        deadline = time.monotonic() + timeout_s
        while not predicate():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise DeadlineError(f"waited {timeout_s:.0f} s for {what}")
            self._changed.clear()
            try:
                async with asyncio.timeout(min(remaining, 1.0)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def wait_for_role(self, role: str, *, timeout_s: float) -> None:
        """Wait until the replicas that the job needs at least (or the whole actor unit) are here."""

        def here() -> bool:
            if self.failure is not None or role == "actor":
                return self.failure is not None or bool(self.actor_ranks())
            return len(self.of_role(role)) >= self.desired.least(role)

        try:
            await self.wait_until(here, timeout_s=timeout_s, what=f"the {role}")
        except DeadlineError as error:
            raise DeadlineError(
                f"{error}: missing {', '.join(self.missing(role))}. Look at their logs; "
                "spec.deadlines.registrationSeconds sets how long this may take."
            ) from None

    def forget_actor_loss(self) -> None:
        """The loss has been dealt with."""
        self.actor_lost.clear()
        self.actor_lost_reason = ""

    def as_of_now(self) -> "Members":
        """A copy to read from, which does not follow who comes and goes from now on."""
        copied = copy.copy(self)
        copied._members, copied._newest = dict(self._members), dict(self._newest)
        copied._left, copied._condemned = dict(self._left), dict(self._condemned)
        copied.num_restarts = dict(self.num_restarts)
        return copied

    def wake(self) -> None:
        """Make every wait look at its predicate again."""
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
