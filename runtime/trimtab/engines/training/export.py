"""A model's tensors under their Hugging Face names, whole, one at a time.

Called by the engine, collectively, for weight transfer and for `trimtab export`. Only one whole
tensor is held at once; a tied head, being the embedding again, is left out.
"""

import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel

from trimtab.checkpoint.errors import storage_errors
from trimtab.checkpoint.manifest import write_atomically
from trimtab.engines.training.loading import resolve_folder
from trimtab.engines.training.settings import ModelSource
from trimtab.errors import UserError

logger = logging.getLogger(__name__)

_MAX_FILE_BYTES = 5_000_000_000


@dataclass(frozen=True)
class TensorInfo:
    """One entry of the manifest."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the whole tensor."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def manifest(model: nn.Module, dtype: torch.dtype) -> list[TensorInfo]:
    """What `whole_tensors` yields, in its order; the same on every rank."""
    return [TensorInfo(name, dtype, tuple(p.shape)) for name, p in model.named_parameters()]


def whole_tensors(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Each parameter, gathered over the ranks and cast before it is sent. Every rank must exhaust it."""
    for name, parameter in model.named_parameters():
        with torch.no_grad():  # not around the yield: it would hold for whoever takes the tensors
            cast = parameter.detach().to(dtype)
            whole = cast.full_tensor() if isinstance(cast, DTensor) else cast
        yield name, whole


def write_model(model: nn.Module, path: Path, *, dtype: torch.dtype, writes: bool) -> None:
    """Write the safetensors files; only the rank that `writes` keeps tensors, all take part."""
    plan = _plan_files(manifest(model, dtype))
    pending: dict[str, Tensor] = {}
    files = iter(plan)
    current = next(files)
    for name, tensor in whole_tensors(model, dtype):
        if not writes:
            continue
        pending[name] = tensor.cpu().clone() if tensor.device.type == "cpu" else tensor.cpu()
        if len(pending) == len(current[1]):
            with storage_errors(path):
                save_file(pending, path / current[0], metadata={"format": "pt"})
                follow_umask(path / current[0])
            pending = {}
            current = next(files, current)
    if writes and len(plan) > 1:
        index = {
            "metadata": {"total_size": sum(info.num_bytes for info in manifest(model, dtype))},
            "weight_map": {name: file for file, names in plan for name in names},
        }
        with storage_errors(path):
            write_atomically(path / "model.safetensors.index.json", json.dumps(index, indent=2))


def write_model_files(model: PreTrainedModel, source: ModelSource, path: Path, *, dtype: torch.dtype) -> None:
    """Configuration, generation settings, tokenizer and the model's own code where there is some.

    Readable by whom the umask allows.
    """
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        config = model.config.__class__.from_dict(model.config.to_dict())
        config.dtype = dtype
        config.architectures = [_original_class(model)]
        config.save_pretrained(path)
        generation: GenerationConfig | None = model.generation_config
        if generation is not None:
            generation.save_pretrained(path)
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                source.tokenizer_path or source.path,
                revision=source.tokenizer_revision or source.revision,
                trust_remote_code=source.trust_remote_code,
            )
        except (OSError, ValueError) as error:
            raise UserError(
                f"model.tokenizer.path: {source.tokenizer_path or source.path!r} has no tokenizer ({error})"
            ) from error
        if source.chat_template is not None:
            tokenizer.chat_template = source.chat_template
        tokenizer.save_pretrained(path)
        if source.trust_remote_code:  # what config.json's auto_map names
            for code in resolve_folder(source).glob("*.py"):
                shutil.copyfile(code, path / code.name)
        for file in path.iterdir():
            if file.is_file():
                follow_umask(file)


def _plan_files(infos: list[TensorInfo]) -> list[tuple[str, list[str]]]:
    groups: list[list[str]] = [[]]
    size = 0
    for info in infos:
        if groups[-1] and size + info.num_bytes > _MAX_FILE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(info.name)
        size += info.num_bytes
    if len(groups) == 1:
        return [("model.safetensors", groups[0])]
    return [(f"model-{i:05d}-of-{len(groups):05d}.safetensors", names) for i, names in enumerate(groups, 1)]


def _original_class(model: nn.Module) -> str:
    """The class's name without the prefix that fully_shard puts before it."""
    return next(cls.__name__ for cls in type(model).__mro__ if cls.__module__.split(".")[0] != "torch" and
                not cls.__name__.startswith("FSDP"))  # fmt: skip


def follow_umask(path: Path) -> None:
    """Some writers make files with mode 0600, which another pod's user cannot read."""
    probe = path.with_name(f".{path.name}.mode")
    probe.touch()
    try:
        path.chmod(probe.stat().st_mode & 0o777)
    finally:
        probe.unlink()
