"""Two jobs at once: no pod of another job, in this or another namespace, reaches a port of a job's pods."""

import json
from typing import NamedTuple

from tests.cluster.conftest import MakeSpace
from tests.cluster.jobs import ROLES, SLEEP, Job, Space, paced_job

LISTENING = """
import json, socket, struct
found = []
for line in open("/proc/net/tcp").readlines()[1:] + open("/proc/net/tcp6").readlines()[1:]:
    fields = line.split()
    address, port = fields[1].split(":")
    if fields[3] == "0A" and not address.endswith("0100007F"):
        found.append(int(port, 16))
print(json.dumps(sorted(set(found))))
"""
CONNECT = """
import concurrent.futures, json, socket, sys

def reaches(target):
    with socket.socket() as probe:
        probe.settimeout(float(sys.argv[2]))
        try:
            probe.connect(tuple(target))
        except OSError:
            return False
        return True

targets = json.loads(sys.argv[1])
with concurrent.futures.ThreadPoolExecutor(max(1, len(targets))) as threads:
    print(json.dumps([target for target, yes in zip(targets, threads.map(reaches, targets)) if yes]))
"""


class Port(NamedTuple):
    """A port that a pod listens on."""

    address: str
    port: int


def ports(job: Job) -> set[Port]:
    """Every port that the job's pods listen on, beyond their own loopback."""
    found = set()
    for pod in job.pods():
        listening = job.kube.exec(pod["metadata"]["name"], "python", "-c", LISTENING, container="trimtab")
        found |= {Port(pod["status"]["podIP"], port) for port in json.loads(listening)}
    return found


def reached(space: Space, pod: str, targets: set[Port], *, container: str, timeout_s: float) -> set[Port]:
    """Those that a pod can connect to."""
    command = ("python", "-c", CONNECT, json.dumps(sorted(targets)), str(timeout_s))
    answer = space.kube.exec(pod, *command, container=container, timeout_s=90.0)
    return {Port(*target) for target in json.loads(answer)}


def test_two_jobs_train_side_by_side_and_reach_nothing_of_each_other(make_space: MakeSpace):
    here, there = make_space("here"), make_space("there")
    first = here.start(paced_job("first", steps=12, pause_s=0.5))
    second = here.start(paced_job("second", steps=12, pause_s=0.5))
    third = there.start(paced_job("first", steps=12, pause_s=0.5))
    jobs = (first, second, third)
    for job in jobs:
        job.until_step(1)
    open_ports = ports(first)
    by_role = {role: job_ports(first, role, open_ports) for role in ROLES}
    assert all(by_role[role] for role in ("coordinator", "actor", "rollout")), by_role

    own = reached(here, first.running_pod("actor"), open_ports, container="trimtab", timeout_s=5.0)
    assert own == open_ports, "the job's own pods reach each other"
    here.run_pod("stranger", here.control, *SLEEP)
    strangers = [
        (here, "stranger", "main"),
        (here, second.running_pod("rollout"), "trimtab"),
        (there, third.running_pod("actor"), "trimtab"),
        (there, "reader", "main"),
    ]
    for space, pod, container in strangers:
        assert reached(space, pod, open_ports, container=container, timeout_s=3.0) == set(), pod
    for job in jobs:
        job.is_complete_and_whole()


def job_ports(job: Job, role: str, open_ports: set[Port]) -> set[Port]:
    """Those of one role's pods."""
    addresses = {pod["status"]["podIP"] for pod in job.pods(role)}
    return {port for port in open_ports if port.address in addresses}
