"""How a worker introduces itself and proves who it is. Called by each role's main."""

from collections.abc import Callable

from trimtab.api import ResolvedJob
from trimtab.comm.control import WorkerSession
from trimtab.comm.control.constants import PROTOCOL_VERSION
from trimtab.comm.control.keys import WorkerKey
from trimtab.comm.tls import COORDINATOR, WORKER, CurveClient, JobTls
from trimtab.roles import environment
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
        metrics_port=metrics_port,
    )


def tls_of(env: WorkerEnvironment) -> JobTls | None:
    """The certificates of this process; None where everything is plain."""
    if env.tls_dir is None:
        return None
    return JobTls(env.tls_dir, COORDINATOR if env.role == environment.COORDINATOR else WORKER)


def curve_of(env: WorkerEnvironment) -> CurveClient | None:
    """A worker's keys for the experience plane; None where everything is plain."""
    tls = tls_of(env)
    return None if tls is None else tls.curve_client()


def new_session(
    env: WorkerEnvironment,
    job: ResolvedJob,
    register: pb.Register,
    *,
    on_new_coordinator: Callable[[pb.Welcome], None],
) -> WorkerSession:
    """The session of this process, by the job's deadlines; not started yet."""
    deadlines = job.job.spec.deadlines
    return WorkerSession(
        register,
        env.coordinator,
        dial_timeout_s=deadlines.registration_seconds,
        silence_s=deadlines.heartbeat_seconds,
        tls=tls_of(env),
        on_new_coordinator=on_new_coordinator,
    )
