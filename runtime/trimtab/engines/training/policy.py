"""The model as the engine uses it: packed tokens in, log-probs at response positions out.

Called by the engine on the main thread. The computation is a method of the model itself, registered
with FSDP: only then are the root's parameters (embedding, final norm, head) gathered around it.
"""

import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from transformers import PreTrainedConfig, PreTrainedModel

from trimtab.engines.training import attention, loading
from trimtab.engines.training.attention import PackedLayout
from trimtab.engines.training.log_probs import HeadSettings, token_log_probs
from trimtab.engines.training.packing import MicroBatch
from trimtab.engines.training.settings import ModelSource, Precision

_METHOD = "response_log_probs"


@dataclass
class Policy:
    """A sharded causal LM with what was found out about it."""

    model: PreTrainedModel
    config: PreTrainedConfig
    folder: Path
    source: ModelSource
    device: torch.device

    @property
    def packs_prompts(self) -> bool:
        """Whether responses may share their prompt's tokens: only our own attention knows prefixes."""
        return bool(self.model.config._attn_implementation == attention.PACKED)

    def log_probs(self, micro_batch: MicroBatch, *, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of the R response tokens, float32, with gradients."""
        result: tuple[Tensor, Tensor] = getattr(self.model, _METHOD)(
            _model_inputs(micro_batch, self.model, self.device),
            predictor=torch.from_numpy(micro_batch.predictor).to(self.device),
            targets=torch.from_numpy(micro_batch.targets).to(self.device),
            temperature=temperature,
        )
        return result

    def share_backward_passes(self, *, last: bool) -> None:
        """Before each micro-batch of an update, where one rank holds all: nothing moves until the last.

        The parameters in the compute format are kept from one to the next, and gradients add up, in the
        reduction's format, before FSDP takes them. With several ranks that would cost the memory that
        sharding saves.
        """
        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(last)
        self.model.set_reshard_after_backward(last)


def build_policy(
    source: ModelSource,
    *,
    mesh: DeviceMesh | None,
    precision: Precision,
    device: torch.device,
    gradient_checkpointing: bool,
    with_weights: bool,
) -> Policy:
    """Build and shard the model; without weights its parameters are to be filled from a checkpoint.

    `mesh` None leaves the model whole, in this process alone (export).
    """
    folder, config = loading.read_config(source)
    model = loading.build_model(config, source, dtype=precision.parameters, device=device)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    setattr(model, _METHOD, types.MethodType(_response_log_probs, model))
    if mesh is not None:
        loading.shard(model, mesh, precision)
        register_fsdp_forward_method(model, _METHOD)
    loading.allocate(model, device)
    if with_weights:
        loading.load_weights(model, folder, source)
    return Policy(model, config, folder, source, device)


def _response_log_probs(
    self: PreTrainedModel,
    inputs: dict[str, Any],
    *,
    predictor: Tensor,
    targets: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    hidden = self.base_model(**inputs, use_cache=False).last_hidden_state[0]
    head: nn.Linear = self.get_output_embeddings()
    return token_log_probs(
        hidden.index_select(0, predictor),
        head.weight,
        head.bias,
        targets,
        temperature=temperature,
        settings=_head_settings(self.config),
    )


def _head_settings(config: PreTrainedConfig) -> HeadSettings:
    """Cohere multiplies its logits, Granite divides them, Gemma 2 caps them."""
    scale = getattr(config, "logit_scale", None) or 1.0
    divisor = getattr(config, "logits_scaling", None) or 1.0
    return HeadSettings(
        scale=float(scale) / float(divisor), softcap=getattr(config, "final_logit_softcapping", None)
    )


def _model_inputs(micro_batch: MicroBatch, model: PreTrainedModel, device: torch.device) -> dict[str, Any]:
    inputs: dict[str, Any] = {
        "input_ids": torch.from_numpy(micro_batch.token_ids)[None].to(device),
        "position_ids": torch.from_numpy(micro_batch.position_ids)[None].to(device),
    }
    implementation = model.config._attn_implementation
    if implementation == attention.PACKED:
        inputs["packed_layout"] = PackedLayout.build(micro_batch.segments, device)
    elif implementation.startswith("flash_attention"):
        ends = [segment.start + segment.length for segment in micro_batch.segments]
        offsets = torch.tensor([0, *ends], dtype=torch.int32, device=device)
        longest = max(segment.length for segment in micro_batch.segments)
        inputs |= {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets}
        inputs |= {"max_length_q": longest, "max_length_k": longest}
    return inputs
