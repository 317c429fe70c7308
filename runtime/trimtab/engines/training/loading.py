"""Build a Hugging Face causal LM, sharded, without any rank ever holding the whole of it.

Called by the engine once per model, on every rank. The order matters:
    configuration, tokenizer     cheap, and where a user's mistakes show
    model on the meta device     shapes only; buffers are real
    fully_shard                  parameters become DTensors, still without storage
    storage, then weights        each rank reads its own slices from the safetensors files
"""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from trimtab.engines.training import attention
from trimtab.engines.training.settings import ModelSource, Precision
from trimtab.errors import UserError

logger = logging.getLogger(__name__)

_CAUSAL_SUFFIXES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def read_config(source: ModelSource) -> tuple[Path, PreTrainedConfig]:
    """The model's folder and configuration; raises `UserError` where it is no causal language model."""
    folder = resolve_folder(source)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=source.trust_remote_code)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{source.field}: {source.path!r} is no Hugging Face model ({_first_line(error)}); "
            "give a folder with config.json and safetensors files, or a hub id"
        ) from error
    architectures = config.architectures or []
    if architectures and not any(name.endswith(_CAUSAL_SUFFIXES) for name in architectures):
        raise UserError(
            f"{source.field}: {source.path!r} is a {architectures[0]}, not a causal language model; "
            "give a model whose architecture ends with ForCausalLM"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise UserError(
            f"{source.field}: {source.path!r} is quantised and cannot be trained; give its original"
        )
    if "linear_attention" in (getattr(config, "layer_types", None) or []):
        raise UserError(
            f"{source.field}: {source.path!r} has recurrent layers, through which packed sequences would "
            "leak into each other; give a model with attention layers alone"
        )
    return folder, config


def resolve_folder(source: ModelSource) -> Path:
    """The folder itself, or the snapshot of a hub id (downloaded where the hub can be reached)."""
    folder = Path(source.path)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.py"]
        return Path(snapshot_download(source.path, revision=source.revision, allow_patterns=patterns))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise UserError(
            f"{source.field}: {source.path!r} is neither an existing folder nor a model on the hub that "
            f"can be reached ({type(error).__name__}); check the spelling, or give the folder"
        ) from error


def choose_attention(name: str, device: torch.device) -> str:
    """What `model.attention` stands for on this device."""
    if name != "auto":
        return name
    if device.type == "cuda" and _has_flash_attention():
        return "flash_attention_2"
    return attention.PACKED


def build_model(
    config: PreTrainedConfig, source: ModelSource, *, dtype: torch.dtype, device: torch.device
) -> PreTrainedModel:
    """The model with parameters on the meta device, dropout off."""
    attention.register()
    chosen = choose_attention(source.attention, device)
    try:
        with init_empty_weights(include_buffers=False):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                config,
                dtype=dtype,
                attn_implementation=chosen,
                trust_remote_code=source.trust_remote_code,
            )
    except ImportError as error:
        raise UserError(
            f"model.attention: {chosen!r} cannot be used here ({_first_line(error)}); use auto, or install it"
        ) from error
    except ValueError as error:
        raise UserError(
            f"{source.field}: {source.path!r} cannot use attention {chosen!r}: {_first_line(error)}"
        ) from error
    model.tie_weights()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010 - not declared by nn.Module
    return model


def find_blocks(model: PreTrainedModel) -> list[nn.Module]:
    """The repeated transformer blocks: the unit of sharding.

    Those that the model says must not be split, else the members of its largest list of modules.
    """
    names = set(model._no_split_modules or ())
    blocks = [module for module in model.modules() if type(module).__name__ in names]
    if blocks:
        return blocks
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]

    if not lists:
        return []
    sizes = [sum(p.numel() for p in found.parameters()) for found in lists]
    return list(lists[sizes.index(max(sizes))])


def shard(model: PreTrainedModel, mesh: DeviceMesh, precision: Precision) -> None:
    """Apply FSDP2, so that gradients are sums over the ranks."""
    policy = MixedPrecisionPolicy(param_dtype=precision.compute, reduce_dtype=precision.reduction)
    alone = mesh.size() == 1
    for block in find_blocks(model):
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=not alone)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            if not alone:  # a sum over one rank needs no factor, for which FSDP would copy all gradients
                module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(enable=True)  # gloo has no scaled sum


