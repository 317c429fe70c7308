"""The pods of a job on this machine: which there are, and each one's environment."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from trimtab.api import ResolvedJob
from trimtab.errors import UserError
from trimtab.roles.environment import ACTOR, COORDINATOR, REWARD, ROLLOUT, PodEnvironment

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Replica:
    """What is started and restarted together: `nodes` pods of one role."""

    role: str
    index: int
    nodes: int = 1
    gpus: tuple[tuple[str, ...], ...] = ((),)
    """For each node, the GPUs it is given, by CUDA's names."""

    @property
    def name(self) -> str:
        """`rollout-1`."""
        return f"{self.role}-{self.index}"


def local_gpus(environ: Mapping[str, str]) -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        return [name for name in environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]
    devices = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted(devices, key=int)


def replicas_of(job: ResolvedJob, gpus: Sequence[str]) -> list[Replica]:
    """Every replica of the job, the coordinator first; the GPUs are dealt out in order, each once.

    `check_local` comes first: there are enough.
    """
    roles = job.job.spec.roles
    sizes = [(COORDINATOR, 0, 1, 0), (ACTOR, 0, roles.actor.nodes, roles.actor.gpus_per_node)]
    sizes += [
        (ROLLOUT, index, roles.rollout.nodes, roles.rollout.gpus_per_node)
        for index in range(roles.rollout.replicas)
    ]
    sizes += [(REWARD, index, 1, roles.reward.gpus_per_node) for index in range(roles.reward.replicas)]
    replicas, left = [], iter(gpus)
    for role, index, nodes, per_node in sizes:
        given = tuple(tuple(islice(left, per_node)) for _ in range(nodes))
        replicas.append(Replica(role, index, nodes, given))
    return replicas


def check_local(job: ResolvedJob, gpus: Sequence[str]) -> None:
    """UserError where the job asks for what only a cluster has, or for more GPUs than these."""
    spec = job.job.spec
    if spec.suspend:
        raise UserError("spec.suspend is true: set it to false to run the job")
    if spec.code is not None and spec.code.path is None:
        raise UserError("spec.code: on this machine only `path` (a local folder) is available")
    if spec.code is not None and spec.code.path is not None:
        folder = Path(job.base_dir) / spec.code.path
        if not folder.is_dir():
            raise UserError(f"spec.code.path is {spec.code.path!r}: there is no folder {folder}")
    for role in (COORDINATOR, ACTOR, ROLLOUT, REWARD):
        for variable in getattr(spec.roles, role).env:
            if variable.value is None:
                raise UserError(
                    f"spec.roles.{role}.env[{variable.name}].valueFrom: this machine has no cluster to take "
                    "it from; give `value`"
                )
    _check_gpus(job, len(gpus))


def _check_gpus(job: ResolvedJob, available: int) -> None:
    """Every role has GPUs of its own: sharing one would need colocation."""
    roles = job.job.spec.roles
    counts = {
        "actor": (roles.actor.gpus_per_node, roles.actor.nodes),
        "rollout": (roles.rollout.gpus_per_node, roles.rollout.nodes * roles.rollout.replicas),
        "reward": (roles.reward.gpus_per_node, roles.reward.replicas),
    }
    asking = {role: (each, pods) for role, (each, pods) in counts.items() if each}
    wanted = sum(each * pods for each, pods in asking.values())
    if wanted <= available:
        return
    terms = " + ".join(
        f"spec.roles.{role}.gpusPerNode {each}" + (f" in each of {pods} pods" if pods > 1 else "")
        for role, (each, pods) in asking.items()
    )
    raise UserError(
        f"{terms}: {wanted} GPUs in all, and this machine offers {available}, each to one role; lower a "
        "number (0: that role runs on the CPU), or run where more are in CUDA_VISIBLE_DEVICES"
    )


def pod_environ(
    job: ResolvedJob,
    replica: Replica,
    *,
    node: int,
    incarnation: int,
    coordinator: str,
    job_path: Path,
    logs: Path,
    environ: Mapping[str, str],
) -> tuple[PodEnvironment, dict[str, str]]:
    """What the pod's agent is told, and all its environment variables."""
    env = PodEnvironment(
        job_path=job_path,
        role=replica.role,
        replica=replica.index,
        node=node,
        incarnation=incarnation,
        coordinator=coordinator,
        host=HOST,
        termination_log=logs / f"{replica.name}-{node}.termination",
        log_dir=logs,
        launcher_pid=os.getpid(),
    )
    spec = job.job.spec
    variables = dict(environ)
    # Without it Python would hold the last lines of a process that dies.
    variables["PYTHONUNBUFFERED"] = "1"
    if spec.code is not None and spec.code.path is not None:
        paths = [str(Path(job.base_dir) / spec.code.path), environ.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if any(local_gpus(environ)):
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(replica.gpus[node])
    for variable in getattr(spec.roles, replica.role).env:
        assert variable.value is not None, "check_local comes first"
        variables[variable.name] = variable.value
    return env, variables | env.to_environ()
