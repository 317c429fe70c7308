"""A namespace with its volume, and the jobs that a test starts in it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.kube import CommandError, Kube, Manifest, until

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart"
OPERATOR_NAMESPACE = "trimtab-system"
DATA_MOUNT = "/data"
CLAIM = "trimtab"
ROLES = ("coordinator", "actor", "rollout", "reward")
RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONFINED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}

NUM_ROWS, PROMPTS_PER_STEP, GROUP_SIZE = 24, 4, 4
PACED_REWARD = '''
import time

def score(*, prompt: str, response: str, fields: dict, pause_s: float) -> float:
    """Takes a while, so that faults find the job in the middle of a step."""
    time.sleep(pause_s)
    return float(response == fields["answer"])
'''


def paced_job(name: str, *, steps: int = 12, pause_s: float = 0.1) -> Manifest:
    """A job with the `hf` engine; a step takes at least 16 pauses, and every sample of it is recorded."""
    one_thread = [{"name": "OMP_NUM_THREADS", "value": "1"}]
    small = {"requests": {"cpu": "50m", "memory": "256Mi"}}
    return {
        "apiVersion": "trimtab.dev/v1alpha1",
        "kind": "RLTrainingJob",
        "metadata": {"name": name},
        "spec": {
            "seed": 3,
            "model": {"path": f"{DATA_MOUNT}/quickstart/model"},
            "code": {"configMap": {"name": "paced"}},
            "data": {"train": {"path": f"{DATA_MOUNT}/paced.jsonl"}, "maxPromptTokens": 16},
            "algorithm": {"grpo": {"groupSize": GROUP_SIZE, "kl": {"coefficient": 0.0}}},
            "training": {
                "steps": steps,
                "promptsPerStep": PROMPTS_PER_STEP,
                "maxResponseTokens": 8,
                "maxTokensPerMicroBatch": 1024,
                "gradientCheckpointing": False,
                "precision": {"compute": "float32"},
                "optimizer": {"learningRate": 1e-4},
            },
            "rewards": [{"function": "paced:score", "arguments": {"pause_s": pause_s}}],
            "roles": {
                "coordinator": {"env": one_thread, "resources": small},
                "actor": {"env": one_thread, "resources": small},
                "rollout": {"env": one_thread, "resources": small, "engine": {"hf": {}}},
                "reward": {"env": one_thread, "resources": small, "workersPerReplica": 1},
            },
            "checkpoint": {"everySteps": 2, "exportAtEnd": False},
            "tracking": {
                "tensorboard": False,
                "samplesPerStep": 10_000,
                "health": {"flatRewardSteps": None, "minEntropy": None, "maxLogProbDifference": None},
            },
            "deadlines": {"heartbeatSeconds": 15, "registrationSeconds": 240, "stopGraceSeconds": 20},
            "volumes": [{"name": "trimtab", "persistentVolumeClaim": {"claimName": CLAIM}}],
            "volumeMounts": [{"name": "trimtab", "mountPath": DATA_MOUNT}],
            "storage": {"volume": {"name": "trimtab", "subPath": "runs"}},
        },
    }


def output(kube: Kube, *arguments: str) -> str:
    """What a command says, its error included: for a failure's message."""
    try:
        return kube(*arguments)
    except CommandError as error:
        return str(error)


