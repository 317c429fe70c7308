"""Starting a unit again: its next incarnation, the pause before it, and the budget for those that count.

The budget is the job's (failurePolicy.maxRestarts); it is given back when a step is done that was not done
before the first of the failures that it counted.
"""

from trimtab.api.conditions import Reason
from trimtab.api.status import BudgetState
from trimtab_operator.model.observed import Progress, RestartWish
from trimtab_operator.model.resolved import Settings
from trimtab_operator.reconcile.draft import Draft
from trimtab_operator.reconcile.failures import Severity, Verdict
from trimtab_operator.reconcile.plan import creates_over
from trimtab_operator.reconcile.progress import of_attempt
from trimtab_operator.reconcile.units import Survey, Unit

MAX_REASON = 500
_LARGEST_POWER = 30
_ENDING = ("Stopping", "Stopped", "Complete", "Failed")


def restart(draft: Draft, unit: Unit, why: str, *, pause_s: float = 0.0) -> None:
    """Give a unit its next incarnation, to be created after the pause; its pods are then outdated."""
    state, now = unit.state, draft.clock.now
    earliest = max(draft.clock.after(pause_s), creates_over(state.created) or now)
    unit.change(
        incarnation=state.incarnation + 1,
        restarts=state.restarts + 1,
        not_before=earliest if earliest > now else None,
        created=None,
        seen=False,
        stuck_since=None,
        reason=why[:MAX_REASON],
    )
    unit.older += unit.pods.values()
    unit.pods = {}
    draft.count_restart(unit.role)


def restart_for(draft: Draft, unit: Unit, verdict: Verdict, *, max_restarts: int) -> str:
    """Start a unit again after its end; why the job has failed instead, where the budget is used up."""
    if verdict.severity is not Severity.COUNTS:
        draft.tell("Normal", Reason.POD_REPLACED, verdict.text)
        restart(draft, unit, verdict.text, pause_s=verdict.pause_s)
        return ""
    draft.tell("Warning", Reason.POD_FAILED, verdict.text)
    exhausted = charge(draft, max_restarts=max_restarts)
    if exhausted:
        return f"{exhausted}; the last failure: {verdict.text}"
    failures = unit.state.failures + 1
    unit.change(failures=failures)
    restart(draft, unit, verdict.text, pause_s=pause_s(failures, draft.observed.settings))
    return ""


def charge(draft: Draft, *, max_restarts: int) -> str:
    """Take one restart from the budget; what is to be said where none is left."""
    budget = draft.status.budget
    at_step = budget.at_step if budget.used else newest_step(draft)
    if budget.used >= max_restarts:
        return f"failurePolicy.maxRestarts ({max_restarts}) is used up, without progress since step {at_step}"
    draft.update(budget=BudgetState(used=budget.used + 1, at_step=at_step))
    return ""


def pause_s(failures: int, settings: Settings) -> float:
    """Seconds before a restart: doubled with each failure since the last progress."""
    return float(min(settings.backoff_s * 2 ** min(failures - 1, _LARGEST_POWER), settings.max_backoff_s))


def newest_step(draft: Draft) -> int:
    """Steps done, as far as known."""
    progress = of_attempt(draft)
    return max(draft.status.step, 0 if progress is None else progress.step)


def give_back(draft: Draft, units: Survey) -> None:
    """Give the budget back after progress."""
    budget = draft.status.budget
    if budget.used and newest_step(draft) > budget.at_step:
        draft.update(budget=BudgetState(used=0, at_step=budget.at_step))
        for unit in units.units.values():
            if unit.state.failures:
                unit.change(failures=0)


def grant_wishes(draft: Draft, units: Survey, progress: Progress) -> None:
    """Start the units again that the coordinator asks for."""
    if progress.phase in _ENDING:
        return
    for wish in progress.restart_wishes:
        unit = units.units.get(f"{wish.role}-{wish.replica}")
        if unit is not None and _applies(unit, wish):
            text = f"{unit.name}: the coordinator asks for it: {wish.reason}"
            draft.tell("Normal", Reason.POD_REPLACED, text)
            restart(draft, unit, text)


def _applies(unit: Unit, wish: RestartWish) -> bool:
    state = unit.state
    return not state.retired and state.created is not None and wish.incarnation >= state.incarnation
