"""Prompts: dataset sources, chat rendering, length filter, leases."""

from trimtab.data.dataset import PromptDataset, PromptRow, open_dataset
from trimtab.data.leases import Lease, LeasedSampler
from trimtab.data.tokenizers import load_tokenizer

__all__ = [
    "Lease",
    "LeasedSampler",
    "PromptDataset",
    "PromptRow",
    "load_tokenizer",
    "open_dataset",
]
