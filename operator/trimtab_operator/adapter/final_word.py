"""What the coordinator wrote into its termination message when it ended: read back as `Progress`.

The outcome of a job is so learnt from the pod alone, also by an operator that was not there. Whatever is
not such a message (the last lines of a log, a cut-off text) is no final word: None.
"""

import json
import math
from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from trimtab.api.base import Model
from trimtab_operator.model.observed import Pod, Progress

_Text = Annotated[str, Field(max_length=4096)]


class FinalWord(Model):
    """The JSON object, version 1."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=True)

    trimtab: Literal[1]
    phase: Literal["Complete", "Failed", "Stopped"]
    reason: _Text = ""
    message: _Text = ""
    step: Annotated[int, Field(ge=0)] = 0
    total_steps: Annotated[int, Field(ge=0)] = 0
    epoch: float = 0.0
    metrics: dict[str, float] = Field(default_factory=dict)
    not_finite: tuple[str, ...] = ()
    checkpoint_step: int = -1
    checkpoint_path: _Text = ""


def read_final_word(pod: Pod, received: datetime) -> Progress | None:
    """The final word of a coordinator's pod that has ended."""
    if pod.exit_code is None or not pod.exit_message.startswith("{"):
        return None
    try:
        word = FinalWord.model_validate(json.loads(pod.exit_message))
    except (ValueError, RecursionError):
        return None
    finite = {name: value for name, value in word.metrics.items() if math.isfinite(value)}
    return Progress(
        attempt=pod.attempt,
        incarnation=pod.incarnation,
        phase=word.phase,
        step=word.step,
        total_steps=word.total_steps,
        epoch=word.epoch if math.isfinite(word.epoch) else 0.0,
        metrics=finite,
        not_finite=tuple(dict.fromkeys([*word.not_finite, *(word.metrics.keys() - finite.keys())])),
        checkpoint_step=word.checkpoint_step,
        checkpoint_path=word.checkpoint_path,
        reason=word.reason,
        message=word.message,
        received=received,
        final=True,
    )
