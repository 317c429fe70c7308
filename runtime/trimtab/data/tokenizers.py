"""The job's tokenizer.

Called by the coordinator (prompts, decoding for rewards), off its event loop. transformers is imported
inside the function: it takes seconds.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.errors import UserError

if TYPE_CHECKING:
    from trimtab.api.model import ModelSpec


def _local_or_hub(path: str, base_dir: Path) -> str:
    """A folder (relative to the job file) where there is one, else `path` unchanged: a hub id."""
    folder = base_dir / Path(path).expanduser()
    return str(folder) if folder.is_dir() else path


def load_tokenizer(model_spec: "ModelSpec", base_dir: Path) -> Any:
    """The tokenizer of `spec.model`, or of `spec.model.tokenizer` where given, with its chat template.

    Raises `UserError` where it does not exist or cannot be read.
    """
    from transformers import AutoTokenizer

    own = model_spec.tokenizer
    field, path, revision = "spec.model.path", model_spec.path, own.revision or model_spec.revision
    if own.path is not None:
        field, path, revision = "spec.model.tokenizer.path", own.path, own.revision
    location = _local_or_hub(path, Path(base_dir))
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