class Job:
    """One RLTrainingJob that was applied."""

    def __init__(self, space: "Space", name: str) -> None:
        self.space = space
        self.kube = space.kube
        self.name = name
        self.uid = self.object()["metadata"]["uid"]
        self.folder = f"{DATA_MOUNT}/runs/{name}-{self.uid[:8]}"

    def object(self) -> Manifest:
        """The custom object."""
        found = self.kube.get("rltj", self.name)
        assert found is not None, f"{self.name} is gone"
        return found

    def status(self) -> Manifest:
        """Its status."""
        status: Manifest = self.object().get("status", {})
        return status

    def condition(self, type_: str) -> tuple[str, str]:
        """(status, reason) of a condition; empty before it is there."""
        for condition in self.status().get("conditions", ()):
            if condition["type"] == type_:
                return condition["status"], condition["reason"]
        return "", ""

    def pods(self, role: str | None = None) -> list[Manifest]:
        """Its pods that are not being deleted, by name."""
        selector = f"trimtab.dev/job-uid={self.uid}" + (f",trimtab.dev/role={role}" if role else "")
        found = [pod for pod in self.kube.list("pod", selector) if "deletionTimestamp" not in pod["metadata"]]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def running_pod(self, role: str) -> str:
        """Name of a running pod of a role, once there is one."""

        def found() -> str:
            pods = [pod for pod in self.pods(role) if pod["status"].get("phase") == "Running"]
            return str(pods[0]["metadata"]["name"]) if pods else ""

        return str(self.until(found, f"a running {role}", timeout_s=180))

    def restarts(self, role: str, replica: int = 0) -> int:
        """How often a unit was started again."""
        for unit in self.status().get("units", ()):
            if unit["name"] == f"{role}-{replica}":
                return int(unit.get("restarts", 0))
        return 0

    def records(self, file: str) -> list[Manifest]:
        """metrics.jsonl or samples.jsonl of the run, as far as it is."""
        text = self.space.read(f"{self.folder}/{file}")
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def step(self) -> int:
        """Steps done, by the run's own records."""
        return max((int(record["step"]) for record in self.records("metrics.jsonl")), default=0)

    def until(self, condition: Callable[[], Any], what: str, *, timeout_s: float = 240.0) -> Any:
        """Wait; fails with everything that there is to see. A job that failed is not waited for."""

        def or_failed() -> Any:
            found = condition()
            if not found and self.condition("Failed")[0] == "True" and "Failed" not in what:
                pytest.fail(f"the job failed before {what}\n{self.explain()}", pytrace=False)
            return found

        return until(or_failed, f"{self.name}: {what}", timeout_s=timeout_s, explain=self.explain)

    def until_step(self, step: int) -> None:
        """Wait until so many steps are done."""
        self.until(lambda: self.step() >= step, f"step {step}")

    def until_condition(self, type_: str, status: str = "True", *, timeout_s: float = 300.0) -> None:
        """Wait for a condition."""
        self.until(lambda: self.condition(type_)[0] == status, f"{type_} {status}", timeout_s=timeout_s)

    def is_complete_and_whole(self, *, steps: int = 12, timeout_s: float = 300.0) -> None:
        """Complete, every step recorded once, and every prompt trained on as often as it should be."""
        self.until_condition("Complete", timeout_s=timeout_s)
        status = self.status()
        assert (status["step"], status["totalSteps"]) == (steps, steps)
        metrics = self.records("metrics.jsonl")
        assert [record["step"] for record in metrics] == list(range(1, steps + 1))
        per_step = PROMPTS_PER_STEP * GROUP_SIZE
        assert {record["training/num_responses"] for record in metrics} == {per_step}
        samples = [record for record in self.records("samples.jsonl") if record["kind"] == "train"]
        seen: dict[str, int] = {}
        for record in samples:
            seen[record["prompt"]] = seen.get(record["prompt"], 0) + 1
        epochs, rest = divmod(steps * PROMPTS_PER_STEP, NUM_ROWS)
        assert rest == 0, "choose steps so that epochs come out even"
        assert len(seen) == NUM_ROWS
        assert set(seen.values()) == {GROUP_SIZE * epochs}, "samples lost or doubled"

    def explain(self) -> str:
        """What a person would look at."""
        parts = [json.dumps(self.status(), indent=1)] if self.kube.get("rltj", self.name) else ["gone"]
        for title, arguments in (
            ("pods", ("get", "pods", "-o", "wide")),
            ("events", ("get", "events", "--sort-by=.lastTimestamp")),
        ):
            parts.append(f"--- {title}\n{output(self.kube, *arguments)}")
        for pod in self.pods():
            name = pod["metadata"]["name"]
            parts.append(f"--- {name}\n{output(self.kube, 'logs', name, '--tail=25', '--all-containers')}")
        log = output(Kube(OPERATOR_NAMESPACE), "logs", "deploy/trimtab", "--tail=40")
        return "\n".join([*parts, f"--- operator\n{log}"])


class Space:
    """A namespace that enforces `restricted`, with a claim on the volume that all nodes share."""

    def __init__(self, name: str, *, worker: str, control: str) -> None:
        self.kube = Kube(name)
        self.worker, self.control = worker, control
        self.jobs: list[Job] = []

    def start(self, job: Manifest) -> Job:
        """Apply a job."""
        self.kube.apply(job)
        started = Job(self, job["metadata"]["name"])
        self.jobs.append(started)
        return started

    def run_pod(self, name: str, image: str, *command: str, **spec: Any) -> None:
        """Start a pod as the restricted standard wants it, with the volume, and wait until it runs."""
        self.kube.apply(helper_pod(name, image, *command, **spec))
        self.kube("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=120s", timeout_s=130)

    def read(self, path: str) -> str:
        """A file of the volume; empty while it is not there."""
        script = (
            "import pathlib, sys; p = pathlib.Path(sys.argv[1]); print(p.read_text() if p.exists() else '')"
        )
        return self.kube.exec("reader", "python", "-c", script, path)


def helper_pod(name: str, image: str, *command: str, **spec: Any) -> Manifest:
    """A restricted pod of a test's own that sees the volume."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": RESTRICTED,
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "command": list(command),
                    "securityContext": CONFINED,
                    "volumeMounts": [
                        {"name": "trimtab", "mountPath": DATA_MOUNT},
                        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - in the pod
                    ],
                }
            ],
            "volumes": [
                {"name": "trimtab", "persistentVolumeClaim": {"claimName": CLAIM}},
                {"name": "tmp", "emptyDir": {}},
            ],
            **spec,
        },
    }


SLEEP = ("python", "-c", "import signal; signal.pause()")
