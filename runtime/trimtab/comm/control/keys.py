"""Who a worker is, as a value that can be compared, hashed and printed."""

from dataclasses import dataclass

from trimtab.v1 import control_pb2 as pb


@dataclass(frozen=True, order=True)
class WorkerKey:
    """One process of a job: its place (role, replica, node, rank) and which start of it this is."""

    role: str
    replica: int
    node: int
    rank: int
    incarnation: int

    def __str__(self) -> str:
        """`actor-0/rank-1`: the place without the incarnation; also the ZeroMQ identity."""
        return f"{self.role}-{self.replica}/rank-{self.rank}"

    @property
    def place(self) -> tuple[str, int, int, int]:
        """What stays the same when the worker is started again."""
        return (self.role, self.replica, self.node, self.rank)

    @classmethod
    def from_proto(cls, worker: pb.WorkerId) -> "WorkerKey":
        """Read the wire form."""
        return cls(worker.role, worker.replica, worker.node, worker.rank, worker.incarnation)

    def to_proto(self) -> pb.WorkerId:
        """The wire form."""
        return pb.WorkerId(
            role=self.role,
            replica=self.replica,
            node=self.node,
            rank=self.rank,
            incarnation=self.incarnation,
        )
