"""What a rollout engine is: prompts in as token ids, responses out with log-probs and weight versions.

The rollout role drives one engine from its asyncio loop. Order of calls:

    start -> (generate* | join -> transfer* -> leave)* -> close

`generate` may be called concurrently, also while weights are transferred: those requests go on under the
new weights, and every token is stamped with the version that drew it. `join`, `transfer` and `leave` come
one at a time. After a failed transfer the engine generates nothing until a later one succeeds, because
its weights may be a mixture; `generate` waits meanwhile.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trimtab.episodes import FinishReason
from trimtab.errors import TrimtabError
from trimtab.v1 import control_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    """Beside the model's own EOS ids."""


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One response to draw."""

    request_id: str
    prompt_ids: NDArray[np.int32]
    seed: int
    """With the prompt, the sampling and the weights, all that a response depends on in the hf engine."""
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One response. Index t of each array speaks of response token t; a drawn stop token is the last one."""

    response_ids: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    """Of the drawn tokens, after temperature and truncation of the distribution."""
    weight_versions: NDArray[np.int32]
    finish_reason: FinishReason
    latency_s: float
    time_to_first_token_s: float


class InvalidRequestError(TrimtabError):
    """A request that this engine can never serve; the message says which limit it breaks."""

    kind = "invalid"


class EngineDeadError(TrimtabError):
    """The engine's process ended; the message says why where it left word. The worker must start again."""


class RolloutEngine(Protocol):
    """See the module's docstring for the order of calls."""

    @property
    def capacity(self) -> int:
        """Requests that it works on at once; more are queued inside."""

    @property
    def weight_version(self) -> int:
        """Version of the weights it serves; 0 is the model that it started from."""

    @property
    def alive(self) -> bool:
        """Whether it can generate at all; once False, it stays so."""

    async def start(self) -> None:
        """Load the model. UserError where it cannot be loaded as configured."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Draw one response. InvalidRequestError or EngineDeadError; cancelling it aborts the request."""

    async def abort(self, request_ids: list[str]) -> None:
        """End these requests now (all where empty): their `generate` returns what there is, as "abort"."""

    async def join(self, command: pb.JoinWeightGroup) -> None:
        """Become a member of a weight group; DeadlineError names who did not come."""

    async def transfer(self, command: pb.TransferWeights) -> dict[str, float]:
        """Receive a publication and serve it; returns metrics. Running requests go on under it."""

    async def leave(self, group: str) -> None:
        """Abandon the group; safe to repeat."""

    async def close(self) -> None:
        """Release everything; no process is left behind."""
