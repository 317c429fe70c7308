"""What every test can ask for: a tiny model directory, and no network."""

import os
from pathlib import Path

import pytest

# Before any import of transformers, datasets or vllm: they read these once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory: 2-layer Llama, hidden 64, untied, float32; 128-id character tokenizer."""
    from trimtab.testing.tiny_model import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny-model"))
