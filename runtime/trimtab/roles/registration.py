"""How a worker introduces itself. Called by each role's main before it makes its WorkerSession."""

import os

from trimtab.api import ResolvedJob
from trimtab.comm.control.constants import PROTOCOL_VERSION
from trimtab.comm.control.keys import WorkerKey
from trimtab.roles.environment import WorkerEnvironment
from trimtab.v1 import control_pb2 as pb


def worker_key(env: WorkerEnvironment) -> WorkerKey:
    """Who this process is; `str` of it is its name on the experience plane."""
    return WorkerKey(env.role, env.replica, env.node, env.rank, env.incarnation)


def registration(
    env: WorkerEnvironment,
    job: ResolvedJob,
    *,
    capacity: int = 0,
    store_port: int = 0,
    applied_step: int = -1,
    weight_version: int = -1,
    metrics_port: int = 0,
) -> pb.Register:
    """The registration of this process; what is left out has the proto's value for "none"."""
    return pb.Register(
        protocol_version=PROTOCOL_VERSION,
        worker=worker_key(env).to_proto(),
        attempt=job.attempt,
        training_identity=job.training_identity,
        host=env.host,
        store_port=store_port,
        world_size=env.world_size,
        capacity=capacity,
        applied_step=applied_step,
        weight_version=weight_version,
        pid=os.getpid(),
        metrics_port=metrics_port,
    )
