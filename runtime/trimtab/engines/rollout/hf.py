"""transformers as a rollout engine, for debugging and for tests that compare numbers.

Made by the rollout role; the public methods run on its asyncio loop, the model on one thread of the
engine's own. Each request is drawn by itself, batch of one, with its own random generator: what it yields
depends on its prompt, seed, sampling and the weights, and not on what else is running or when it came.
That makes runs repeatable bit for bit, and slow.

Between two tokens the thread lets a transfer of weights pass; a response that was under way is then
continued under the new weights, its key-value cache computed anew.
"""

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from trimtab.api.roles import HfSpec
from trimtab.comm.control import error_kind
from trimtab.comm.weights import WeightGroup, receive
from trimtab.engines.rollout.model_files import ModelFacts, check_request
from trimtab.engines.rollout.protocol import Generation, GenerationRequest
from trimtab.engines.rollout.sampling import draw, processed_log_probs
from trimtab.episodes import FinishReason
from trimtab.errors import OutOfMemoryError, TrimtabError, UserError
from trimtab.v1 import control_pb2 as pb

_log = logging.getLogger(__name__)


@dataclass
class _Running:
    """A request on its way: what the loop and the engine's thread share of it."""

    request: GenerationRequest
    arrived: float
    aborted: threading.Event = field(default_factory=threading.Event)


