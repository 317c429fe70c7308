"""What one actor rank does for each command. Called by `trimtab.roles.actor` on its main thread.

A command's batch comes on the experience plane under the command's key, before or after it. Results
are cached by the session under the same key, so nothing here runs twice.
"""

import dataclasses
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from trimtab.algorithms.losses import Denominators, GrpoLoss, GrpoLossConfig
from trimtab.api import ResolvedJob
from trimtab.comm.control import WorkerSession, error_kind
from trimtab.comm.experience import ExperienceLink, Message
from trimtab.comm.weights import WeightGroup, WeightSender, build_manifest
from trimtab.engines.training import FsdpTrainingEngine, ModelName, TrainingEngine, TrainingSettings
from trimtab.engines.training.host_memory import keep_freed_memory
from trimtab.engines.training.settings import DTYPES
from trimtab.episodes import TrainBatch
from trimtab.errors import TrimtabError
from trimtab.observability.prometheus import RoleGauges
from trimtab.v1 import control_pb2 as pb

logger = logging.getLogger(__name__)

SEND_TIMEOUT_S = 60.0
_WEIGHT_COMMANDS = ("join_weight_group", "leave_weight_group", "transfer_weights")
"""Their failures leave the engine as it was: the coordinator forms another group."""
_MODELS: dict[str, ModelName] = {"policy": "policy", "reference": "reference"}


