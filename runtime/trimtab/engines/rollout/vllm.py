"""vLLM as a rollout engine: AsyncLLM here, its engine core (and tensor-parallel workers) as processes.

Made by the rollout role on the main thread; everything runs on the role's asyncio loop. `start` blocks
that loop while vLLM loads: heartbeats have their own thread. `import vllm` takes about ten seconds, so it
happens in `start` and nowhere else.

Weight versions are vLLM's own labels: set while the engine is paused after each publication, attached by
the engine core to every output, returned as spans over a response's tokens.

The processes end with this one even if it is killed (`comm/weights/vllm_plugin.py`); while they are still
importing vLLM they cannot see to it themselves, and the agent ends what is left below it.
"""

import asyncio
import json
import logging
import os
import tempfile
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trimtab.comm.weights.manifest import manifest_to_dict
from trimtab.comm.weights.vllm_plugin import BACKEND, EXTENSION
from trimtab.engines.rollout.model_files import ModelFacts, check_request
from trimtab.engines.rollout.protocol import (
    EngineDeadError,
    Generation,
    GenerationRequest,
    InvalidRequestError,
)
from trimtab.engines.rollout.vllm_process import engine_environment
from trimtab.errors import DeadlineError, OutOfMemoryError, TrimtabError, UserError
from trimtab.v1 import control_pb2 as pb

if TYPE_CHECKING:
    from trimtab.api.roles import VllmSpec

_log = logging.getLogger(__name__)

_CPU_KV_CACHE_BYTES = 1 << 30
_CPU_BLOCK_SIZE = 32
_CPU_BATCHED_TOKENS = 8192
_FIRST_AND_FINAL = 1 << 20
"""Stream interval in tokens: an output for the first token (for its time) and one for the whole."""
_RPC_MARGIN_S = 30.0
"""A worker that has missed its own deadline answers within this; one that does not is dead or stuck."""

_SHUTDOWN_S = 3.0
"""Grace for the engine core, which has nothing to save, before it is killed."""


