"""A Llama-shaped model and a character tokenizer that are made on the spot, in well under a second.

Called by tests (through `tests/conftest.py`), by the quickstart example and by benchmarks. What it writes
is an ordinary Hugging Face directory: `AutoModelForCausalLM`, `AutoTokenizer` and vLLM load it like any
other. Runs in the caller's thread and leaves torch's global random state as it was.
"""

import string
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HEAD_DIM = 32
"""The smallest head that vLLM's CPU attention serves."""

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
USER, ASSISTANT, SYSTEM = "<|user|>", "<|assistant|>", "<|system|>"
SPECIAL_TOKENS = (PAD, BOS, EOS, UNKNOWN, USER, ASSISTANT, SYSTEM)

PRINTABLE = string.digits + string.ascii_letters + string.punctuation + " \n"
ACCENTED = "àâäçèéêëîïôöùûüÀÂÄÇÈÉÊ"
DEFAULT_CHARACTERS = PRINTABLE + ACCENTED + "αβγ"
"""With the special tokens: 128 ids."""

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_tokenizer(
    characters: Sequence[str] = DEFAULT_CHARACTERS,
    *,
    max_length: int = 512,
    chat_template: str = CHAT_TEMPLATE,
) -> PreTrainedTokenizerFast:
    """One token per character; the special tokens take the first ids (pad 0, bos 1, eos 2).

    Nothing is added around a text: the chat template alone writes the beginning and the end.
    """
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *characters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN, fuse_unk=False))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        extra_special_tokens=[USER, ASSISTANT, SYSTEM],
        chat_template=chat_template,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def make_tiny_model(
    path: Path | str,
    *,
    tied: bool = False,
    hidden: int = 64,
    layers: int = 2,
    seed: int = 0,
    characters: Sequence[str] = DEFAULT_CHARACTERS,
    max_length: int = 512,
    chat_template: str = CHAT_TEMPLATE,
) -> Path:
    """Write a random float32 model with its tokenizer and generation settings to `path`; return the path.

    `hidden` is a multiple of 32 (heads of 32 each); `tied` shares the embedding with the head. The same
    arguments always give the same weights.
    """
    if hidden % HEAD_DIM:
        raise ValueError(f"hidden={hidden} must be a multiple of {HEAD_DIM}, the size of one head")
    directory = Path(path)
    tokenizer = make_tokenizer(characters, max_length=max_length, chat_template=chat_template)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD_DIM,
        num_key_value_heads=hidden // HEAD_DIM,
        max_position_embeddings=max_length,
        tie_word_embeddings=tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(directory)
    # save_pretrained writes the weights readable by their owner alone; a pod may run as another user.
    (directory / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(directory)
    return directory
