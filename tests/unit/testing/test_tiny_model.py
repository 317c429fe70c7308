"""The model that most tests stand on."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trimtab.testing.tiny_model import make_tiny_model


def test_tiny_model_loads_with_one_token_per_character(tiny_model_dir: Path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    assert model.dtype == torch.float32
    assert model.config.vocab_size == len(tokenizer) == 128
    text = "12 + é = <eos>"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len("12 + é = ") + 1
    assert ids[-1] == tokenizer.eos_token_id != tokenizer.pad_token_id
    assert tokenizer.decode(ids) == text


def test_chat_template_ends_with_the_assistant_turn(tiny_model_dir: Path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "1+1"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<bos><|system|>s<|user|>1+1<|assistant|>"


@pytest.mark.parametrize("tied", [False, True], ids=["untied head", "tied head"])
def test_same_arguments_give_the_same_weights(tmp_path: Path, tied: bool):
    state = torch.random.get_rng_state()
    first = make_tiny_model(tmp_path / "a", seed=3, tied=tied)
    second = make_tiny_model(tmp_path / "b", seed=3, tied=tied)
    other = make_tiny_model(tmp_path / "c", seed=4, tied=tied)
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = [(directory / "model.safetensors").read_bytes() for directory in (first, second, other)]
    assert weights[0] == weights[1] != weights[2]
    model = AutoModelForCausalLM.from_pretrained(first)
    shared = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert shared is tied


def test_hidden_size_that_is_no_multiple_of_a_head_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="multiple of 32"):
        make_tiny_model(tmp_path, hidden=48)
