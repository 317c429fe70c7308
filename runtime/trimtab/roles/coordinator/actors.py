"""The coordinator's handle on the actor unit: one call, all ranks.

Runs on the coordinator's loop. `lock` is held by whoever needs the weights to stand still (an update,
a publication, a late engine being brought up to date). Keys name the unit's incarnation and the step,
so a command sent again after a coordinator restart is answered from the worker's cache, and one sent
again after an actor restart is carried out anew.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.api import ResolvedJob
from trimtab.comm.control import CommandError, ControlServer
from trimtab.comm.experience import ExperienceHub, Message
from trimtab.episodes import TrainBatch
from trimtab.errors import OutOfMemoryError, TrimtabError, UserError, WorkerLostError
from trimtab.roles.coordinator.balance import shard_sequences
from trimtab.roles.coordinator.membership import Member, Members
from trimtab.v1 import control_pb2 as pb

SEND_TIMEOUT_S = 60.0


class ActorLostError(WorkerLostError):
    """The unit cannot go on as it is: a rank is gone, late, or failed at a command."""


class ActorUnit:
    """All ranks of the actor as one."""

    def __init__(
        self, job: ResolvedJob, members: Members, server: ControlServer, hub: ExperienceHub, *, instance: str
    ) -> None:
        self._job = job
        self._members = members
        self._server = server
        self._hub = hub
        self._instance = instance
        self._numbers = 0
        self._log_probs: dict[tuple[str, str], asyncio.Future[Message]] = {}
        self.lock = asyncio.Lock()
        self.manifest: pb.WeightManifest | None = None
        self.num_parameters = 0

    @property
    def ranks(self) -> list[Member]:
        """The unit's members; raises ActorLostError while it is not whole."""
        ranks = self._members.actor_ranks()
        if not ranks:
            raise ActorLostError(f"actor is not whole: missing {', '.join(self._members.missing('actor'))}")
        return ranks

    @property
    def incarnation(self) -> int:
        """Of the unit that is here now."""
        return self.ranks[0].key.incarnation

    async def init(self, *, checkpoint_path: str, total_steps: int) -> int:
        """Form the FSDP world and load the model (or a checkpoint). Returns the step that it stands at.

        `total_steps` of training are where a falling learning rate ends.
        """
        ranks = self.ranks
        first = ranks[0].register
        timeout_s = float(self._job.job.spec.deadlines.registration_seconds)
        commands = []
        for member in ranks:
            body = pb.InitActor(
                world_size=len(ranks),
                rank=member.key.rank,
                store_host=first.host,
                store_port=first.store_port,
                group_name=f"actor-{self.incarnation}",
                checkpoint_path=checkpoint_path,
                timeout_s=timeout_s,
                total_steps=total_steps,
            )
            commands.append(pb.Command(key=f"init/{self.incarnation}", timeout_s=timeout_s, init_actor=body))
        results = await self.call(commands, timeout_s=timeout_s)
        ready = results[0].actor_ready
        self.manifest = ready.manifest
        self.num_parameters = ready.num_parameters
        return int(ready.applied_step)

    async def settle(self) -> None:
        """Wait until every rank has finished what a coordinator before this one asked of it.

        A rank that still writes a checkpoint would otherwise do so into the folder that is made for the next.
        """
        deadlines = self._job.job.spec.deadlines
        timeout_s = float(max(deadlines.update_seconds, deadlines.checkpoint_seconds))
        command = pb.Command(
            key=f"settle/{self._instance}",
            timeout_s=timeout_s,
            leave_weight_group=pb.LeaveWeightGroup(group="none"),  # ranks take their commands in order
        )
        await self.call([command] * len(self.ranks), timeout_s=timeout_s)

    async def update(self, batch: TrainBatch, meta: Mapping[str, object], *, step: int) -> dict[str, float]:
        """One step's optimiser updates; global metrics. Sent under a key that makes it happen once."""
        key = f"update/{self.incarnation}/{step}"
        await self._send_shards(batch, {**meta, "key": key})
        timeout_s = float(self._job.job.spec.deadlines.update_seconds)
        command = pb.Command(key=key, timeout_s=timeout_s, update=pb.Update(step=step))
        results = await self.call([command] * len(self.ranks), timeout_s=timeout_s)
        return dict(results[0].metrics)

    async def log_probs(
        self, batch: TrainBatch, *, model: Literal["policy", "reference"], temperature: float
    ) -> NDArray[np.float32]:
        """Log-probs of the batch's tokens under the current policy or the reference, [N]."""
        self._numbers += 1
        key = f"log_probs/{model}/{self._instance}/{self._numbers}"
        ranks = self.ranks
        loop = asyncio.get_running_loop()
        futures = []
        for member in ranks:
            future: asyncio.Future[Message] = loop.create_future()
            self._log_probs[(str(member.key), key)] = future
            futures.append(future)
        timeout_s = float(self._job.job.spec.deadlines.update_seconds)
        try:
            shards = await self._send_shards(batch, {"key": key, "temperature": temperature})
            command = pb.Command(key=key, timeout_s=timeout_s, log_probs=pb.LogProbs(model=model))
            await self.call([command] * len(ranks), timeout_s=timeout_s)
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    answers = await asyncio.gather(*futures)
            except TimeoutError:
                raise ActorLostError(
                    f"actor answered {key} but its log-probs did not arrive within {SEND_TIMEOUT_S:.0f} s"
                ) from None
        finally:
            for member in ranks:
                self._log_probs.pop((str(member.key), key), None)
        result = np.zeros(batch.num_tokens, np.float32)
        for sequences, answer in zip(shards, answers, strict=True):
            position = 0
            for s in sequences:
                start, end = int(batch.offsets[s]), int(batch.offsets[s + 1])
                result[start:end] = answer.arrays["log_probs"][position : position + end - start]
                position += end - start
        return result

    def take_log_probs(self, worker: str, message: Message) -> None:
        """Fed by the hub's reader."""
        future = self._log_probs.get((worker, str(message.meta["key"])))
        if future is not None and not future.done():
            future.set_result(message)

    async def save(self, path: str) -> None:
        """Every rank writes its part of the checkpoint."""
        timeout_s = float(self._job.job.spec.deadlines.checkpoint_seconds)
        self._numbers += 1
        command = pb.Command(
            key=f"save/{self._instance}/{self._numbers}",
            timeout_s=timeout_s,
            save_checkpoint=pb.SaveCheckpoint(path=path),
        )
        await self.call([command] * len(self.ranks), timeout_s=timeout_s)

    async def export(self, path: str) -> None:
        """Write the policy as a Hugging Face directory."""
        timeout_s = float(self._job.job.spec.deadlines.checkpoint_seconds)
        self._numbers += 1
        key = f"export/{self._instance}/{self._numbers}"
        command = pb.Command(key=key, timeout_s=timeout_s, export=pb.Export(path=path))
        await self.call([command] * len(self.ranks), timeout_s=timeout_s)

    async def call(self, commands: Sequence[pb.Command], *, timeout_s: float) -> list[pb.CommandResult]:
        """Send one command to each rank and wait for all; the first failure is raised with the rank's name.

        UserError and OutOfMemoryError end the job; everything else is raised as ActorLostError.
        """
        ranks = self.ranks
        calls = [
            self._server.call(member.key, command, timeout_s=timeout_s)
            for member, command in zip(ranks, commands, strict=True)
        ]
        outcomes: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        try:
            raise_worst(outcomes)
        except (UserError, OutOfMemoryError):
            raise
        except TrimtabError as error:
            raise ActorLostError(str(error)) from error
        return outcomes

    async def _send_shards(self, batch: TrainBatch, meta: dict[str, object]) -> list[list[int]]:
        ranks = self.ranks
        shards = shard_sequences(batch, len(ranks))
        for member, sequences in zip(ranks, shards, strict=True):
            message = Message("batch", meta, batch.select(sequences).arrays())
            try:
                await self._hub.send(str(member.key), message, timeout_s=SEND_TIMEOUT_S)
            except TrimtabError as error:
                raise ActorLostError(f"{member.key} does not take its batch: {error}") from error
        return shards


def raise_worst(outcomes: Sequence[Any]) -> None:
    """Raise the failure that says most: a user's mistake, then memory, then our own, then anything else."""
    failures = [_by_kind(o) for o in outcomes if isinstance(o, BaseException)]
    for kind in (UserError, OutOfMemoryError, TrimtabError, BaseException):
        for failure in failures:
            if isinstance(failure, kind):
                raise failure


def _by_kind(error: BaseException) -> BaseException:
    if isinstance(error, CommandError) and error.kind == "user":
        return UserError(str(error))
    if isinstance(error, CommandError) and error.kind == "oom":
        return OutOfMemoryError(str(error))
    return error
