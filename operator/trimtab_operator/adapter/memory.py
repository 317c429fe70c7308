"""What the operator remembers of each job beside the caches. All of it can be lost: it is found out again."""

import time
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from trimtab_operator.model.resolved import Resolved


@dataclass
class JobMemory:
    """Of one job."""

    first_seen: float = field(default_factory=time.monotonic)
    resolved: Resolved | None = None
    """The resolved spec that was read or made last."""
    claims: Mapping[str, tuple[str, ...]] | None = None
    """Access modes of the claims that the job's volumes name."""
    claims_generation: int = -1
    """Of the spec that they were looked up for."""
    claims_at: float = 0.0
    rehearsal: tuple[str, ...] = ()
    """What the API server found wrong in a dry run of the job's objects."""
    rehearsed_generation: int = -1
    """Of the spec that it was asked about."""
    refused_pod: str = ""
    """Why the API server last refused to create a pod."""
    refused_child: str = ""
    """Why it last refused another object."""
    children: Hashable = None
    """What the children were applied for last."""
    children_at: float = 0.0
    pods_measured: bool = False
    """Whether the time to its first pods is known."""

    @property
    def refused(self) -> str:
        """Why the API server does not let the job have what it needs; empty: it does."""
        return self.refused_pod or self.refused_child


class Memories:
    """By the job's uid."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobMemory] = defaultdict(JobMemory)

    def of(self, uid: str) -> JobMemory:
        """What is remembered of a job."""
        return self._jobs[uid]

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._jobs.pop(uid, None)
