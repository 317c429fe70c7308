"""The coordinator's last message fits into a termination log, whatever it says."""

import json
import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from trimtab.api.conditions import Phase, Reason
from trimtab.roles.coordinator.final_word import MAX_BYTES, METRICS, FinalWord


def word(**changes: object) -> FinalWord:
    values: dict[str, object] = {
        "phase": Phase.COMPLETE,
        "reason": Reason.STEPS_DONE,
        "message": "",
        "step": 6,
        "total_steps": 6,
        "epoch": 1.5,
        "metrics": {"critic/score/mean": 0.5, "kl/actual": math.nan, "actor/loss": 3.0},
        "checkpoint": ("/trimtab/run/a/checkpoints/step-00000006", 6),
    }
    return FinalWord(**(values | changes))  # type: ignore[arg-type]


def test_final_word_says_how_the_job_ended(tmp_path: Path) -> None:
    word().write(tmp_path / "termination-log")
    assert json.loads((tmp_path / "termination-log").read_bytes()) == {
        "trimtab": 1,
        "phase": "Complete",
        "reason": "StepsDone",
        "message": "",
        "step": 6,
        "totalSteps": 6,
        "epoch": 1.5,
        "metrics": {"critic/score/mean": 0.5},
        "notFinite": ["kl/actual"],
        "checkpointStep": 6,
        "checkpointPath": "/trimtab/run/a/checkpoints/step-00000006",
    }


def test_final_word_keeps_as_much_of_a_long_message_as_fits() -> None:
    text = word(message="the disk is full; " * 1000).encode()
    assert MAX_BYTES - 100 < len(text) <= MAX_BYTES
    message = json.loads(text)["message"]
    assert message.startswith("the disk is full; the disk")
    assert message.endswith(" ...")


@given(
    st.text(max_size=6000),
    st.dictionaries(st.sampled_from(METRICS) | st.text(max_size=100), st.floats(), max_size=40),
    st.text(max_size=5000),
)
def test_final_word_is_json_of_bounded_size_whatever_it_says(
    message: str, metrics: dict[str, float], path: str
) -> None:
    text = word(message=message, metrics=metrics, checkpoint=(path, 1)).encode()
    assert len(text) <= MAX_BYTES
    said = json.loads(text)
    assert all(math.isfinite(value) for value in said["metrics"].values())
    assert said["phase"] == "Complete"


def test_termination_log_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    word().write(tmp_path / "no such folder" / "log")