class VllmEngine:
    """A RolloutEngine (see protocol.py) over vLLM's AsyncLLM."""

    def __init__(
        self,
        spec: "VllmSpec",
        facts: ModelFacts,
        *,
        max_model_tokens: int,
        on_gpu: bool,
        seed: int = 0,
        tokenizer: str | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
    ) -> None:
        self._spec = spec
        self._facts = facts
        self._max_model_tokens = max_model_tokens
        self._on_gpu = on_gpu
        self._arguments: dict[str, Any] = {
            "model": facts.path,
            "tokenizer": tokenizer or facts.path,
            "revision": revision,
            "trust_remote_code": trust_remote_code,
            "seed": seed,
        }
        self._engine: Any = None
        self._version = 0
        self._fault_file = Path(tempfile.gettempdir()) / f"trimtab-engine-fault-{os.getpid()}-{id(self)}.json"

    @property
    def capacity(self) -> int:
        """`maxConcurrentRequests`."""
        return self._spec.max_concurrent_requests

    @property
    def weight_version(self) -> int:
        """Version of the weights it serves."""
        return self._version

    @property
    def alive(self) -> bool:
        """Whether vLLM's processes are there."""
        return self._engine is not None and not self._engine.errored

    async def start(self) -> None:
        """Start the engine's processes; 4 to 30 s on a CPU. Must run on the main thread."""
        self._fault_file.unlink(missing_ok=True)
        with engine_environment(
            on_gpu=self._on_gpu,
            tensor_parallel_size=self._spec.tensor_parallel_size,
            fault_file=self._fault_file,
        ):
            try:
                from vllm.engine.arg_utils import AsyncEngineArgs
                from vllm.v1.engine.async_llm import AsyncLLM
            except ImportError as error:
                raise UserError(
                    f"roles.rollout.engine.vllm: vLLM is not installed here ({error}); install the extra "
                    "`trimtab[rollout]` (GPU) or `trimtab[rollout-cpu]`, or use `engine: {hf: {}}`"
                ) from error
            arguments = self._engine_arguments(set(AsyncEngineArgs.__dataclass_fields__))
            try:
                config = AsyncEngineArgs(**arguments).create_engine_config()
            except (ValueError, TypeError) as error:
                raise UserError(
                    f"roles.rollout.engine.vllm: vLLM refuses this configuration: {error}"
                ) from error
            try:
                self._engine = AsyncLLM.from_vllm_config(
                    config, enable_log_requests=False, disable_log_stats=True
                )
            except RuntimeError as error:
                raise self._death("vLLM did not start", starting=True) from error
        await self._engine.update_weight_version(str(self._version))

    async def generate(self, request: GenerationRequest) -> Generation:
        """Draw one response; also waits out a transfer that is going on."""
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError

        check_request(request, self._facts, self._max_model_tokens)
        start = time.monotonic()
        first: float | None = None
        ids: list[int] = []
        log_probs: list[float] = []
        completion: Any = None
        try:
            async for output in self._engine.generate(
                tokens_input(request.prompt_ids.tolist()), self._sampling_params(request), request.request_id
            ):
                completion = output.outputs[0]
                if completion.token_ids:
                    first = first or time.monotonic()
                    ids.extend(completion.token_ids)
                    log_probs.extend(_drawn_log_probs(completion.logprobs))
        except VllmDeadError as error:
            raise self._death("vLLM's engine died while generating") from error
        except VLLMClientError as error:
            raise InvalidRequestError(f"vLLM refuses the request: {error}") from error
        end = time.monotonic()
        assert len(log_probs) == len(ids)
        return Generation(
            response_ids=np.asarray(ids, np.int32),
            log_probs=np.asarray(log_probs, np.float32),
            weight_versions=_versions(completion.weight_versions, len(ids), self._version),
            finish_reason=_finish_reason(completion.finish_reason),
            latency_s=end - start,
            time_to_first_token_s=(first or end) - start,
        )

    async def abort(self, request_ids: list[str]) -> None:
        """End these requests, or all."""
        states = self._engine.output_processor.request_states.values()
        await self._engine.abort(request_ids or [state.external_req_id for state in states])

    async def join(self, command: pb.JoinWeightGroup) -> None:
        """Every worker of the engine takes a rank of the group."""
        info = {
            "group": command.group,
            "backend": command.backend,
            "store_host": command.store_host,
            "store_port": command.store_port,
            "first_rank": command.first_rank,
            "world_size": command.world_size,
            "timeout_s": command.timeout_s,
        }
        await self._call("trimtab_join", info, timeout_s=command.timeout_s, doing=f"joining {command.group}")

    async def transfer(self, command: pb.TransferWeights) -> dict[str, float]:
        """Pause with requests kept and caches cleared, receive, label, go on.

        After a failure the engine stays paused, as its weights may be a mixture; the next transfer that
        succeeds sets it going again.
        """
        start = time.monotonic()
        await self._while_alive(
            self._engine.pause_generation(mode="keep", clear_cache=True),
            timeout_s=command.timeout_s,
            doing="pausing",
        )
        metrics = await self._call(
            "trimtab_receive",
            {
                "group": command.group,
                "version": command.version,
                "manifest": manifest_to_dict(command.manifest),
                "timeout_s": command.timeout_s,
            },
            timeout_s=command.timeout_s,
            doing=f"receiving version {command.version}",
        )
        await self._engine.update_weight_version(str(command.version))
        self._version = command.version
        await self._engine.resume_generation()
        return metrics | {"pause_s": time.monotonic() - start}

    async def leave(self, group: str) -> None:
        """Abandon the group."""
        await self._call("trimtab_leave", timeout_s=_RPC_MARGIN_S, doing=f"leaving {group}")

    async def close(self) -> None:
        """Shut the engine's processes down."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown(timeout=_SHUTDOWN_S)
            engine.engine_core.resources.ctx.destroy(linger=0)  # which vLLM leaves open
        self._fault_file.unlink(missing_ok=True)

    async def _call(
        self, method: str, *args: dict[str, Any], timeout_s: float, doing: str
    ) -> dict[str, float]:
        """Run one of our methods in every worker; raises the first failure with its kind."""
        outcomes = await self._while_alive(
            self._engine.collective_rpc(method, args=args), timeout_s=timeout_s + _RPC_MARGIN_S, doing=doing
        )
        for outcome in outcomes:
            if not outcome["ok"]:
                failure = DeadlineError if outcome["kind"] == DeadlineError.kind else TrimtabError
                raise failure(outcome["error"])
        metrics: dict[str, float] = outcomes[0]["metrics"]
        return metrics

    async def _while_alive(self, work: Coroutine[Any, Any, Any], *, timeout_s: float, doing: str) -> Any:
        """Wait for an answer of the engine core, which vLLM itself does for ever where the core has died."""
        from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError

        task = asyncio.ensure_future(work)
        try:
            # vLLM's task that takes outputs ends when the core does.
            await asyncio.wait(
                {task, self._engine.output_handler}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if task.done():
                return task.result()
            if not self.alive:
                raise self._death(f"vLLM's engine died while {doing}")
            raise DeadlineError(f"vLLM's engine did not answer within {timeout_s:g} s while {doing}")
        except VllmDeadError as error:
            raise self._death(f"vLLM's engine died while {doing}") from error
        finally:
            task.cancel()

    def _sampling_params(self, request: GenerationRequest) -> Any:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        sampling = request.sampling
        room = self._max_model_tokens - len(request.prompt_ids)
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=request.seed & (2**63 - 1),
            stop_token_ids=sorted({*self._facts.eos_token_ids, *sampling.stop_token_ids}),
            max_tokens=min(request.max_tokens, room),
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            skip_clone=True,
            output_kind=RequestOutputKind.DELTA,
            stream_interval=_FIRST_AND_FINAL,
        )

    def _engine_arguments(self, known: set[str]) -> dict[str, Any]:
        spec = self._spec
        arguments = self._arguments | {
            "dtype": spec.dtype,
            "tensor_parallel_size": spec.tensor_parallel_size,
            "max_model_len": self._max_model_tokens,
            "max_num_seqs": spec.max_concurrent_requests,
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # the model's own sampling defaults must not leak in
            "logprobs_mode": "processed_logprobs",
            "enable_prefix_caching": True,
            "enforce_eager": not self._on_gpu if spec.enforce_eager is None else spec.enforce_eager,
            "weight_transfer_config": {"backend": BACKEND},
            "worker_extension_cls": EXTENSION,
            "gpu_memory_utilization": spec.gpu_memory_utilization,
        }
        block_size = spec.block_size or (None if self._on_gpu else _CPU_BLOCK_SIZE)
        kv_bytes = spec.kv_cache_bytes or (None if self._on_gpu else _CPU_KV_CACHE_BYTES)
        if block_size is not None:
            arguments["block_size"] = block_size
        if kv_bytes is not None:
            arguments["kv_cache_memory_bytes"] = kv_bytes
        if not self._on_gpu:
            # A prompt prefilled in parts rewinds its request's generator, which vLLM can only do on a GPU:
            # on a CPU the engine would die ("CPU Generator does not use offset").
            most = spec.max_concurrent_requests * self._max_model_tokens
            least = max(spec.max_concurrent_requests, self._max_model_tokens)
            arguments["enable_chunked_prefill"] = False
            arguments["max_num_batched_tokens"] = max(least, min(_CPU_BATCHED_TOKENS, most))
        unknown = sorted(set(spec.engine_arguments) - known)
        if unknown:
            raise UserError(
                f"roles.rollout.engine.vllm.engineArguments: vLLM has no argument {unknown[0]!r}; "
                "the names are those of `vllm.AsyncEngineArgs`, with underscores"
            )
        return arguments | dict(spec.engine_arguments)

    def _death(self, message: str, *, starting: bool = False) -> TrimtabError:
        """The error for an engine that is gone, with what its processes left word of."""
        if not self._fault_file.exists():
            return EngineDeadError(f"{message}; its own last words are in this worker's log")
        fault = json.loads(self._fault_file.read_text(encoding="utf-8"))
        text = f"{message}: {fault['error']}"
        if fault["kind"] == OutOfMemoryError.kind:
            return OutOfMemoryError(
                f"{text}; lower roles.rollout.engine.vllm.gpuMemoryUtilization, kvCacheBytes or "
                "maxConcurrentRequests"
            )
        if starting and fault["kind"] == "value":
            return UserError(f"roles.rollout.engine.vllm: {text}")
        return EngineDeadError(text)


def _drawn_log_probs(logprobs: Any) -> list[float]:
    """Of a FlatLogprobs: a position's drawn token comes first among what vLLM returns for it."""
    return [logprobs.logprobs[start] for start in logprobs.start_indices]


def _versions(spans: Sequence[Any] | None, count: int, current: int) -> "np.ndarray[Any, np.dtype[np.int32]]":
    versions = np.full(count, current, np.int32)
    for span in spans or ():
        versions[span.start : span.end] = int(span.version)
    return versions


def _finish_reason(reason: str) -> Any:
    if reason not in ("stop", "length", "abort"):
        raise EngineDeadError(f"vLLM ended a request with {reason!r}")
    return reason
