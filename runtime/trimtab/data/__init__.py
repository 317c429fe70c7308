"""Prompts: dataset sources, chat rendering, length filter, leases."""

from trimtab.data.dataset import PromptDataset, PromptRow, open_dataset
from trimtab.data.leases import Lease, LeasedSampler
from trimtab.data.tokenizers import eos_token_ids, load_tokenizer, local_or_hub

__all__ = [
    "Lease",
    "LeasedSampler",
    "PromptDataset",
    "PromptRow",
    "eos_token_ids",
    "load_tokenizer",
    "local_or_hub",
    "open_dataset",
]
