import json
from datetime import UTC, datetime
from typing import Any

import pytest

from trimtab_operator.adapter.final_word import read_final_word
from trimtab_operator.model.observed import Pod

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def coordinator(message: str, exit_code: int | None = 0) -> Pod:
    return Pod(
        name="job-coordinator-0-0-abc",
        uid="u",
        role="coordinator",
        replica=0,
        node=0,
        incarnation=3,
        attempt=5001,
        phase="Succeeded",
        created=NOW,
        exit_code=exit_code,
        exit_message=message,
    )


def word(**fields: Any) -> str:
    return json.dumps({"trimtab": 1, "phase": "Complete", "reason": "StepsDone", "step": 8, **fields})


def test_final_word_is_progress_of_that_coordinator() -> None:
    text = word(
        totalSteps=8,
        epoch=1.5,
        metrics={"reward": 0.75},
        checkpointStep=8,
        checkpointPath="/runs/8",
        later=True,
    )
    said = read_final_word(coordinator(text), NOW)
    assert said is not None
    assert said.final
    assert (said.phase, said.reason, said.step, said.total_steps) == ("Complete", "StepsDone", 8, 8)
    assert (said.attempt, said.incarnation, said.received) == (5001, 3, NOW)
    assert (said.checkpoint_step, said.checkpoint_path) == (8, "/runs/8")
    assert said.metrics == {"reward": 0.75}


def test_numbers_that_are_not_finite_are_left_out_and_named() -> None:
    text = word(metrics={"kl": float("nan"), "reward": 1.0}, notFinite=["entropy"], epoch=float("inf"))
    said = read_final_word(coordinator(text), NOW)
    assert said is not None
    assert said.metrics == {"reward": 1.0}
    assert said.not_finite == ("entropy", "kl")
    assert said.epoch == 0.0


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Traceback ...",
        word()[:40],
        word(phase="Running"),
        '{"trimtab": 2}',
        "[1]",
        word(step=-1),
        '{"trimtab":' + "[" * 4000,
        word(epoch=10**400),
    ],
    ids=[
        *("empty", "a log", "cut off", "not an end", "another version", "a list", "impossible step"),
        *("nested too deep", "a number beyond floats"),
    ],
)
def test_what_is_no_final_word_is_none(message: str) -> None:
    assert read_final_word(coordinator(message), NOW) is None


def test_running_pod_has_no_final_word() -> None:
    assert read_final_word(coordinator(word(), exit_code=None), NOW) is None
