"""What must hold of every status that is written, and of every pod that is created.

The world tells what happened that may cost a restart or a piece of the budget; what the operators write is
held against it, so that a cause that is counted twice, or none that is counted, shows at once.
"""

from dataclasses import dataclass, field

from trimtab.api.conditions import ConditionType
from trimtab.api.status import JobStatus
from trimtab_operator.model.actions import CreatePod
from trimtab_operator.model.plan import PodPlan
from trimtab_operator.reconcile.finishing import is_finished

SAID: set[tuple[str, str, str, str]] = set()
"""Phase, condition, its status and its reason, of every status that was written."""


def is_true(status: JobStatus, kind: ConditionType) -> bool:
    """Whether a condition holds."""
    return any(item.type == kind and item.status == "True" for item in status.conditions)


@dataclass
class Accounts:
    """Of one job."""

    chargeable: int = 0
    """Failures so far that may count against the budget."""
    charged: int = 0
    causes: int = 0
    """Things so far that may cost a unit a restart, by how many units they may cost one."""
    created: dict[str, int] = field(default_factory=dict)
    """How often a pod of a name came into being."""
    removed_by_others: set[str] = field(default_factory=set)

    def failed(self) -> None:
        """A process failed by itself, or may be taken to."""
        self.chargeable += 1
        self.causes += 1

    def write(self, old: JobStatus, new: JobStatus, *, has_pods: bool) -> None:
        """A status is written."""
        SAID.update((new.phase, c.type, c.status, c.reason) for c in new.conditions)
        self.charged += max(0, new.budget.used - old.budget.used)
        assert self.charged <= self.chargeable, f"{self.charged} failures counted, {self.chargeable} happened"
        assert new.restarts <= self.causes, f"{new.restarts} restarts, {self.causes} causes"
        assert (new.attempt, new.starts) >= (old.attempt, old.starts), "a start is forgotten"
        if new.attempt == old.attempt:
            before = {unit.name: unit.incarnation for unit in old.units}
            again = [unit.name for unit in new.units if unit.incarnation < before.get(unit.name, 0)]
            assert not again, f"an incarnation is given twice: {again}"
        if is_finished(old):
            kept = (old.conditions, old.completion_time) == (new.conditions, new.completion_time)
            assert kept, "the end is taken back"
        if is_true(new, ConditionType.SUSPENDED) and not is_true(old, ConditionType.SUSPENDED):
            assert not has_pods, "said to be suspended, and has pods"

    def create(self, plan: PodPlan, status: JobStatus) -> None:
        """A pod comes into being."""
        assert not is_true(status, ConditionType.SUSPENDED), f"{plan.name} is created for a suspended job"
        if self.created.get(plan.name):
            assert plan.name in self.removed_by_others, f"{plan.name} is created twice"
            units = {unit.name: unit for unit in status.units}
            unit = units.get(plan.unit)
            current = (status.attempt, 0 if unit is None else unit.incarnation)
            had_all = unit is not None and unit.seen and current == (plan.attempt, plan.incarnation)
            assert not had_all, f"{plan.name} is replaced under its own name"
        self.created[plan.name] = self.created.get(plan.name, 0) + 1


def check_creates(under_way: list[CreatePod], new: list[CreatePod]) -> None:
    """While creates may still be carried out, none is decided on of the same pod, or of one that clashes."""
    for known in under_way:
        for create in new:
            a, b = known.plan, create.plan
            assert a.name != b.name, f"two creates of {a.name} are under way"
            clash = a.role in ("coordinator", "actor") and (a.role, a.replica) == (b.role, b.replica)
            same = (a.attempt, a.incarnation) == (b.attempt, b.incarnation)
            assert same or not clash, f"creates of {a.name} and {b.name} are under way"
