"""Writes docs/reference/conditions.md: every condition's value in every phase, and every reason's sentence.

The sentences are those of trimtab.api.conditions. The values are given here, and
tests/unit/operator/reconcile/test_conditions_page.py runs the operator's decisions into every phase and
compares. `--check` fails where the page has drifted and changes nothing.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from trimtab.api.conditions import ConditionType, Phase, Reason

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "conditions.md"

COLUMNS = tuple(ConditionType)
T, F, U = "True", "False", "Unknown"
MATRIX: dict[Phase, tuple[tuple[str, ...], ...]] = {
    #   Validated, Admitted, WorkersReady, Running, Degraded, MetricsHealthy, Suspended, Complete, Failed
    Phase.PENDING:    ((T, F), (T, F), (F,),   (F,), (F,),   (T, F, U), (F,),   (F,), (F,)),
    Phase.INVALID:    ((F,),   (F,),   (F,),   (F,), (F,),   (T, F, U), (T, F), (F,), (F,)),
    Phase.STARTING:   ((T, F), (T,),   (T, F), (F,), (F,),   (T, F, U), (F,),   (F,), (F,)),
    Phase.RUNNING:    ((T, F), (T, F), (T, F), (T,), (T, F), (T, F, U), (F,),   (F,), (F,)),
    Phase.RECOVERING: ((T, F), (T, F), (T, F), (F,), (F,),   (T, F, U), (F,),   (F,), (F,)),
    Phase.SUSPENDING: ((T, F), (T, F), (T, F), (F,), (F,),   (T, F, U), (F,),   (F,), (F,)),
    Phase.STOPPING:   ((T, F), (T,),   (T, F), (F,), (F,),   (T, F, U), (F,),   (F,), (F,)),
    Phase.SUSPENDED:  ((T,),   (F,),   (F,),   (F,), (F,),   (T, F, U), (T,),   (F,), (F,)),
    Phase.COMPLETE:   ((T, F), (T,),   (F,),   (F,), (F,),   (T, F, U), (F,),   (T,), (F,)),
    Phase.FAILED:     ((T, F), (T, F), (F,),   (F,), (F,),   (T, F, U), (F,),   (F,), (T,)),
}  # fmt: skip
"""The values that each condition may have in a phase. (The phase Stopped is `trimtab run`'s alone.)"""

FAILURES = (
    Reason.USER_ERROR,
    Reason.OUT_OF_MEMORY,
    Reason.INTERNAL_ERROR,
    Reason.RESTARTS_EXHAUSTED,
    Reason.DEADLINE_EXCEEDED,
    Reason.IMAGE_PULL,
    Reason.CANNOT_START,
)
REFUSALS = (Reason.INVALID_SPEC, Reason.STORAGE_NOT_SHARED)
REASONS: dict[ConditionType, dict[str, tuple[Reason, ...]]] = {
    ConditionType.VALIDATED: {T: (Reason.ACCEPTED,), F: (*REFUSALS, Reason.INVALID_EDIT)},
    ConditionType.ADMITTED: {
        T: (Reason.NO_QUEUE,),
        F: (Reason.WAITING_FOR_QUOTA, Reason.SUSPEND_REQUESTED, *REFUSALS),
    },
    ConditionType.WORKERS_READY: {
        T: (Reason.ALL_REGISTERED,),
        F: (
            Reason.PODS_PENDING,
            Reason.UNSCHEDULABLE,
            Reason.IMAGE_PULL,
            Reason.CANNOT_START,
            Reason.PENDING_DEADLINE,
            Reason.WAITING_FOR_WORKERS,
            Reason.STOP_REQUESTED,
            Reason.SUSPEND_REQUESTED,
            *REFUSALS,
        ),
    },
    ConditionType.RUNNING: {
        T: (Reason.TAKING_STEPS, Reason.REPLICA_LOST),
        F: (
            Reason.NOT_STARTED,
            Reason.ACTOR_LOST,
            Reason.COORDINATOR_LOST,
            Reason.STOP_REQUESTED,
            Reason.SUSPEND_REQUESTED,
            *REFUSALS,
        ),
    },
    ConditionType.DEGRADED: {
        T: (Reason.BELOW_MIN_REPLICAS,),
        F: (
            Reason.ENOUGH_REPLICAS,
            Reason.NOT_STARTED,
            Reason.ACTOR_LOST,
            Reason.COORDINATOR_LOST,
            Reason.STOP_REQUESTED,
            Reason.SUSPEND_REQUESTED,
            *REFUSALS,
        ),
    },
    ConditionType.METRICS_HEALTHY: {
        T: (Reason.ALL_FINITE,),
        F: (Reason.NOT_FINITE,),
        U: (Reason.NOT_STARTED,),
    },
    ConditionType.SUSPENDED: {
        T: (Reason.SUSPEND_REQUESTED,),
        F: (Reason.SUSPEND_REQUESTED, Reason.NOT_SUSPENDED, Reason.RESUMED),
    },
    ConditionType.COMPLETE: {T: (Reason.STEPS_DONE,), F: (Reason.NOT_FINISHED,)},
    ConditionType.FAILED: {T: FAILURES, F: (Reason.NOT_FINISHED,)},
}
"""The reasons that a value may have, while the job has not ended."""
AFTER_THE_END = (
    ConditionType.WORKERS_READY,
    ConditionType.RUNNING,
    ConditionType.DEGRADED,
    ConditionType.COMPLETE,
    ConditionType.FAILED,
)
"""After the end these have the reason of the end, also where they are False."""

HEAD = """# Conditions

<!-- Written by scripts/generate_conditions.py: edit the sentences in trimtab.api.conditions. -->

`status.conditions` of an `RLTrainingJob` is what scripts and people rely on: one condition of each type, from
the operator's first look at the job on. Each has a status, a reason, a message and `observedGeneration`;
`lastTransitionTime` moves only when the status does. An event tells every change of a status. No condition is
named Ready: tools wait for that one for ever on a job that has finished.

    kubectl wait rltj/NAME --for=condition=Complete --timeout=24h
    kubectl get rltj NAME -o jsonpath='{.status.conditions[?(@.type=="Failed")].message}'

`status.phase` follows from the conditions and is for printing: do not act on it. `status.message` says in
one line what the job is doing or why it ended. Conditions are written at once; numbers and wording (`step`,
`metrics`, `checkpoint`, messages) along with them, and by themselves once a minute at most.
[Operations](../operations.md#by-condition-reason) says what to do about a reason.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, *_types(), *_phases(), *_matrix(), *_reasons(), *_events()]
    return "\n".join(parts).rstrip() + "\n"


def _types() -> Iterator[str]:
    yield "## Types\n"
    yield "| type | True means |"
    yield "|---|---|"
    for kind in ConditionType:
        yield f"| `{kind.value}` | {kind.text} |"
    yield ""


def _phases() -> Iterator[str]:
    yield "## Phases\n"
    yield "| phase | meaning |"
    yield "|---|---|"
    for phase in Phase:
        note = "" if phase in MATRIX else " (Of `trimtab run` alone.)"
        yield f"| `{phase.value}` | {phase.text}{note} |"
    yield ""


def _matrix() -> Iterator[str]:
    yield "## Every condition in every phase\n"
    yield "T: True, F: False, U: Unknown. Several letters: each of them can be.\n"
    yield f"| phase | {' | '.join(f'`{kind.value}`' for kind in COLUMNS)} |"
    yield f"|---|{'---|' * len(COLUMNS)}"
    for phase, row in MATRIX.items():
        cells = " | ".join("/".join(value[0] for value in values) for values in row)
        yield f"| `{phase.value}` | {cells} |"
    yield ""


def _reasons() -> Iterator[str]:
    yield "## Reasons\n"
    names = ", ".join(f"`{kind.value}`" for kind in AFTER_THE_END)
    yield f"Once a job has ended, {names} carry the reason of its end: `StepsDone`, or one of `Failed`'s.\n"
    for kind, by_status in REASONS.items():
        yield f"### {kind.value}\n"
        yield "| status | reason | meaning |"
        yield "|---|---|---|"
        for status, reasons in by_status.items():
            for reason in reasons:
                yield f"| {status} | `{reason.value}` | {reason.text} |"
        yield ""


def _events() -> Iterator[str]:
    used = {reason for by_status in REASONS.values() for reasons in by_status.values() for reason in reasons}
    yield "## Further events\n"
    yield "| reason | meaning |"
    yield "|---|---|"
    for reason in Reason:
        if reason not in used:
            yield f"| `{reason.value}` | {reason.text} |"
    yield ""


def main() -> int:
    """Write the page, or with --check say that it has drifted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail where the page has drifted"
    )
    check = parser.parse_args().check
    new = page()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == new:
        return 0
    if check:
        print(f"docs/reference/{PAGE.name} has drifted: run `make docs`", file=sys.stderr)
        return 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
