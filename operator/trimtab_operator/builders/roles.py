"""One role of a resolved job, seen the same way whichever role it is."""

from dataclasses import dataclass

from trimtab.api import JobSpec
from trimtab.api.roles import RoleSpec
from trimtab_operator.constants import ACTOR, COORDINATOR, REWARD, ROLLOUT
from trimtab_operator.model.resolved import Resolved, RoleDefaults, Settings


@dataclass(frozen=True, kw_only=True)
class Role:
    """What is asked of the pods of one role, by the job and by the platform."""

    name: str
    spec: RoleSpec
    """The job's fields."""
    defaults: RoleDefaults
    """The platform's."""
    replicas: int
    """As resolved; live counts come from the current spec."""
    nodes: int
    """Pods of a replica."""
    gpus_per_node: int

    @property
    def image(self) -> str:
        """The job's image or the platform's; empty where neither says."""
        return self.spec.image or self.defaults.image


def role_of(spec: JobSpec, settings: Settings, name: str) -> Role:
    """The role of that name."""
    roles = spec.roles
    defaults = settings.roles.get(name, RoleDefaults())
    match name:
        case "coordinator":
            return _role(COORDINATOR, roles.coordinator, defaults)
        case "actor":
            actor = roles.actor
            return _role(ACTOR, actor, defaults, nodes=actor.nodes, gpus=actor.gpus_per_node)
        case "rollout":
            rollout = roles.rollout
            return _role(
                ROLLOUT, rollout, defaults, rollout.replicas, nodes=rollout.nodes, gpus=rollout.gpus_per_node
            )
        case "reward":
            reward = roles.reward
            return _role(REWARD, reward, defaults, reward.replicas, gpus=reward.gpus_per_node)
        case _:
            raise ValueError(f"there is no role {name!r}")


def resolved_role(resolved: Resolved, name: str) -> Role:
    """The role of that name of a resolved job."""
    return role_of(resolved.resolved_job.job.spec, resolved.settings, name)


def _role(
    name: str, spec: RoleSpec, defaults: RoleDefaults, replicas: int = 1, *, nodes: int = 1, gpus: int = 0
) -> Role:
    return Role(name=name, spec=spec, defaults=defaults, replicas=replicas, nodes=nodes, gpus_per_node=gpus)
