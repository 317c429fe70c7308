"""A character tokenizer with and without a chat template, and a shorthand for opening a dataset."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.api.data import DataSource, DataSpec
from trimtab.data import PromptDataset, open_dataset


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from trimtab.testing.tiny_model import make_tokenizer

    return make_tokenizer()


@pytest.fixture(scope="session")
def plain_tokenizer() -> Any:
    from trimtab.testing.tiny_model import make_tokenizer

    plain = make_tokenizer()
    plain.chat_template = None
    return plain


@pytest.fixture
def open_source(tmp_path: Path, tokenizer: Any) -> Callable[..., PromptDataset]:
    """`open_source({"path": ...}, maxPromptTokens=5)`; relative paths start at tmp_path."""

    def open_it(source: dict[str, Any], *, tokenizer: Any = tokenizer, **data: Any) -> PromptDataset:
        spec = DataSpec.model_validate({"train": source, **data})
        return open_dataset(
            DataSource.model_validate(source),
            spec,
            tokenizer=tokenizer,
            code_paths=[tmp_path / "code"],
            base_dir=tmp_path,
        )

    return open_it
