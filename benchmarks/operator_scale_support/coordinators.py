"""The coordinators of all jobs, played by one process: real gRPC with each job's own certificates.

KWOK gives every pod an address of its own in 127.0.0.0/8 (the nodes' pod network), all of which is this
machine; so each coordinator listens where its pod is said to be, and the operator finds it there as it finds
a real one. Keys come from the jobs' Secrets. Started by `operator_scale.py`:

    python operator_scale_support/coordinators.py KUBECONFIG NAMESPACE

prints `ready` once all listen. A step takes `STEP_S`; SIGUSR1 makes all stand still for good.
"""

import asyncio
import base64
import hashlib
import signal
import sys
import time
from pathlib import Path

import grpc
import grpc.aio
from api import Api, Manifest

from trimtab.comm.control.constants import SERVER_OPTIONS
from trimtab.comm.control.job_control import JobControlServicer
from trimtab.comm.control.peers import Peers
from trimtab.observability.registry import all_metrics
from trimtab.v1 import job_control_pb2 as pb
from trimtab.v1 import job_control_pb2_grpc as rpc
from trimtab_operator.constants import CONTROL_PORT, COORDINATOR, LABEL_ATTEMPT, LABEL_JOB, LABEL_ROLE

STEP_S = 10.0
TOTAL_STEPS = 100_000
WORKERS = {"actor": 1, "rollout": 3, "reward": 1}
METRICS = sorted(metric.name for metric in all_metrics() if "{" not in metric.name)


class Clock:
    """The time that the coordinators go by; it can be stopped."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._stopped: float | None = None

    def stop(self) -> None:
        """Let no time pass any more."""
        self._stopped = self._stopped or time.monotonic()

    @property
    def passed_s(self) -> float:
        """Since the beginning."""
        return (self._stopped or time.monotonic()) - self._begun


class Player:
    """One job's coordinator: everybody is registered, and a step takes `STEP_S`. A `JobControlHandler`."""

    def __init__(self, name: str, attempt: int, clock: Clock) -> None:
        self._name = name
        self._attempt = attempt
        self._clock = clock
        # Not all in the same second, as in life.
        self._ahead_s = int.from_bytes(hashlib.sha256(name.encode()).digest()[:2], "big") / 2**16 * STEP_S

    async def get_status(self) -> pb.JobStatus:
        """What a coordinator says between two steps."""
        step, within_s = divmod(self._clock.passed_s + self._ahead_s, STEP_S)
        answered = int(within_s / STEP_S * 64)
        return pb.JobStatus(
            name=self._name,
            attempt=self._attempt,
            phase="Running",
            activity=f"generating ({answered} of 64 responses); rollout-0 has {64 - answered}",
            step=int(step),
            total_steps=TOTAL_STEPS,
            epoch=step / 100,
            seconds_left=(TOTAL_STEPS - step) * STEP_S,
            metrics={name: step / (place + 1) for place, name in enumerate(METRICS)},
            roles=[
                pb.RoleStatus(role=role, desired=count, min_desired=1, ready=count)
                for role, count in WORKERS.items()
            ],
            checkpoint_path=f"/trimtab/run/{self._name}/checkpoints/step-{int(step) // 10 * 10}",
            checkpoint_step=int(step) // 10 * 10,
        )


async def serve(pod: Manifest, secret: dict[str, str], clock: Clock) -> grpc.aio.Server:
    """Listen at the pod's address, with the job's keys."""
    labels = pod["metadata"]["labels"]
    data = {name: base64.b64decode(text) for name, text in secret.items()}
    server = grpc.aio.server(options=SERVER_OPTIONS)
    player = Player(labels[LABEL_JOB], int(labels[LABEL_ATTEMPT]), clock)
    rpc.add_JobControlServicer_to_server(JobControlServicer(player, Peers(secured=True)), server)
    credentials = grpc.ssl_server_credentials(
        [(data["coordinator.key"], data["coordinator.crt"])],
        root_certificates=data["ca.crt"],
        require_client_auth=True,
    )
    server.add_secure_port(f"{pod['status']['podIP']}:{CONTROL_PORT}", credentials)
    await server.start()
    return server


async def main(kubeconfig: Path, namespace: str) -> None:
    """Play until told to stop."""
    core = f"/api/v1/namespaces/{namespace}"
    async with Api(kubeconfig) as api:
        pods = await api.items(f"{core}/pods", labelSelector=f"{LABEL_ROLE}={COORDINATOR}")
        secrets = {each["metadata"]["name"]: each["data"] for each in await api.items(f"{core}/secrets")}
    clock, stop = Clock(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, clock.stop)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    servers = []
    for pod in pods:
        servers.append(await serve(pod, secrets[f"{pod['metadata']['labels'][LABEL_JOB]}-tls"], clock))
    print("ready", flush=True)
    await stop.wait()
    await asyncio.gather(*(server.stop(None) for server in servers))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
