"""etcd and kube-apiserver from KUBEBUILDER_ASSETS as child processes, as `setup-envtest` has them.

There is no controller manager, scheduler or kubelet: nothing is garbage-collected, no pod runs, a deleted
namespace stays Terminating, and a pod needs no service account.
"""

import contextlib
import datetime
import ipaddress
import json
import os
import secrets
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

READY_S = 60.0
STOP_S = 15.0
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
NOT_SET = (
    "KUBEBUILDER_ASSETS is not set: it names a folder with etcd, kube-apiserver and kubectl"
    " (setup-envtest use --print env)"
)


def assets() -> Path:
    """Folder of the binaries; skips the test where the variable is not set."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        pytest.skip(NOT_SET)
    missing = [name for name in ("etcd", "kube-apiserver") if not (Path(folder) / name).exists()]
    if missing:
        pytest.fail(f"KUBEBUILDER_ASSETS={folder} holds no {' and no '.join(missing)}", pytrace=False)
    return Path(folder)


_DYING = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def dying_with_parent(command: list[str]) -> list[str]:
    """The command, as one that the kernel ends when pytest is killed.

    Nothing may run between fork and exec in a process with the threads of gRPC, which may break there.
    """
    return [sys.executable, "-I", "-S", "-c", _DYING, *command]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _write_keys(folder: Path) -> None:
    """Serving certificate (its own authority), and the key that signs service account tokens."""
    now = datetime.datetime.now(datetime.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test-apiserver")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
            ),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    for name_, each in (("tls.key", key), ("sa.key", ec.generate_private_key(ec.SECP256R1()))):
        (folder / name_).write_bytes(
            each.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )


@dataclass
class ApiServer:
    """etcd and kube-apiserver as child processes, with their files in one folder."""

    binaries: Path
    folder: Path
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    """Of the user `admin`, who has every right."""
    ports: list[int] = field(default_factory=list)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    kinds: dict[tuple[str, str], tuple[str, bool]] = field(default_factory=dict)
    """(apiVersion, kind) to (path of the resource, whether it is in a namespace), as discovered so far."""

    @property
    def url(self) -> str:
        """Where the API is."""
        return f"https://127.0.0.1:{self.ports[0]}"

    @property
    def ca_file(self) -> Path:
        """Certificate authority of `url`."""
        return self.folder / "tls.crt"

    def start(self) -> None:
        """Start both and wait until they are ready; a port taken meanwhile means another try."""
        _write_keys(self.folder)
        (self.folder / "tokens.csv").write_text(f'{self.token},admin,admin,"system:masters"\n')
        (self.folder / "audit-policy.yaml").write_text(json.dumps(AUDIT_POLICY))
        for attempt in range(3):
            self.ports = _free_ports(3)
            self._spawn("etcd", self._etcd_arguments())
            self._spawn("kube-apiserver", self._apiserver_arguments())
            try:
                self._wait_ready()
            except ChildProcessError:
                self.stop()
                if attempt == 2:
                    raise
            else:
                return

    def restart(self) -> None:
        """End kube-apiserver and start it again, with the same data and address."""
        self._end("kube-apiserver")
        self._spawn("kube-apiserver", self._apiserver_arguments())
        self._wait_ready()

    def stop_apiserver(self) -> None:
        """End kube-apiserver alone; `restart` brings it back."""
        self._end("kube-apiserver")

    def stop(self) -> None:
        """End both."""
        for name in ("kube-apiserver", "etcd"):
            self._end(name)

    def kubeconfig(self, *, token: str | None = None, namespace: str = "default") -> Path:
        """A kubeconfig file for a token (the admin's by default)."""
        entry = {"server": self.url, "certificate-authority": str(self.ca_file)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": entry}],
            "users": [{"name": "test", "user": {"token": token or self.token}}],
            "contexts": [
                {"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}
            ],
            "current-context": "test",
        }
        path = self.folder / f"kubeconfig-{secrets.token_hex(4)}"
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return path

    def audit(self, user: str) -> list[dict[str, Any]]:
        """What a user asked for so far: `verb`, `objectRef` (resource, name and so on), `responseStatus`."""
        log = self.folder / "audit.log"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return [event for line in lines if (event := json.loads(line))["user"]["username"] == user]

    def ssl_context(self) -> ssl.SSLContext:
        """Trusts the server's certificate alone."""
        return ssl.create_default_context(cafile=str(self.ca_file))

    def _spawn(self, name: str, arguments: Mapping[str, str]) -> None:
        command = [str(self.binaries / name), *(f"--{key}={value}" for key, value in arguments.items())]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                dying_with_parent(command), cwd=self.folder, stdout=log, stderr=log
            )

    def _etcd_arguments(self) -> Mapping[str, str]:
        _, client, peer = self.ports
        return {
            "data-dir": str(self.folder / "etcd"),
            "listen-client-urls": f"http://127.0.0.1:{client}",
            "advertise-client-urls": f"http://127.0.0.1:{client}",
            "listen-peer-urls": f"http://127.0.0.1:{peer}",
            "initial-advertise-peer-urls": f"http://127.0.0.1:{peer}",
            "initial-cluster": f"default=http://127.0.0.1:{peer}",
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }

    def _apiserver_arguments(self) -> Mapping[str, str]:
        secure, client, _ = self.ports
        return {
            "etcd-servers": f"http://127.0.0.1:{client}",
            "bind-address": "127.0.0.1",
            "external-hostname": "localhost",
            "secure-port": str(secure),
            "cert-dir": str(self.folder),
            "tls-cert-file": str(self.folder / "tls.crt"),
            "tls-private-key-file": str(self.folder / "tls.key"),
            "token-auth-file": str(self.folder / "tokens.csv"),
            "authorization-mode": "RBAC",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(self.folder / "sa.key"),
            "service-account-signing-key-file": str(self.folder / "sa.key"),
            "service-cluster-ip-range": "10.0.0.0/24",
            "disable-admission-plugins": "ServiceAccount",  # nobody makes the default accounts here
            "endpoint-reconciler-type": "none",
            "allow-privileged": "true",
            "audit-policy-file": str(self.folder / "audit-policy.yaml"),
            "audit-log-path": str(self.folder / "audit.log"),
        }

    def _wait_ready(self) -> None:
        request = urllib.request.Request(  # noqa: S310 - a URL of our own
            f"{self.url}/readyz", headers={"Authorization": f"Bearer {self.token}"}
        )
        deadline = time.monotonic() + READY_S
        found = "no answer"
        while time.monotonic() < deadline:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise ChildProcessError(f"{name} ended with {process.returncode}: {self._tail(name)}")
            try:
                with urllib.request.urlopen(request, timeout=5, context=self.ssl_context()):  # noqa: S310
                    return
            except urllib.error.HTTPError as error:
                with error:
                    found = f"{error.code}: {error.read(2000).decode(errors='replace')}"
            except OSError as error:
                found = str(error)
            time.sleep(0.1)
        raise TimeoutError(f"kube-apiserver is not ready after {READY_S:.0f} s: {found}")

    def _tail(self, name: str) -> str:
        lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-5:])

    def _end(self, name: str) -> None:
        process = self.processes.pop(name, None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[ApiServer]:
    """An API server with its files in a folder, until the block ends."""
    server = ApiServer(assets(), folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
