"""What an engine reads of a model's folder before it loads it. Pure file reading, any thread."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.api.model import ModelSpec
from trimtab.engines.rollout.protocol import GenerationRequest, InvalidRequestError
from trimtab.errors import UserError


@dataclass(frozen=True)
class ModelFacts:
    """A model's path and the numbers that bound what can be asked of it."""

    path: str
    """A folder that exists, else a hub id."""
    eos_token_ids: tuple[int, ...]
    """Every id that ends a response; empty where the model names none."""
    vocab_size: int
    max_position_embeddings: int | None
    """Longest sequence; None where the model sets no bound."""


def resolve_model_path(spec: ModelSpec, base_dir: Path, *, field: str = "spec.model.path") -> str:
    """The folder, where it exists relative to the job's file; else the text as a hub id."""
    folder = base_dir / Path(spec.path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(
                f"{field}: {spec.path!r} has no config.json: it must be a Hugging Face model folder"
            )
        return str(folder)
    if Path(spec.path).is_absolute() or spec.path.startswith((".", "~")) or spec.path.count("/") > 1:
        raise UserError(f"{field}: the folder {spec.path!r} does not exist (relative to {base_dir})")
    return spec.path


def read_model_facts(path: str, spec: ModelSpec, *, extra_eos: Iterable[int | None] = ()) -> ModelFacts:
    """Read config and generation config. `extra_eos`: the tokenizer's own end-of-sequence id."""
    from transformers import AutoConfig, GenerationConfig

    try:
        config = AutoConfig.from_pretrained(
            path, revision=spec.revision, trust_remote_code=spec.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"spec.model.path: {spec.path!r} cannot be loaded as a model: {str(error).splitlines()[0]}; "
            "give a folder in Hugging Face layout or a hub id"
        ) from error
    text = config.get_text_config()
    try:
        generation_eos = GenerationConfig.from_pretrained(path, revision=spec.revision or "main").eos_token_id
    except OSError:
        generation_eos = None
    eos = {*_ids(text.eos_token_id), *_ids(generation_eos), *(i for i in extra_eos if i is not None)}
    return ModelFacts(
        path=path,
        eos_token_ids=tuple(sorted(eos)),
        vocab_size=int(text.vocab_size),
        max_position_embeddings=getattr(text, "max_position_embeddings", None),
    )


def max_sequence_tokens(facts: ModelFacts, wanted: int, *, field: str) -> int:
    """The engine's longest sequence; a wish beyond the model's is a UserError that names the fields."""
    limit = facts.max_position_embeddings
    if limit is not None and wanted > limit:
        raise UserError(
            f"{field}: {wanted} tokens of prompt and response are wanted, but the model {facts.path!r} has "
            f"positions for {limit}; lower spec.data.maxPromptTokens or the response's maximum"
        )
    return wanted


def check_request(request: GenerationRequest, facts: ModelFacts, max_model_tokens: int) -> None:
    """Refuse what an engine would crash on, or take in another sense."""
    num_prompt = len(request.prompt_ids)
    if num_prompt == 0:
        raise InvalidRequestError("the prompt is empty")
    if num_prompt + 1 > max_model_tokens:
        raise InvalidRequestError(
            f"the prompt has {num_prompt} tokens, but the engine's longest sequence is {max_model_tokens}; "
            "lower spec.data.maxPromptTokens, or raise maxModelTokens of the engine"
        )
    if int(request.prompt_ids.max()) >= facts.vocab_size or int(request.prompt_ids.min()) < 0:
        raise InvalidRequestError(
            f"the prompt has token ids outside 0..{facts.vocab_size - 1}: is the tokenizer the model's?"
        )
    if request.max_tokens < 1:
        raise InvalidRequestError(f"max_tokens is {request.max_tokens}; at least one token must be drawn")


def _ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]