class ActorCommands:
    """One rank's engine, its batches on the way, and the weight groups it belongs to."""

    def __init__(
        self,
        job: ResolvedJob,
        settings: TrainingSettings,
        *,
        session: WorkerSession,
        link: ExperienceLink,
        device: torch.device,
        gauges: RoleGauges,
        form_world: Callable[[pb.InitActor], None],
    ) -> None:
        self._job = job
        self._settings = settings
        self._session = session
        self._link = link
        self._device = device
        self._gauges = gauges
        self._form_world = form_world
        self._built: TrainingEngine | None = None
        self._groups: dict[str, WeightGroup] = {}
        self._wanted_group = ""
        """The weight group that the coordinator wants now; changed on the session's thread."""
        session.on_arrival(self._note)
        self._loss_config = _loss_config(job)
        self._handlers: dict[str, Callable[[pb.Command], pb.CommandResult]] = {
            "init_actor": self._init_actor,
            "update": self._update,
            "log_probs": self._log_probs,
            "save_checkpoint": self._save_checkpoint,
            "export": self._export,
            "join_weight_group": self._join_weight_group,
            "leave_weight_group": self._leave_weight_group,
            "transfer_weights": self._transfer_weights,
        }

    def run(self, command: pb.Command) -> pb.CommandResult:
        """Carry out one command; a failure is the answer, never an exception."""
        kind = command.WhichOneof("body")
        handler = self._handlers.get(kind or "")
        if kind is None or handler is None:
            return pb.CommandResult(
                key=command.key, error=f"an actor has no command {kind}", error_kind="internal"
            )
        self._session.update_state(activity=kind.replace("_", " "))
        try:
            result = handler(command)
        except Exception as error:  # noqa: BLE001 - whatever happens, the coordinator must get an answer
            return self._failed(command, error)
        finally:
            self._session.update_state(activity="waiting for a command")
        result.key, result.ok = command.key, True
        return result

    def give_up_group(self) -> None:
        """Another coordinator is there, and forms groups of its own. Called on the session's thread."""
        self._wanted_group = ""

    def close(self) -> None:
        """Leave all weight groups."""
        for group in self._groups.values():
            group.abort()
        self._groups.clear()

    @property
    def _engine(self) -> TrainingEngine:
        if self._built is None:
            raise TrimtabError(
                "no model is loaded: InitActor has not been carried out, or a command has failed since"
            )
        return self._built

    def _init_actor(self, command: pb.Command) -> pb.CommandResult:
        init = command.init_actor
        started = time.perf_counter()
        if self._device.type == "cpu" and not keep_freed_memory():
            logger.info("this C library cannot keep freed memory; updates are slower for it")
        self._form_world(init)
        checkpoint = Path(init.checkpoint_path) if init.checkpoint_path else None
        settings = dataclasses.replace(
            self._settings,
            total_optimizer_steps=init.total_steps * self._job.job.spec.training.updates_per_step,
        )
        self._built = FsdpTrainingEngine(settings, device=self._device, checkpoint=checkpoint)
        self._session.update_state(applied_step=self._built.applied_step)
        logger.info(
            "rank %d of %d holds its part of %d parameters after %.1f s",
            init.rank, init.world_size, self._built.num_parameters, time.perf_counter() - started,
        )  # fmt: skip
        dtype = self._rollout_dtype()
        manifest = build_manifest(
            [(info.name, info.shape) for info in self._built.manifest(dtype)],
            dtype=dtype,
            bucket_bytes=self._job.job.spec.weight_sync.bucket_bytes,
        )
        ready = pb.ActorReady(
            applied_step=self._built.applied_step,
            manifest=manifest,
            num_parameters=self._built.num_parameters,
        )
        return pb.CommandResult(actor_ready=ready)

    def _update(self, command: pb.Command) -> pb.CommandResult:
        message = self._batch(command)
        meta = message.meta
        scale_factor = meta.get("scale_factor")
        metrics = self._engine.update(
            TrainBatch.from_arrays(message.arrays),
            loss=GrpoLoss(self._loss_config.with_kl_coefficient(float(meta["kl_coefficient"]))),
            denominators=[
                Denominators(entry["tokens"], entry["sequences"], scale_factor)
                for entry in meta["denominators"]
            ],
            epochs=int(meta["epochs"]),
            temperature=float(meta["temperature"]),
        )
        self._engine.applied_step = command.update.step
        self._session.update_state(applied_step=command.update.step)
        self._gauges.set_all(metrics)
        return pb.CommandResult(metrics=metrics)

    def _log_probs(self, command: pb.Command) -> pb.CommandResult:
        message = self._batch(command)
        result = self._engine.log_probs(
            TrainBatch.from_arrays(message.arrays),
            model=_MODELS[command.log_probs.model],
            temperature=float(message.meta["temperature"]),
        )
        answer = Message("log_probs", {"key": command.key}, {"log_probs": result.log_probs})
        self._link.send(answer, SEND_TIMEOUT_S)
        return pb.CommandResult()

    def _save_checkpoint(self, command: pb.Command) -> pb.CommandResult:
        self._engine.save(Path(command.save_checkpoint.path))
        return pb.CommandResult()

    def _export(self, command: pb.Command) -> pb.CommandResult:
        self._engine.export_hugging_face(Path(command.export.path))
        return pb.CommandResult()

    def _join_weight_group(self, command: pb.Command) -> pb.CommandResult:
        join = command.join_weight_group
        self.close()  # a rank belongs to one membership at a time
        self._groups[join.group] = WeightGroup.join(
            join.group,
            backend=join.backend,
            store_host=join.store_host,
            store_port=join.store_port,
            rank=join.first_rank,
            world_size=join.world_size,
            timeout_s=join.timeout_s,
            device=self._device,
            given_up=partial(self._given_up, join.group),
        )
        return pb.CommandResult()

    def _note(self, command: pb.Command) -> None:
        """A group that is to be left is given up at once, also in the middle of joining it."""
        body = command.WhichOneof("body")
        if body == "join_weight_group":
            self._wanted_group = command.join_weight_group.group
        elif body == "leave_weight_group" and command.leave_weight_group.group == self._wanted_group:
            self._wanted_group = ""

    def _given_up(self, group: str) -> str | None:
        return None if group == self._wanted_group else "the coordinator has given this group up"

    def _leave_weight_group(self, command: pb.Command) -> pb.CommandResult:
        group = self._groups.pop(command.leave_weight_group.group, None)
        if group is not None:
            group.abort()
        return pb.CommandResult()

    def _transfer_weights(self, command: pb.Command) -> pb.CommandResult:
        """The rank that is in the group sends; the others only take part in gathering each tensor."""
        transfer = command.transfer_weights
        tensors = self._engine.export_shards(self._rollout_dtype())
        group = self._groups.get(transfer.group)
        if group is None:
            for _ in tensors:
                pass
            return pb.CommandResult()
        sent = WeightSender(group).send(
            transfer.version, tensors, transfer.manifest, transfer.manifest.bucket_bytes, transfer.timeout_s
        )
        return pb.CommandResult(metrics={"bytes": float(sent)})

    def _batch(self, command: pb.Command) -> Message:
        """The shard of this command. Others are of commands that a coordinator gave up, and are dropped."""
        deadline = time.monotonic() + command.timeout_s
        while True:
            message = self._link.recv(max(deadline - time.monotonic(), 0.0))
            if message.kind == "batch" and message.meta.get("key") == command.key:
                return message
            logger.info("dropped a %s message for %s", message.kind, message.meta.get("key"))

    def _rollout_dtype(self) -> torch.dtype:
        """The number format in which weights travel: that of the engine that serves them."""
        engine = self._job.job.spec.roles.rollout.engine
        name = (
            engine.vllm.dtype
            if engine.vllm is not None
            else engine.hf.dtype
            if engine.hf is not None
            else "auto"
        )
        return DTYPES.get(name, self._settings.precision.compute)

    def _failed(self, command: pb.Command, error: Exception) -> pb.CommandResult:
        kind = error_kind(error)
        text = str(error) or type(error).__name__
        if kind == "oom":
            text = (
                f"out of memory ({text.splitlines()[0]}); lower training.maxTokensPerMicroBatch, turn on "
                "training.gradientCheckpointing, or give the actor more GPUs"
            )
        if kind == "internal":
            logger.exception("%s failed", command.key)
        alone = not dist.is_initialized() or dist.get_world_size() == 1
        recoverable = command.WhichOneof("body") in _WEIGHT_COMMANDS or (kind == "user" and alone)
        if not recoverable:
            self._abandon()
        return pb.CommandResult(key=command.key, error=text, error_kind=kind)

    def _abandon(self) -> None:
        """Other ranks may wait for this one in a collective: closing the group ends their wait."""
        self._built = None
        self.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def _loss_config(job: ResolvedJob) -> GrpoLossConfig:
    spec = job.job.spec
    assert spec.algorithm.grpo is not None, "the API admits no other algorithm"
    return GrpoLossConfig.from_spec(
        spec.algorithm.grpo, max_response_tokens=spec.training.max_response_tokens
    )
