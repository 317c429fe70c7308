"""Which fields of a job may change, and when: the CRD's rules, the operator and the docs ask here.

A running job takes some changes as they come. Others need new pods, and are allowed while it is suspended.
What makes the training this one and no other never changes: a checkpoint would not fit any more. Before
its first start, as long as its spec is refused or it is held, a job is free to change but for whose it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel

from trimtab.api.fields import fields_of, object_of
from trimtab.api.job import JobSpec

When = Literal["always", "suspended", "never"]

ALWAYS = frozenset(
    {
        "suspend",
        "roles.rollout.replicas",
        "roles.rollout.minReplicas",
        "roles.reward.replicas",
        "roles.reward.minReplicas",
        "failurePolicy.maxRestarts",
        "activeDeadlineSeconds",
        "pendingDeadlineSeconds",
        "ttlSecondsAfterFinished",
        "cleanupPolicy",
    }
)
"""Paths below `spec` that the operator reads anew at each look, of a running job too."""

WHOSE = "managedBy"
"""Says which controller the job belongs to."""

NEVER = frozenset(
    {
        # what the training identity covers (resolve.training_identity)
        "model",
        "data",
        "algorithm",
        "training.precision",
        "seed",
        "roles.actor.model",
        "roles.critic.model",
        "roles.reference.model",
        WHOSE,
    }
)
"""Paths below `spec` that stay as they were created."""


@dataclass(frozen=True)
class Part:
    """A part of the spec that changes as one."""

    path: str
    """Below `spec`, in the file's names."""
    python_path: tuple[str, ...]
    when: When


@cache
def parts() -> tuple[Part, ...]:
    """The whole spec in the fewest parts that each have one answer, in the order of the file."""
    return tuple(_parts(JobSpec, (), ()))


def changed(old: JobSpec, new: JobSpec) -> tuple[Part, ...]:
    """The parts in which two specs differ, every default filled in."""
    return tuple(part for part in parts() if _value(old, part) != _value(new, part))


def _parts(model: type[BaseModel], names: tuple[str, ...], python: tuple[str, ...]) -> Iterator[Part]:
    for field in fields_of(model):
        here, python_here = (*names, field.name), (*python, field.python_name)
        path = ".".join(here)
        if path in ALWAYS:
            yield Part(path, python_here, "always")
        elif path in NEVER:
            yield Part(path, python_here, "never")
        elif any(listed.startswith(f"{path}.") for listed in ALWAYS | NEVER):
            child = object_of(field.info)
            assert child is not None, f"{path} has no fields"
            yield from _parts(child, here, python_here)
        else:
            yield Part(path, python_here, "suspended")


def _value(spec: JobSpec, part: Part) -> Any:
    value: Any = spec
    for name in part.python_path:
        value = None if value is None else getattr(value, name)
    return value