class HfEngine:
    """A RolloutEngine (see protocol.py) over a transformers model."""

    def __init__(
        self,
        spec: HfSpec,
        facts: ModelFacts,
        *,
        max_model_tokens: int,
        on_gpu: bool,
        trust_remote_code: bool = False,
        revision: str | None = None,
    ) -> None:
        self._spec = spec
        self._facts = facts
        self._max_model_tokens = max_model_tokens
        self._device = torch.device("cuda" if on_gpu else "cpu")
        self._loading = {"trust_remote_code": trust_remote_code, "revision": revision}
        self._model: Any = None
        self._version = 0
        self._group: WeightGroup | None = None
        self._running: dict[str, _Running] = {}
        self._drawing = ThreadPoolExecutor(1, thread_name_prefix="hf-engine")
        # Held while a token is computed and while weights change.
        self._weights = threading.Lock()
        # Cleared from the start of a transfer until one has succeeded.
        self._whole = threading.Event()
        self._whole.set()
        self._closed = False

    @property
    def capacity(self) -> int:
        """`maxConcurrentRequests`; they are drawn one after another."""
        return self._spec.max_concurrent_requests

    @property
    def weight_version(self) -> int:
        """Version of the weights it serves."""
        return self._version

    @property
    def alive(self) -> bool:
        """Until closed: it has no process that could end by itself."""
        return not self._closed

    async def start(self) -> None:
        """Load the model."""
        await asyncio.to_thread(self._load)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Draw one response, after those that came before."""
        check_request(request, self._facts, self._max_model_tokens)
        running = _Running(request, time.monotonic())
        self._running[request.request_id] = running
        try:
            return await asyncio.get_running_loop().run_in_executor(self._drawing, self._draw, running)
        except (RuntimeError, MemoryError) as error:
            if error_kind(error) != OutOfMemoryError.kind:
                raise
            raise OutOfMemoryError(
                f"out of memory while generating: {error}; lower spec.training.maxResponseTokens"
            ) from error
        finally:
            running.aborted.set()
            self._running.pop(request.request_id, None)

    async def abort(self, request_ids: list[str]) -> None:
        """End these requests, or all, before their next token."""
        for request_id in request_ids or list(self._running):
            if running := self._running.get(request_id):
                running.aborted.set()

    async def join(self, command: pb.JoinWeightGroup) -> None:
        """Take the group's rank `first_rank`."""
        await self.leave("")
        self._group = await asyncio.to_thread(
            WeightGroup.join,
            command.group,
            backend=command.backend,
            store_host=command.store_host,
            store_port=command.store_port,
            rank=command.first_rank,
            world_size=command.world_size,
            timeout_s=command.timeout_s,
            device=self._device,
        )

    async def transfer(self, command: pb.TransferWeights) -> dict[str, float]:
        """Receive between two tokens, copy into the parameters, go on."""
        if self._group is None or self._group.name != command.group:
            raise TrimtabError(f"told to receive over weight group {command.group!r}, which was not joined")
        return await asyncio.to_thread(self._transfer, self._group, command)

    async def leave(self, group: str) -> None:
        """Abandon the group, whichever it is."""
        del group
        if self._group is not None:
            self._group.abort()
            self._group = None

    async def close(self) -> None:
        """End all requests and the thread."""
        self._closed = True
        await self.abort([])
        await self.leave("")
        self._drawing.shutdown(wait=False, cancel_futures=True)

    def _load(self) -> None:
        from transformers import AutoModelForCausalLM

        try:
            self._model = AutoModelForCausalLM.from_pretrained(
                self._facts.path, dtype=getattr(torch, self._spec.dtype), **self._loading
            )
        except (OSError, ValueError) as error:
            raise UserError(f"spec.model.path: cannot load {self._facts.path!r}: {error}") from error
        self._model.to(self._device).eval().requires_grad_(requires_grad=False)

    def _transfer(self, group: WeightGroup, command: pb.TransferWeights) -> dict[str, float]:
        parameters = dict(self._model.named_parameters(remove_duplicate=False))

        def load(tensors: list[tuple[str, torch.Tensor]]) -> None:
            with torch.no_grad():
                for name, tensor in tensors:
                    parameters[name].copy_(tensor)

        with self._weights:
            start = time.monotonic()
            self._whole.clear()
            received = receive(group, command.version, command.manifest, load, timeout_s=command.timeout_s)
            self._version = command.version
            self._whole.set()
        return {
            "bytes": float(received.num_bytes),
            "receive_s": received.seconds,
            "pause_s": time.monotonic() - start,
        }

    @torch.inference_mode()
    def _draw(self, running: _Running) -> Generation:
        request, sampling = running.request, running.request.sampling
        room = self._max_model_tokens - len(request.prompt_ids)
        limit = min(request.max_tokens, room)
        stops = {*self._facts.eos_token_ids, *sampling.stop_token_ids}
        generator = torch.Generator().manual_seed(request.seed & (2**63 - 1))
        tokens = request.prompt_ids.tolist()
        ids: list[int] = []
        log_probs: list[float] = []
        versions: list[int] = []
        first: float | None = None
        cache: Any = None
        cache_version = -1
        reason: FinishReason = "length"
        while len(ids) < limit:
            if not self._may_go_on(running):
                reason = "abort"
                break
            with self._weights:
                if not self._whole.is_set():
                    continue
                if cache_version != self._version:
                    cache, cache_version = None, self._version
                new = tokens if cache is None else tokens[-1:]
                output = self._model(
                    input_ids=torch.tensor([new], device=self._device),
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
            cache = output.past_key_values
            processed = processed_log_probs(output.logits[0, -1].cpu(), sampling)
            token = draw(processed, sampling, generator)
            tokens.append(token)
            ids.append(token)
            log_probs.append(float(processed[token]))
            versions.append(cache_version)
            first = first or time.monotonic()
            if token in stops:
                reason = "stop"
                break
        end = time.monotonic()
        return Generation(
            response_ids=np.asarray(ids, np.int32),
            log_probs=np.asarray(log_probs, np.float32),
            weight_versions=np.asarray(versions, np.int32),
            finish_reason=reason,
            latency_s=end - running.arrived,
            time_to_first_token_s=(first or end) - running.arrived,
        )

    def _may_go_on(self, running: _Running) -> bool:
        """Wait while the weights are not whole; False once the request is over or the engine closed."""
        while not running.aborted.is_set() and not self._closed:
            if self._whole.wait(timeout=0.05):
                return True
        return False