def allocate(model: nn.Module, device: torch.device) -> None:
    """Give parameters storage and move buffers; the values of parameters are arbitrary afterwards."""
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    first_names: dict[int, str] = {}
    shared = {
        name: first
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if (first := first_names.setdefault(id(parameter), name)) != name
    }
    model.to_empty(device=device)
    for name, first in shared.items():  # tied weights, which to_empty has torn apart
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, model.get_parameter(first))
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def load_weights(model: PreTrainedModel, folder: Path, source: ModelSource) -> None:
    """Fill the parameters, each rank reading its own slices."""
    names = tensor_files(folder)
    wanted = {name: _stored_name(name, names, model) for name, _ in model.named_parameters()}
    missing = sorted(name for name, stored in wanted.items() if stored is None)
    if missing:
        logger.warning(
            "%s does not store %s and %d more under the model's own names: every rank loads all of it and "
            "keeps its part", folder, missing[0], len(missing) - 1,
        )  # fmt: skip
        _load_whole(model, folder, source)
        return
    by_file: dict[Path, list[str]] = {}
    for name, stored in wanted.items():
        assert stored is not None
        by_file.setdefault(names[stored], []).append(name)
    parameters = dict(model.named_parameters())
    for file, members in by_file.items():
        try:
            with safe_open(file, framework="pt") as content:
                for name in members:
                    view = content.get_slice(wanted[name])
                    _check_shape(name, tuple(view.get_shape()), parameters[name], source)
                    _fill(parameters[name], view.__getitem__)
        except SafetensorError as error:
            raise UserError(f"{source.field}: {file} is not a readable safetensors file ({error})") from error


def tensor_files(folder: Path) -> dict[str, Path]:
    """Which safetensors file of a model holds a tensor; empty where it has none."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
        return {name: folder / file for name, file in weight_map.items()}
    single = folder / "model.safetensors"
    if not single.exists():
        return {}
    try:
        with safe_open(single, framework="pt") as content:
            return dict.fromkeys(content.keys(), single)
    except SafetensorError as error:
        raise UserError(f"{single} is not a readable safetensors file ({error})") from error


def local_slices(parameter: Tensor) -> tuple[slice, ...]:
    """Which part of the whole tensor this rank holds."""
    if not isinstance(parameter, DTensor):
        return tuple(slice(0, size) for size in parameter.shape)
    shape, offset = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    return tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))


def local_tensor(parameter: Tensor) -> Tensor:
    """What this rank holds of a parameter, as a view."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _fill(parameter: Tensor, read: Callable[[tuple[slice, ...]], Tensor]) -> None:
    local = local_tensor(parameter.detach())
    if local.numel():
        local.copy_(read(local_slices(parameter)))


def _stored_name(name: str, stored: dict[str, Path], model: PreTrainedModel) -> str | None:
    if name in stored:
        return name
    for first, second in _tied_pairs(model):
        for own, other in ((first, second), (second, first)):
            if name == own and other in stored:
                return other
    return None


def _tied_pairs(model: PreTrainedModel) -> Iterator[tuple[str, str]]:
    tied: Any = model._tied_weights_keys or {}
    if isinstance(tied, dict) and model.config.tie_word_embeddings:
        yield from tied.items()


def _load_whole(model: PreTrainedModel, folder: Path, source: ModelSource) -> None:
    """For layouts that transformers converts while it loads, and for formats other than safetensors."""
    try:
        whole = AutoModelForCausalLM.from_pretrained(
            folder, dtype=model.dtype, trust_remote_code=source.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"{source.field}: the weights of {source.path!r} cannot be read ({_first_line(error)})"
        ) from error
    values = dict(whole.named_parameters())
    for name, parameter in model.named_parameters():
        _fill(parameter, values[name].detach().__getitem__)


def _check_shape(name: str, found: tuple[int, ...], parameter: Tensor, source: ModelSource) -> None:
    if found != tuple(parameter.shape):
        raise UserError(
            f"{source.field}: {name} has shape {list(found)} in the weights, {list(parameter.shape)} by "
            "config.json; the two do not belong together"
        )


def _has_flash_attention() -> bool:
    from transformers.utils.import_utils import is_flash_attn_2_available

    return bool(is_flash_attn_2_available())


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
