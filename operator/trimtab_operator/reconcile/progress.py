"""Which of the coordinator's words count: those of the pod that should be there, and its last."""

from trimtab.api.conditions import Phase
from trimtab.api.status import UnitState
from trimtab_operator.constants import COORDINATOR
from trimtab_operator.model.observed import Pod, Progress
from trimtab_operator.reconcile.draft import Draft
from trimtab_operator.reconcile.units import COORDINATOR_UNIT


def present(draft: Draft) -> Progress | None:
    """What the coordinator that should be there has said since it was made; None: nothing yet."""
    progress, unit = of_attempt(draft), _coordinator(draft)
    if progress is None or unit is None or unit.created is None or progress.received < unit.created:
        return None
    return progress if progress.incarnation in (None, unit.incarnation) else None


def final_word(draft: Draft) -> Progress | None:
    """How the coordinator ended the job. One that was replaced meanwhile is believed a Complete alone."""
    progress, unit = of_attempt(draft), _coordinator(draft)
    if progress is None or not progress.final or unit is None:
        return None
    if progress.phase == Phase.COMPLETE or progress.incarnation in (None, unit.incarnation):
        return progress
    return None


def coordinator_pod(draft: Draft) -> Pod | None:
    """The pod of the coordinator that should be there."""
    unit, attempt = _coordinator(draft), draft.status.attempt
    if unit is None:
        return None
    wanted = (COORDINATOR, attempt, unit.incarnation)
    return next(
        (pod for pod in draft.observed.pods if (pod.role, pod.attempt, pod.incarnation) == wanted), None
    )


def of_attempt(draft: Draft) -> Progress | None:
    """What any coordinator of this start has said last."""
    progress = draft.observed.progress
    return progress if progress is not None and progress.attempt == draft.status.attempt else None


def _coordinator(draft: Draft) -> UnitState | None:
    return next((unit for unit in draft.status.units if unit.name == COORDINATOR_UNIT), None)
