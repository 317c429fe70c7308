"""The reward of `smollm2_step.py`, for both sides: any number that differs between responses will do."""

from collections.abc import Mapping
from typing import Any


def share_of_letter_e(text: str) -> float:
    """Between 0 and 1."""
    return text.lower().count("e") / max(1, len(text))


def score(*, prompt: str, response: str, fields: Mapping[str, Any]) -> float:
    """As Trimtab calls a reward function."""
    return share_of_letter_e(response)
