"""The ledger and the pods side by side: each unit with the pods that it has, and the pods that nobody has."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from trimtab.api.status import JobStatus, UnitState
from trimtab_operator.constants import ACTOR, COORDINATOR
from trimtab_operator.model.observed import Pod
from trimtab_operator.model.plan import PodGroup

COORDINATOR_UNIT = "coordinator-0"
ACTOR_UNIT = "actor-0"
EXCLUSIVE = (COORDINATOR, ACTOR)
"""Roles of which two incarnations must never run at once: both would write."""


def has_ended(pod: Pod) -> bool:
    """Whether its main container is over, whatever its sidecars do."""
    return pod.exit_code is not None or pod.phase in ("Succeeded", "Failed")


def ended_well(pod: Pod) -> bool:
    """Whether it ended as it should, told to leave."""
    return pod.exit_code == 0 or (pod.exit_code is None and pod.phase == "Succeeded")


def is_alive(pod: Pod) -> bool:
    """Whether it runs and is meant to stay."""
    return pod.phase == "Running" and pod.exit_code is None and pod.deleted is None


def split_name(unit: str) -> tuple[str, int]:
    """Role and replica of a unit's name."""
    role, _, replica = unit.rpartition("-")
    return role, int(replica)


@dataclass
class Unit:
    """What restarts together."""

    role: str
    replica: int
    nodes: int
    state: UnitState
    pods: dict[int, Pod] = field(default_factory=dict)
    """Of the incarnation that should exist, by node."""
    older: list[Pod] = field(default_factory=list)
    """Of earlier incarnations and attempts."""

    @property
    def name(self) -> str:
        """`rollout-3`."""
        return self.state.name

    @property
    def missing(self) -> list[int]:
        """Nodes without a pod."""
        return [node for node in range(self.nodes) if node not in self.pods]

    @property
    def is_up(self) -> bool:
        """Whether all its pods run."""
        return len(self.pods) == self.nodes and all(map(is_alive, self.pods.values()))

    @property
    def waits(self) -> bool:
        """Whether pods of it that were asked for have no node yet."""
        if self.state.created is None:
            return False
        return bool(self.missing) or any(not (pod.node_name or has_ended(pod)) for pod in self.pods.values())

    def change(self, **fields: object) -> None:
        """Change its entry in the ledger."""
        self.state = self.state.model_copy(update=fields)


@dataclass
class Survey:
    """All units of a start of the job."""

    units: dict[str, Unit]
    stray: list[Pod]
    """Of earlier attempts, and of no unit of this one."""

    @property
    def wanted(self) -> Iterator[Unit]:
        """Those that should have pods, in the order of the roles."""
        return (unit for unit in self.units.values() if not unit.state.retired)

    @property
    def coordinator(self) -> Unit:
        """The one that runs the dataflow."""
        return self.units[COORDINATOR_UNIT]

    @property
    def actor(self) -> Unit:
        """All ranks of the policy."""
        return self.units[ACTOR_UNIT]

    def of_role(self, role: str) -> list[Unit]:
        """A role's wanted units."""
        return [unit for unit in self.wanted if unit.role == role]

    @property
    def ledger(self) -> tuple[UnitState, ...]:
        """What the status remembers of them."""
        return tuple(unit.state for unit in self.units.values())


def survey(status: JobStatus, groups: Sequence[PodGroup], pods: Iterable[Pod]) -> Survey:
    """Sort the pods by unit. Those of a later incarnation than the ledger knows are left alone."""
    nodes = {group.roles[0]: group.nodes for group in groups}
    units = {}
    for state in status.units:
        role, replica = split_name(state.name)
        units[state.name] = Unit(role, replica, nodes.get(role, 1), state)
    found = Survey(units=units, stray=[])
    for pod in pods:
        _sort_in(found, pod, status.attempt)
    return found


def _sort_in(found: Survey, pod: Pod, attempt: int) -> None:
    unit = found.units.get(f"{pod.role}-{pod.replica}")
    if unit is None:
        if pod.attempt < attempt:
            found.stray.append(pod)
        return
    incarnation = unit.state.incarnation
    if (pod.attempt, pod.incarnation) == (attempt, incarnation) and not unit.state.retired:
        unit.pods[pod.node] = pod
    elif (pod.attempt, pod.incarnation) <= (attempt, incarnation):
        unit.older.append(pod)
