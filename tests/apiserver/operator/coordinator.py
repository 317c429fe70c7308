"""The coordinator of a job, played by the test: a gRPC server that says what it is told to."""

import grpc.aio

from trimtab.v1 import job_control_pb2 as pb
from trimtab.v1 import job_control_pb2_grpc as rpc


class Coordinator(rpc.JobControlServicer):
    """Says `status`, and records what it is told."""

    def __init__(self) -> None:
        self.status = pb.JobStatus(phase="Starting")
        self.stops: list[pb.StopRequest] = []
        self.sizes: list[pb.ResizeRequest] = []
        self.server = grpc.aio.server()

    async def GetStatus(self, request: pb.GetStatusRequest, context: object) -> pb.JobStatus:  # noqa: N802
        return self.status

    async def Stop(self, request: pb.StopRequest, context: object) -> pb.StopResponse:  # noqa: N802
        self.stops.append(request)
        return pb.StopResponse()

    async def Resize(self, request: pb.ResizeRequest, context: object) -> pb.ResizeResponse:  # noqa: N802
        self.sizes.append(request)
        wanted = {"rollout": request.rollout_replicas, "reward": request.reward_replicas}
        for role in self.status.roles:
            role.desired = wanted.get(role.role, role.desired)
        return pb.ResizeResponse()

    def trains(self, attempt: int, step: int, *, rollouts: int = 2) -> None:
        """Take steps with everybody registered."""
        counts = {"actor": 1, "rollout": rollouts, "reward": 1}
        self.status = pb.JobStatus(
            attempt=attempt,
            phase="Running",
            step=step,
            total_steps=8,
            metrics={"critic/rewards/mean": 0.5},
            roles=[
                pb.RoleStatus(role=role, desired=count, ready=count, min_desired=1)
                for role, count in counts.items()
            ],
            checkpoint_path="/trimtab/run/checkpoints/step-2",
            checkpoint_step=2,
        )
