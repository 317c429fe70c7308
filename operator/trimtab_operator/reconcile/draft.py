"""One decision while it is being made: the status to be, what to do, what to tell."""

from dataclasses import dataclass, field
from typing import Any, Literal

from trimtab.api.conditions import Reason
from trimtab.api.status import JobStatus, RoleState
from trimtab_operator.model.actions import Action, DeletePod, Event
from trimtab_operator.model.observed import Job, Observed, Pod
from trimtab_operator.model.resolved import Resolved
from trimtab_operator.reconcile.clock import Clock

MAX_EVENT_MESSAGE = 1000
"""Kubernetes takes 1024 characters."""

REMOVE_GRACE_S = 30
"""For processes to end that are not needed; an actor's own grace holds a checkpoint and is minutes long."""


@dataclass
class Draft:
    """Made by `reconcile` for one look at a job, filled by the modules that it asks, and dropped."""

    observed: Observed
    clock: Clock
    status: JobStatus
    """As it should be, so far."""
    actions: list[Action] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    list_pods: bool = False
    """Whether it rests on pods that may be old news."""

    @property
    def job(self) -> Job:
        """The custom object."""
        return self.observed.job

    @property
    def resolved(self) -> Resolved | None:
        """The resolved spec of the status's attempt; None: not read, or another attempt's."""
        found, wanted = self.observed.resolved, self.status.resolved
        return found if found is not None and wanted is not None and found.name == wanted.name else None

    def update(self, **fields: Any) -> None:
        """Change fields of the status."""
        new = {name: value for name, value in fields.items() if getattr(self.status, name) is not value}
        if new:
            self.status = self.status.model_copy(update=new)

    def make_sure(self) -> None:
        """Decide on pods that the API server has listed alone: what follows cannot be taken back."""
        self.list_pods = not self.observed.pods_listed

    def act(self, action: Action) -> None:
        """Have something done once the status is written."""
        self.actions.append(action)

    def tell(self, kind: Literal["Normal", "Warning"], reason: Reason, message: str) -> None:
        """Publish an event once the status is written."""
        self.events.append(Event(type=kind, reason=reason.value, message=message[:MAX_EVENT_MESSAGE]))

    def delete(self, pod: Pod, why: str) -> None:
        """Delete a pod that may still have something to save, unless it is being deleted."""
        if pod.deleted is None:
            self.act(DeletePod(name=pod.name, uid=pod.uid, why=why))

    def remove(self, pod: Pod, why: str) -> None:
        """Delete a pod that has nothing to save any more; one that was given longer to leave gets less."""
        longest = self.clock.after(2 * REMOVE_GRACE_S)
        if pod.deleted is None or pod.deleted > longest:
            self.act(DeletePod(name=pod.name, uid=pod.uid, why=why, grace_s=REMOVE_GRACE_S))

    def count_restart(self, role: str) -> None:
        """One more restart of a role's unit, of whatever kind."""
        roles = tuple(
            state.model_copy(update={"restarts": state.restarts + 1}) if state.name == role else state
            for state in self.status.roles
        )
        if all(state.name != role for state in roles):
            roles += (RoleState(name=role, restarts=1),)
        self.update(roles=roles, restarts=self.status.restarts + 1)
