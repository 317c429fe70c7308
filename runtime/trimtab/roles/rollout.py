"""The rollout role: prompts arrive as token ids, responses go back one by one; one replica is one engine.

Started by `trimtab.roles.worker`. The main thread runs the asyncio loop, on which the engine's client
lives; the session has a thread of its own, so heartbeats continue while the engine starts or blocks.
Work comes on the experience plane (`generate`) and goes back as `episode` or `generate_failed`; commands
of the control plane join weight groups, receive weights and abort requests.

    engine starts with the model's weights (version 0) -> registered -> serving -> Shutdown

A request is drawn once while it is running, however often it is asked for. Requests of a coordinator that
has been replaced are aborted: the new one asks for what it still lacks.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.api import ResolvedJob
from trimtab.comm.control import WorkerSession
from trimtab.comm.control.errors import error_kind
from trimtab.comm.experience import AsyncExperienceLink, Message
from trimtab.data import load_tokenizer
from trimtab.engines.rollout.factory import make_engine
from trimtab.engines.rollout.protocol import (
    EngineDeadError,
    Generation,
    GenerationRequest,
    RolloutEngine,
    Sampling,
)
from trimtab.errors import TrimtabError
from trimtab.observability.prometheus import RoleGauges, start_metrics_server
from trimtab.roles.environment import WorkerEnvironment
from trimtab.roles.registration import registration
from trimtab.roles.serving import RequestServer, serve
from trimtab.v1 import control_pb2 as pb

logger = logging.getLogger(__name__)

SEND_TIMEOUT_S = 60.0
GAUGE_INTERVAL_S = 1.0


def run(env: WorkerEnvironment, job: ResolvedJob) -> int:
    """Serve until the coordinator says to leave; returns the exit code it asked for."""
    return asyncio.run(_serve(env, job))


async def _serve(env: WorkerEnvironment, job: ResolvedJob) -> int:
    spec = job.job.spec
    engine: RolloutEngine | None = None
    problem: TrimtabError | None = None
    try:
        tokenizer = load_tokenizer(spec.roles.rollout.model or spec.model, Path(job.base_dir))
        engine = make_engine(job, seed_offset=env.replica, eos_token_id=tokenizer.eos_token_id)
        await engine.start()
    except TrimtabError as error:
        problem = error
    vllm = spec.roles.rollout.engine.vllm
    register = registration(
        env,
        job,
        capacity=engine.capacity if engine is not None else 0,
        weight_version=0,
        metrics_port=start_metrics_server(env.metrics_port, address=env.host),
    )
    # The places that the engine takes in a weight group: one per tensor-parallel worker.
    register.world_size = vllm.tensor_parallel_size if vllm is not None else 1

    def make(session: WorkerSession, link: AsyncExperienceLink, gauges: RoleGauges) -> RequestServer:
        assert engine is not None
        return _RolloutServer(engine, session, link, gauges)

    try:
        return await serve(env, job, register, make, problem=problem)
    finally:
        if engine is not None:
            await engine.close()


class _RolloutServer(RequestServer):
    """Draws responses, and takes weights."""

    request_kind = "generate"

    def __init__(
        self, engine: RolloutEngine, session: WorkerSession, link: AsyncExperienceLink, gauges: RoleGauges
    ) -> None:
        super().__init__(session, link, gauges)
        self._engine = engine
        self._weights = asyncio.Lock()  # commands about weights wait for each other
        self._num_tokens = 0

    def follow(self, welcome: pb.Welcome) -> None:
        """Another coordinator: it knows nothing of the requests that are running."""
        super().follow(welcome)
        self._abandon(list(self.requests))

    def _abandon(self, episode_ids: list[str]) -> None:
        """Cancel requests; the engine aborts them, and nothing is sent."""
        for episode_id in episode_ids:
            if task := self.requests.pop(episode_id, None):
                task.cancel()

    async def answer(self, episode_id: str, message: Message) -> None:
        """Draw one response; raises where the engine is gone."""
        deadline_s = float(message.meta["deadline_s"])
        try:
            async with asyncio.timeout(deadline_s):
                generation = await self._engine.generate(_request(episode_id, message))
        except (TrimtabError, TimeoutError, MemoryError) as error:
            text = str(error) or f"no response within {deadline_s:g} s"
            await self._send("generate_failed", {"error": text, "kind": error_kind(error)}, episode_id)
            if not self._engine.alive:
                raise
            return
        self._num_tokens += len(generation.response_ids)
        await self._send(
            "episode",
            {
                "finish_reason": generation.finish_reason,
                "latency_s": generation.latency_s,
                "time_to_first_token_s": generation.time_to_first_token_s,
            },
            episode_id,
            generation,
        )

    async def _send(
        self, kind: str, meta: Mapping[str, Any], episode_id: str, generation: Generation | None = None
    ) -> None:
        arrays = {}
        if generation is not None:
            arrays = {
                "response_ids": generation.response_ids,
                "log_probs": generation.log_probs,
                "weight_versions": generation.weight_versions,
            }
        await self.link.send(Message(kind, {"episode_id": episode_id, **meta}, arrays), SEND_TIMEOUT_S)

    async def obey(self, command: pb.Command) -> None:
        """Carry a command out; raises where the engine is gone."""
        result = pb.CommandResult(key=command.key, ok=True)
        try:
            result.metrics.update(await self._carry_out(command))
        except (TrimtabError, TimeoutError) as error:
            logger.warning("%s failed: %s", command.key, error)
            result.ok, result.error, result.error_kind = False, str(error), error_kind(error)
        self.session.reply(result)
        if not self._engine.alive:
            raise EngineDeadError(result.error or "the engine ended")

    async def _carry_out(self, command: pb.Command) -> Mapping[str, float]:
        match command.WhichOneof("body"):
            case "join_weight_group":
                async with self._weights:
                    await self._engine.join(command.join_weight_group)
            case "transfer_weights":
                async with self._weights:
                    return await self._transfer(command.transfer_weights)
            case "leave_weight_group":
                async with self._weights:
                    await self._engine.leave(command.leave_weight_group.group)
            case "abort_generation":
                self._abandon(list(command.abort_generation.episode_ids) or list(self.requests))
            case other:
                raise TrimtabError(f"the rollout role does not know the command {other!r}")
        return {}

    async def _transfer(self, command: pb.TransferWeights) -> Mapping[str, float]:
        metrics = await self._engine.transfer(command)
        self.session.update_state(weight_version=command.version)
        logger.info("serving weights version %d after a pause of %.2f s", command.version, metrics["pause_s"])
        return metrics

    async def watch(self) -> None:
        """Keep gauges and activity up to date, and notice an engine that ended while idle."""
        before, tokens = time.monotonic(), 0
        while self._engine.alive:
            await asyncio.sleep(GAUGE_INTERVAL_S)
            now = time.monotonic()
            running = len(self.requests)
            gauges = {
                "worker/running": float(running),
                "rollout/throughput": (self._num_tokens - tokens) / (now - before),
            }
            before, tokens = now, self._num_tokens
            self.gauges.set_all(gauges)
            self.session.update_state(
                activity=f"generating {running} responses" if running else "idle", gauges=gauges
            )
        raise EngineDeadError("the rollout engine's process ended")


def _request(episode_id: str, message: Message) -> GenerationRequest:
    meta, sampling = message.meta, message.meta["sampling"]
    return GenerationRequest(
        request_id=episode_id,
        prompt_ids=np.asarray(message.arrays["prompt_ids"], np.int32),
        seed=int(meta["seed"]),
        max_tokens=int(meta["max_tokens"]),
        sampling=Sampling(
            temperature=float(sampling["temperature"]),
            top_p=float(sampling["topP"]),
            top_k=int(sampling["topK"]),
            min_p=float(sampling["minP"]),
            stop_token_ids=tuple(int(i) for i in sampling["stopTokenIds"]),
        ),
    )
