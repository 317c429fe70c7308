"""The actor role: one rank of the policy's SPMD world. Started by `trimtab.roles.worker`.

The main thread takes the coordinator's commands in order and drives the training engine; all ranks get
the same commands, so their collectives meet. The session and the experience link have threads of
their own, and heartbeats go on while the main thread computes.

    registered --InitActor--> ready --Update, LogProbs, SaveCheckpoint, Export, weights--> ready
                                |
                             Shutdown, or a failure in a collective: the process group is left, so that
                             the other ranks do not wait, and the coordinator starts the unit anew

Rank 0 hosts the TCPStore through which the ranks (and, for weights, the rollouts) find each other.
"""

import logging
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from trimtab.api import ResolvedJob
from trimtab.comm.experience import ExperienceLink
from trimtab.engines.training import TrainingSettings
from trimtab.engines.training.loading import read_config
from trimtab.errors import TrimtabError, UserError
from trimtab.observability.prometheus import RoleGauges, start_metrics_server
from trimtab.roles.actor_commands import ActorCommands
from trimtab.roles.environment import WorkerEnvironment
from trimtab.roles.leaving import tell_first
from trimtab.roles.registration import curve_of, new_session, registration, worker_key
from trimtab.v1 import control_pb2 as pb

logger = logging.getLogger(__name__)


def run(env: WorkerEnvironment, job: ResolvedJob) -> int:
    """Train until the coordinator says to leave; returns the exit code it asked for."""
    settings = TrainingSettings.from_job(job)
    device = torch.device("cpu")
    problem: TrimtabError | None = None
    try:
        device = choose_device(env, job)
        read_config(settings.model)  # before anything waits for anybody
    except TrimtabError as error:
        problem = error
    store = _host_store(env) if env.rank == 0 else None
    register = registration(
        env,
        job,
        store_port=0 if store is None else store.port,
        metrics_port=start_metrics_server(env.metrics_port, address=env.host),
    )
    link: ExperienceLink | None = None
    commands: ActorCommands | None = None

    def follow(welcome: pb.Welcome) -> None:
        if commands is not None:
            commands.give_up_group()
        if link is not None:
            link.set_address(welcome.experience_address)
            session.call_soon(link.follow)  # it waits for a command, and the batch comes first

    session = new_session(env, job, register, on_new_coordinator=follow)
    with session:
        welcome = session.start()
        if problem is not None:  # raised here, so that the coordinator is told
            raise problem
        if env.in_pod:
            tell_first(
                lambda name: session.leave(f"{name}: its pod is being ended"),
                alone_s=lambda: session.alone_s,
            )
        link = ExperienceLink(str(worker_key(env)), welcome.experience_address, curve_of(env))
        commands = ActorCommands(
            job,
            settings,
            session=session,
            link=link,
            device=device,
            gauges=RoleGauges(env.role, replica=env.replica, rank=env.rank),
            form_world=lambda init: form_world(init, store, job, device),
        )
        try:
            for command in session.commands():
                session.reply(commands.run(command))
        finally:
            commands.close()
            link.close()
            leave_world()
        shutdown = session.shutdown
        return 0 if shutdown is None else shutdown.exit_code


def choose_device(env: WorkerEnvironment, job: ResolvedJob) -> torch.device:
    """The GPU of this rank, or the CPU where the job gives the actor none; UserError where it is missing."""
    if job.job.spec.roles.actor.gpus_per_node == 0:
        return torch.device("cpu")
    num_gpus = torch.cuda.device_count()
    if env.local_rank >= num_gpus:
        raise UserError(
            f"spec.roles.actor.gpusPerNode: {job.job.spec.roles.actor.gpus_per_node} GPUs per pod are asked "
            f"for, this machine shows {num_gpus}; lower the number (0: use the CPU), or run where they are"
        )
    device = torch.device("cuda", env.local_rank)
    torch.cuda.set_device(device)
    return device


def form_world(init: pb.InitActor, store: TCPStore | None, job: ResolvedJob, device: torch.device) -> None:
    """Make the default process group, in a corner of the store that no earlier incarnation has used."""
    if store is None:
        store = TCPStore(
            init.store_host, init.store_port, is_master=False, timeout=timedelta(seconds=init.timeout_s)
        )
    # A collective may wait for the slowest rank's whole update, or for another's part of a checkpoint.
    deadlines = job.job.spec.deadlines
    limit_s = max(deadlines.update_seconds, deadlines.checkpoint_seconds, init.timeout_s)
    dist.init_process_group(
        "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
        store=PrefixStore(init.group_name, store),
        rank=init.rank,
        world_size=init.world_size,
        timeout=timedelta(seconds=limit_s),
        device_id=device if device.type == "cuda" else None,
    )


def leave_world() -> None:
    """Close the process group, whose peers then stop waiting for this rank; safe to repeat."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _host_store(env: WorkerEnvironment) -> TCPStore:
    return TCPStore(env.host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
