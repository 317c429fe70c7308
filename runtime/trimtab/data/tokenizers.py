"""The job's tokenizer and its end-of-sequence ids.

`load_tokenizer` is called by the coordinator (prompts, decoding for rewards) and by the export;
`eos_token_ids` by the rollout too. transformers is imported inside: it takes seconds.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.errors import UserError

if TYPE_CHECKING:
    from trimtab.api.model import ModelSpec


def local_or_hub(path: str, base_dir: Path) -> str:
    """A folder (relative to the job file) where there is one, else `path` unchanged: a hub id."""
    folder = base_dir / Path(path).expanduser()
    return str(folder) if folder.is_dir() else path


def load_tokenizer(model_spec: "ModelSpec", base_dir: Path) -> Any:
    """The tokenizer of `spec.model`, or of `spec.model.tokenizer` where given, with its chat template.

    Raises `UserError` where it does not exist or cannot be read.
    """
    from transformers import AutoTokenizer

    own = model_spec.tokenizer
    field, path, revision = "model.path", model_spec.path, own.revision or model_spec.revision
    if own.path is not None:
        field, path, revision = "model.tokenizer.path", own.path, own.revision
    location = local_or_hub(path, Path(base_dir))
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            location, revision=revision or "main", trust_remote_code=model_spec.trust_remote_code
        )
    except Exception as error:  # noqa: BLE001 (the tokenizers library raises bare Exceptions)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"{field}: cannot load a tokenizer from {path!r}: {lines[0]} (neither a folder at "
            f"{Path(base_dir) / path} nor reachable on the hub; check the name and HF_HUB_OFFLINE)"
        ) from None
    if own.chat_template is not None:
        tokenizer.chat_template = own.chat_template
    return tokenizer


def eos_token_ids(model_dir: str | Path, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends a response: the tokenizer's, then those of the model's generation settings.

    Chat models often name several (end of turn, end of text). Ascending, without repeats; empty where
    the model names none.
    """
    from transformers import GenerationConfig

    found: set[int] = set()
    if tokenizer.eos_token_id is not None:
        found.add(int(tokenizer.eos_token_id))
    try:
        generation = GenerationConfig.from_pretrained(str(model_dir))
    except OSError:  # the model has no generation settings
        return tuple(sorted(found))
    listed = generation.eos_token_id
    found.update(map(int, listed if isinstance(listed, list) else [] if listed is None else [listed]))
    return tuple(sorted(found))
