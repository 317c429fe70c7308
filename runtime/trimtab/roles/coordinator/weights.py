"""Weights from the actor to every rollout, and the membership of the group that they travel over.

Runs on the coordinator's loop. A version is a number that rises with every update and every reload of
the actor, never the step: after a rollback the same step has other weights. A group lives for one
membership; when a member is lost, fails or is late past the deadline, the group is abandoned on both sides
at once, a member that did not answer is restarted, and a group without it is formed.

`publish` needs `actor.lock` to be held by the caller.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.api import ResolvedJob
from trimtab.comm.control import CommandError, ControlServer, WorkerKey
from trimtab.errors import DeadlineError, TrimtabError, WorkerLostError
from trimtab.roles.coordinator.actors import ActorUnit, raise_worst
from trimtab.roles.coordinator.membership import Member, Members
from trimtab.v1 import control_pb2 as pb

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
GRACE_S = 10.0
"""Beyond the transfer's own deadline, for the answer that says it gave up."""


@dataclass(frozen=True)
class _Group:
    name: str
    members: tuple[WorkerKey, ...]


class WeightSync:
    """Publishes the actor's weights."""

    def __init__(
        self,
        job: ResolvedJob,
        members: Members,
        server: ControlServer,
        actor: ActorUnit,
        *,
        instance: str,
        condemn: Callable[[Member, str], None],
    ) -> None:
        self._job = job
        self._members = members
        self._server = server
        self._actor = actor
        self._instance = instance
        self._condemn = condemn
        self._group: _Group | None = None
        self._failures: dict[WorkerKey, CommandError] = {}
        self._numbers = 0
        self.version = 0
        """Of the weights that the actor holds now."""

    @property
    def timeout_s(self) -> float:
        """Deadline of one transfer, `spec.weightSync.timeoutSeconds`."""
        return float(self._job.job.spec.weight_sync.timeout_seconds)

    def is_current(self, member: Member) -> bool:
        """Whether a rollout serves the actor's weights."""
        return member.weight_version == self.version

    def late(self) -> list[Member]:
        """Rollouts that serve other weights."""
        return [m for m in self._members.of_role("rollout") if not self.is_current(m)]

    async def publish(self) -> dict[str, float]:
        """Send the actor's weights to every rollout that lacks them.

        Returns weights/sync_s and weights/bytes_per_s, or nothing where all are up to date. Raises
        ActorLostError; a rollout that fails is left out and restarted.
        """
        started = time.monotonic()
        attempt = 1
        while attempt <= MAX_ATTEMPTS:
            receivers = self.late()
            if not receivers:
                return {}
            try:
                num_bytes = await self._transfer(receivers)
            except (DeadlineError, CommandError, WorkerLostError) as error:
                _ = self._actor.ranks  # raises where it was the actor that was lost
                log.warning(
                    "weights version %d, try %d of %d: %s", self.version, attempt, MAX_ATTEMPTS, error
                )
                if attempt > 1:
                    self._condemn_failing(receivers)
                await self._abandon()
                # Fewer are left after a loss, and how often one may be lost is the restart budget's concern.
                attempt += self._all_here(receivers)
                continue
            elapsed = time.monotonic() - started
            return {"weights/sync_s": elapsed, "weights/bytes_per_s": num_bytes / max(elapsed, 1e-9)}
        raise TrimtabError(
            f"weights version {self.version} reached no group of rollouts in {MAX_ATTEMPTS} tries; "
            "the log has each try's reason"
        )

    async def _transfer(self, receivers: Sequence[Member]) -> float:
        group = await self._form(receivers)
        deadline_s = self.timeout_s
        body = pb.TransferWeights(
            group=group.name, version=self.version, manifest=self._actor.manifest, timeout_s=deadline_s
        )
        key = f"transfer/{group.name}/{self.version}"
        command = pb.Command(key=key, timeout_s=deadline_s, transfer_weights=body)
        everyone = [*self._actor.ranks, *receivers]
        results = await self._call_all(everyone, [command] * len(everyone), timeout_s=deadline_s + GRACE_S)
        for member in receivers:
            member.weight_version = self.version
        return float(results[0].metrics.get("bytes", 0.0))

    async def _form(self, receivers: Sequence[Member]) -> _Group:
        ranks = self._actor.ranks
        wanted = (ranks[0].key, *(m.key for m in receivers))
        if self._group is not None and self._group.members == wanted:
            return self._group
        await self._abandon()
        self._numbers += 1
        group = _Group(f"weights-{self._instance}-{self._numbers}", wanted)
        first = ranks[0].register
        widths = [max(1, m.register.world_size) for m in receivers]
        world_size = 1 + sum(widths)
        commands, position = [], 0
        roles = self._job.job.spec.roles
        backend = "nccl" if min(roles.actor.gpus_per_node, roles.rollout.gpus_per_node) > 0 else "gloo"
        for width in [1, *widths]:
            body = pb.JoinWeightGroup(
                group=group.name,
                backend=backend,
                store_host=first.host,
                store_port=first.store_port,
                world_size=world_size,
                first_rank=position,
                timeout_s=self.timeout_s,
            )
            commands.append(
                pb.Command(key=f"join/{group.name}", timeout_s=self.timeout_s, join_weight_group=body)
            )
            position += width
        self._group = group
        await self._call_all([ranks[0], *receivers], commands, timeout_s=self.timeout_s + GRACE_S)
        return group

    async def _call_all(
        self, members: Sequence[Member], commands: Sequence[pb.Command], *, timeout_s: float
    ) -> list[pb.CommandResult]:
        """Every member's result. Where one fails, the group is abandoned, and the first failure is raised."""
        calls = [
            asyncio.ensure_future(self._server.call(m.key, c, timeout_s=timeout_s))
            for m, c in zip(members, commands, strict=True)
        ]
        try:
            done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            if waiting:  # for one that will not come: they are to give up now, not at their deadline
                await self._abandon()
            outcomes: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        finally:
            for call in calls:
                call.cancel()
        self._failures = {
            member.key: outcome
            for member, outcome in zip(members, outcomes, strict=True)
            if isinstance(outcome, CommandError) and outcome.kind not in ("timeout", "lost")
        }
        for member, outcome in zip(members, outcomes, strict=True):
            # Only one that did not answer at all is to blame: the others report the group's failure.
            if isinstance(outcome, DeadlineError) and member.key.role == "rollout":
                self._condemn(member, str(outcome))
        # Of several failures of a kind, the later ones are of what the first one led to.
        raise_worst([*(call.exception() for call in done), *outcomes])
        return outcomes

    def _all_here(self, receivers: Sequence[Member]) -> bool:
        present = self._members.of_role("rollout")
        return all(any(member is other for other in present) for member in receivers)

    def _condemn_failing(self, receivers: Sequence[Member]) -> None:
        """Have those started again that answered with a failure of their own, not with the group's."""
        for member in receivers:
            failure = self._failures.get(member.key)
            if failure is not None:
                self._condemn(member, str(failure))

    async def _abandon(self) -> None:
        if self._group is None:
            return
        group, self._group = self._group, None
        here = {m.key for role in ("actor", "rollout") for m in self._members.of_role(role)}
        command = pb.Command(
            key=f"leave/{group.name}",
            timeout_s=GRACE_S,
            leave_weight_group=pb.LeaveWeightGroup(group=group.name),
        )
        calls = [self._server.call(k, command, timeout_s=GRACE_S) for k in group.members if k in here]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.info("leaving group %s: %s", group.name, outcome)

    def forget_group(self) -> None:
        """The actor was lost: its groups are gone with it."""
        self._group = None
