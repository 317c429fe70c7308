"""kubectl and helm as a person uses them, and waiting for what they show. Every wait has a deadline."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

Manifest = dict[str, Any]

HOST = "kubernetes.io/hostname"

COMMAND_S = 120.0
POLL_S = 0.5
RETRIED = (
    "was refused",
    "connection reset",
    "EOF",
    "TLS handshake timeout",
    "i/o timeout",
    "ServiceUnavailable",
)
"""What kubectl says while an API server starts again; only reading is repeated."""


class CommandError(AssertionError):
    """A command that failed; its words."""


def run(*command: str, stdin: str | None = None, timeout_s: float = COMMAND_S) -> str:
    """Run a command to its end and return its output."""
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise CommandError(f"not within {timeout_s:g} s: {' '.join(command)}") from None
    if done.returncode:
        raise CommandError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def until(
    condition: Callable[[], Any],
    what: str,
    *,
    timeout_s: float,
    explain: Callable[[], str] = str,
) -> Any:
    """Wait until `condition` gives something true, and return it; else fail with `explain()`."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s:g} s: {what}\n{explain()}", pytrace=False)
        time.sleep(POLL_S)


class Kube:
    """kubectl in one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def __call__(self, *arguments: str, stdin: str | None = None, timeout_s: float = COMMAND_S) -> str:
        """`kubectl ARGUMENTS` and its output."""
        return run("kubectl", "-n", self.namespace, *arguments, stdin=stdin, timeout_s=timeout_s)

    def apply(self, *manifests: Manifest) -> None:
        """`kubectl apply`, strict about fields."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        self("apply", "--validate=strict", "-f", "-", stdin=text)

    def list(self, kind: str, selector: str = "") -> list[Manifest]:
        """Objects by label."""
        found: list[Manifest] = json.loads(self._read(kind, "-l", selector))["items"]
        return found

    def get(self, kind: str, name: str) -> Manifest | None:
        """One object, or None."""
        text = self._read(kind, name, "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def patch(self, kind: str, name: str, patch: Manifest) -> None:
        """Merge patch."""
        self("patch", kind, name, "--type=merge", "-p", json.dumps(patch))

    def exec(self, pod: str, *command: str, container: str = "", timeout_s: float = 60.0) -> str:
        """Run a command in a pod's container."""
        chosen = ["-c", container] if container else []
        return self("exec", pod, *chosen, "--", *command, timeout_s=timeout_s)

    def _read(self, *arguments: str) -> str:
        """`kubectl get -o json`, again while an API server is not there."""
        deadline = time.monotonic() + COMMAND_S
        while True:
            try:
                return self("get", *arguments, "-o", "json")
            except CommandError as error:
                if time.monotonic() > deadline or not any(words in str(error) for words in RETRIED):
                    raise
            time.sleep(POLL_S)


def owned_by(objects: Sequence[Manifest], uid: str) -> list[str]:
    """Names of those that a job of that uid owns."""
    return [
        entry["metadata"]["name"]
        for entry in objects
        if any(owner["uid"] == uid for owner in entry["metadata"].get("ownerReferences", ()))
    ]


def nodes() -> list[str]:
    """The cluster's nodes that take pods; tests stop and drain the second, and keep their own pods off it."""
    found = json.loads(Kube("")("get", "nodes", "-o", "json"))["items"]
    return sorted(
        node["metadata"]["name"]
        for node in found
        if not any(taint["effect"] != "PreferNoSchedule" for taint in node["spec"].get("taints", ()))
    )
