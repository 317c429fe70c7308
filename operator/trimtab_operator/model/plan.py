"""Which pods a job has: pod groups, and the places in them.

A pod group is a name and the roles that its pods host. Today every role has a group of its own;
colocation, gang scheduling and quota later count the same groups.
"""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PodGroup:
    """Pods that look alike: `replicas` units of `nodes` pods with `gpus_per_node` GPUs each."""

    name: str
    roles: tuple[str, ...]
    replicas: int
    nodes: int
    gpus_per_node: int


@dataclass(frozen=True, kw_only=True)
class PodPlan:
    """One pod that should exist."""

    job: str
    job_uid: str
    group: str
    role: str
    """The group's first role: names the pod."""
    replica: int
    node: int
    incarnation: int
    attempt: int

    @property
    def unit(self) -> str:
        """What restarts together: `actor-0`, `rollout-3`."""
        return f"{self.role}-{self.replica}"

    @property
    def name(self) -> str:
        """`<job>-<role>-<replica>-<node>-<hash of job uid, attempt and incarnation>`."""
        text = f"{self.job_uid}/{self.attempt}/{self.incarnation}"
        return f"{self.job}-{self.hostname}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"

    @property
    def hostname(self) -> str:
        """`coordinator-0-0`: stable over incarnations, so that the name in the headless Service is."""
        return f"{self.role}-{self.replica}-{self.node}"
