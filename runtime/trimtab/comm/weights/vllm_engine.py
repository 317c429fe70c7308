"""Receiving weights inside vLLM's worker processes. Written for vLLM 0.32; runs on a worker's main thread.

`VllmEngine` (engines/rollout) calls `WorkerExtension`'s methods on all workers of an engine at once by
vLLM's `collective_rpc`, while generation is paused:

    trimtab_join -> trimtab_receive (any number of times) -> trimtab_leave

Each returns an outcome instead of raising, because an exception would cross vLLM's processes as text
alone and its kind would be lost. A failed publication leaves the model a mixture of old and new weights:
the caller keeps the engine paused until a later publication has succeeded.
"""

import logging
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import layerwise

from trimtab.comm.weights.group import WeightGroup
from trimtab.comm.weights.manifest import manifest_from_dict
from trimtab.comm.weights.transfer import Received, receive
from trimtab.errors import TrimtabError

_log = logging.getLogger(__name__)


@dataclass
class JoinInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Which group to join, as `WeightGroup.join` takes it; worker i takes rank `first_rank + i`."""

    group: str
    backend: str
    store_host: str
    store_port: int
    first_rank: int
    world_size: int
    timeout_s: float


@dataclass
class PublicationInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Which publication to receive."""

    group: str
    version: int
    manifest: dict[str, Any]
    timeout_s: float


@dataclass(frozen=True)
class Outcome:
    """How a call went on one worker: crosses processes as a dict."""

    ok: bool = True
    kind: str = ""
    error: str = ""
    metrics: dict[str, float] = field(default_factory=dict)


class TrimtabWeightTransferEngine(WeightTransferEngine[JoinInfo, PublicationInfo]):  # type: ignore[misc]
    """Our engine in vLLM's factory: whole publications in checkpoint format over a `WeightGroup`."""

    init_info_cls = JoinInfo
    update_info_cls = PublicationInfo
    supports_draft_weight_update = False

    group: WeightGroup | None = None
    received: Received | None = None
    """The publication of the running update, once it is here in full."""

    def init_transfer_engine(self, init_info: JoinInfo) -> None:
        """Join a group, leaving the one before."""
        self.shutdown()
        worker = self.parallel_config.data_parallel_index * self.parallel_config.world_size
        self.group = WeightGroup.join(
            init_info.group,
            backend=init_info.backend,
            store_host=init_info.store_host,
            store_port=init_info.store_port,
            rank=init_info.first_rank + worker + self.parallel_config.rank,
            world_size=init_info.world_size,
            timeout_s=init_info.timeout_s,
            device=self.device,
        )

    def start_weight_update(self) -> None:
        """Prepare every layer for being loaded anew."""
        self.received = None
        with torch.device(self.device):
            layerwise.initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: PublicationInfo) -> None:
        """Take the publication; each layer is put in place as soon as it is complete."""
        if self.group is None or self.group.name != update_info.group:
            raise TrimtabError(
                f"told to receive over weight group {update_info.group!r}, but is "
                + ("in no group" if self.group is None else f"in {self.group.name!r}")
            )

        def load(tensors: list[tuple[str, torch.Tensor]]) -> None:
            with torch.device(self.device):
                self.model.load_weights(weights=tensors)

        self.received = receive(
            self.group,
            update_info.version,
            manifest_from_dict(update_info.manifest),
            load,
            timeout_s=update_info.timeout_s,
        )

    def finish_weight_update(self) -> None:
        """Put the last layers in place; after a failure, give the incomplete ones their old tensors back."""
        if self.received is None:
            _give_back_incomplete_layers(self.model)
            return
        with torch.device(self.device):
            layerwise.finalize_layerwise_reload(self.model, self.model_config)
        _rebuild_packed_heads(self.model)

    def shutdown(self) -> None:
        """Leave the group."""
        if self.group is not None:
            self.group.abort()
            self.group = None


def _give_back_incomplete_layers(model: torch.nn.Module) -> None:
    """End a reload half way without processing what is half loaded, so that the next one can start."""
    for layer in model.modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load() and info.kernel_tensors is not None:
            layerwise._place_kernel_tensors(layer, info)
        info.reset()
    layerwise.LOADING_LAYERS.clear()


def _rebuild_packed_heads(model: torch.nn.Module) -> None:
    """On a CPU the head multiplies by a packed copy of its weight, which a reload leaves as it was.

    vLLM rebuilds the copy of a layer that has been loaded; a head tied to the embedding never is one.
    """
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding) and hasattr(module, "cpu_linear"):
            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

            dispatch_cpu_unquantized_gemm(module, remove_weight=False)


class WorkerExtension:
    """Methods that vLLM mixes into its worker class (`worker_extension_cls`)."""

    weight_transfer_engine: TrimtabWeightTransferEngine

    def trimtab_join(self, info: dict[str, Any]) -> dict[str, Any]:
        """Join a weight group."""
        try:
            self.init_weight_transfer_engine(info)  # type: ignore[attr-defined]
        except TrimtabError as error:
            return _failed(error)
        return asdict(Outcome())

    def trimtab_receive(self, info: dict[str, Any]) -> dict[str, Any]:
        """Receive one publication: start, update and finish."""
        self.start_weight_update()  # type: ignore[attr-defined]
        try:
            self.update_weights(info)  # type: ignore[attr-defined]
        except TrimtabError as error:
            # vLLM's worker has closed the update already: only the model is left to be put in order.
            self.weight_transfer_engine.finish_weight_update()
            return _failed(error)
        self.finish_weight_update()  # type: ignore[attr-defined]
        received = self.weight_transfer_engine.received
        assert received is not None
        return asdict(Outcome(metrics={"bytes": float(received.num_bytes), "receive_s": received.seconds}))

    def trimtab_leave(self) -> dict[str, Any]:
        """Abandon the group, if any."""
        self.weight_transfer_engine.shutdown()
        return asdict(Outcome())


def _failed(error: TrimtabError) -> dict[str, Any]:
    _log.warning("%s", error)
    return asdict(Outcome(ok=False, kind=error.kind, error=str(error)))
