"""What one operator knows of the job and of its pods.

Both caches take the changes in the order in which they happened, each at a pace of its own, and never go
back: that is what a watch gives. What the operator itself wrote is in them at once, as the API server
answered it. A process that starts, and a watch that starts anew, list first.
"""

from typing import Generic, TypeVar

from tests.unit.operator.reconcile.world.cluster import Cluster

from trimtab_operator.model.observed import Job, Pod

T = TypeVar("T")


class Watch(Generic[T]):
    """A log that is delivered bit by bit; `follows`: all of it, whenever somebody looks."""

    def __init__(self, log: list[T]) -> None:
        self._log = log
        self.at = 0
        self.follows = True

    @property
    def behind(self) -> int:
        """Changes that have not been delivered."""
        return len(self._log) - self.at

    def next(self, count: int) -> list[tuple[int, T]]:
        """Deliver so many more changes, each with its version."""
        first, self.at = self.at, min(self.at + count, len(self._log))
        return list(enumerate(self._log[first : self.at], first))


class JobCache:
    """The newest state of the job that was delivered, or read."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.watch = Watch(cluster.job_log)
        self.read()

    def read(self) -> None:
        """Ask the API server."""
        self.watch.next(self.watch.behind)
        self._job = self._cluster.job

    def deliver(self, count: int) -> None:
        """Take so many more changes."""
        for _, job in self.watch.next(count):
            if (
                job is None
                or self._job is None
                or int(job.resource_version) > int(self._job.resource_version)
            ):
                self._job = job

    def put_own(self, job: Job) -> None:
        """The answer to a write."""
        self._job = job

    def get(self) -> Job | None:
        """The job; None: it is gone."""
        if self.watch.follows:
            self.deliver(self.watch.behind)
        return self._job


class PodCache:
    """The newest state of each pod that was delivered, listed, or answered to a write."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.watch = Watch(cluster.pod_log)
        self._pods: dict[str, tuple[int, Pod]] = {}
        self._gone: set[str] = set()
        self.list()

    def list(self) -> None:
        """Ask the API server for all of them; the watch stays where it is."""
        version = len(self._cluster.pod_log) - 1
        there = {pod.uid: (version, pod) for pod in self._cluster.pods.values()}
        self._gone |= self._pods.keys() - there.keys()
        self._pods = there

    def relist(self) -> None:
        """Begin anew: with a list, and a watch from there."""
        self.list()
        self.watch.next(self.watch.behind)

    def deliver(self, count: int) -> None:
        """Take so many more changes."""
        for version, change in self.watch.next(count):
            if change.pod is None:
                self._remove(change.uid)
            elif change.uid not in self._gone and self._pods.get(change.uid, (-1,))[0] < version:
                self._pods[change.uid] = version, change.pod

    def answer(self, name: str, uid: str) -> None:
        """The API server's answer to a create or a delete: the pod as it is now, or that it is gone."""
        pod = self._cluster.pods.get(name)
        if pod is not None and (uid in ("", pod.uid)):
            self._pods[pod.uid] = len(self._cluster.pod_log) - 1, pod
        elif uid:
            self._remove(uid)

    def all(self) -> tuple[Pod, ...]:
        """Every pod, those being deleted included."""
        if self.watch.follows:
            self.deliver(self.watch.behind)
        return tuple(pod for _, pod in self._pods.values())

    def _remove(self, uid: str) -> None:
        self._gone.add(uid)
        self._pods.pop(uid, None)
