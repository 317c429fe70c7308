"""The operator as helm installs it, and what else can be done to the cluster."""

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cluster.jobs import OPERATOR_NAMESPACE
from tests.cluster.kube import CommandError, Kube, nodes, run, until

CHART = Path(__file__).resolve().parents[2] / "charts" / "trimtab"


@dataclass(frozen=True)
class Images:
    """The images under test."""

    operator: str
    control: str
    worker: str
    prefix: str
    tag: str


class Operator:
    """The helm release, and the pods of the operator."""

    def __init__(self, images: Images) -> None:
        self.kube = Kube(OPERATOR_NAMESPACE)
        self._images = images

    def upgrade(self, **values: str) -> None:
        """`helm upgrade --install` with these values beside the tests' own; waits until it is available."""
        settings = {
            "image.repository": f"{self._images.prefix}/operator",
            "image.tag": self._images.tag,
            "defaults.images.control": f"{self._images.prefix}/control",
            "defaults.images.worker": f"{self._images.prefix}/worker",
            "defaults.images.tag": self._images.tag,
            "defaults.terminatingDeadlineSeconds": "10",
            "defaults.backoffSeconds": "1",
            "resources.requests.cpu": "50m",
            **values,
        }
        chosen = [f"--set={name}={value}" for name, value in settings.items()]
        run(
            "helm", "upgrade", "--install", "trimtab", str(CHART), "-n", OPERATOR_NAMESPACE,
            "--create-namespace", "--wait", "--timeout=180s", *chosen, timeout_s=200,
        )  # fmt: skip

    def pods(self) -> list[str]:
        """Names of the operator's pods that are not being deleted."""
        found = self.kube.list("pod", "app.kubernetes.io/name=trimtab-operator")
        return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def leader(self) -> str:
        """Name of the pod that holds the lease."""
        leases = json.loads(self.kube("get", "lease", "-o", "json"))["items"]
        holders = [lease["spec"].get("holderIdentity") or "" for lease in leases]
        return next((pod for pod in self.pods() if any(holder.startswith(pod) for holder in holders)), "")

    def kill(self, pod: str) -> None:
        """End a pod of it without a word."""
        self.kube("delete", "pod", pod, "--grace-period=0", "--force")

    def is_available(self) -> None:
        """Wait for all replicas."""
        self.kube("rollout", "status", "deployment/trimtab", "--timeout=120s", timeout_s=130)


class Faults:
    """What the cluster lets tests do to it; each is a command from outside."""

    def stop_node(self, node: str) -> None:
        """The node dies: its kubelet and the processes of its pods."""
        self._run("TRIMTAB_STOP_NODE", node)

    def start_node(self, node: str) -> None:
        """It comes back; waits until it is Ready and takes pods."""
        self._run("TRIMTAB_START_NODE", node)
        Kube("")("wait", f"node/{node}", "--for=condition=Ready", "--timeout=120s", timeout_s=130)
        until(lambda: node in nodes(), f"{node} takes pods", timeout_s=60)

    def restart_api_server(self) -> None:
        """The API server ends and comes back."""
        self._run("TRIMTAB_RESTART_API_SERVER")
        until(lambda: _answers(), "the API server answers", timeout_s=60)

    def need(self, *variables: str) -> None:
        """Skip where the cluster offers no such command."""
        missing = [name for name in variables if not os.environ.get(name)]
        if missing:
            pytest.skip(f"{' and '.join(missing)} not set (docs/cluster-tests.md)")

    def _run(self, variable: str, *arguments: str) -> None:
        run(*shlex.split(os.environ[variable]), *arguments)


def _answers() -> bool:
    try:
        return bool(run("kubectl", "get", "--raw=/readyz"))
    except CommandError:
        return False
