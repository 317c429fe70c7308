"""Where a job stands after a decision: what its conditions, phase and message are made from."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal, NamedTuple

from trimtab_operator.model.observed import Progress
from trimtab_operator.reconcile.spec import Live
from trimtab_operator.reconcile.units import Survey

Truth = Literal["True", "False", "Unknown"]


class Say(NamedTuple):
    """A condition's status, why, and that in words."""

    status: Truth
    reason: str
    """One of `Reason`, where it is not what a newer operator wrote."""
    message: str = ""


class Stage(Enum):
    """States of a job.

    (new) --spec refused--> INVALID --edit--> (new)
    (new) --spec.suspend--> HELD
    (new), HELD --spec.suspend false--> ACTIVE (a new start)
    ACTIVE --spec.suspend--> STOPPING --pods gone--> HELD
    ACTIVE --pending deadline--> ACTIVE (a new start, its pods after a pause)
    ACTIVE, STOPPING --final word, exit code, deadline--> COMPLETE or FAILED: for good
    """

    AS_IT_WAS = auto()
    """Something is not read yet: nothing new can be said."""
    INVALID = auto()
    HELD = auto()
    ACTIVE = auto()
    STOPPING = auto()
    COMPLETE = auto()
    FAILED = auto()


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What the decision found."""

    stage: Stage
    validated: Say | None = None
    """None: as before."""
    end: Say | None = None
    """Of the condition Complete or Failed, once the job has ended."""
    units: Survey | None = None
    """Of an active job."""
    live: Live | None = None
    progress: Progress | None = None
    """What the present coordinator says; None: it has not said anything yet."""
