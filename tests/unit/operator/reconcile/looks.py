"""What a test reads from a decision, a world and an operator."""

from typing import Any

from tests.unit.operator.reconcile.world import Operator, World

from trimtab.api.conditions import ConditionType
from trimtab_operator.model.actions import Decision


def actions(decision: Decision, kind: type) -> list[Any]:
    """Those of one kind."""
    return [action for action in decision.actions if isinstance(action, kind)]


def phase(world: World) -> str:
    """The phase in the status."""
    return world.job.status.phase


def say(world: World, kind: ConditionType) -> str:
    """A condition's message."""
    return next(c.message for c in world.job.status.conditions if c.type == kind)


def reasons(operator: Operator) -> list[str]:
    """Of the events so far."""
    return [event.reason for event in operator.events]
