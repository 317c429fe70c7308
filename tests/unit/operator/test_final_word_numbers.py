"""The coordinator's last word carries every number that the status shows: none is lost as a job ends."""

import json

from trimtab.api.conditions import Phase, Reason
from trimtab.roles.coordinator.final_word import FinalWord
from trimtab_operator.reconcile.metrics import metrics_of

LAST_STEP = {
    "critic/rewards/mean": 0.9,
    "critic/score/mean": 0.8,
    "kl/actual": 0.01,
    "actor/entropy": 0.5,
    "response_length/mean": 12.0,
    "perf/total_num_tokens": 4000.0,
    "perf/time_per_step": 2.0,
    "training/staleness": 0.0,
}


def test_status_after_the_end_has_the_numbers_of_the_last_step():
    word = FinalWord(
        phase=Phase.COMPLETE,
        reason=Reason.STEPS_DONE,
        message="",
        step=6,
        total_steps=6,
        epoch=1.0,
        metrics=LAST_STEP,
        checkpoint=("", -1),
    )
    told = json.loads(word.encode())["metrics"]
    shown = metrics_of(told)
    assert shown == metrics_of(LAST_STEP)
    assert all(getattr(shown, name) is not None for name in type(shown).model_fields)
