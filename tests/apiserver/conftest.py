"""A real API server for tests: etcd and kube-apiserver from KUBEBUILDER_ASSETS, as `setup-envtest` has them.

There is no controller manager, scheduler or kubelet: nothing is garbage-collected, no pod runs, a deleted
namespace stays Terminating, and a pod needs no service account. What a test asks for:

    api             client with all rights, in a namespace of the test's own
    crd             the same with RLTrainingJob installed, from charts/trimtab/files/crd.yaml
    make_user       await make_user("alice", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}])
                    makes a service account with these rights (cluster=True: everywhere) and gives its client
    kubectl         await kubectl("get", "pods") as the test's user with all rights, in its namespace
    apiserver       the processes: url, ca_file, kubeconfig(token=..., namespace=...), audit(), restart()
    own_apiserver   processes of the test's own, for one that stops them or changes what all tests share

Tests that use a client are `async def`. Every wait has a deadline.
"""

import asyncio
import contextlib
import ctypes
import datetime
import ipaddress
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from ruamel.yaml import YAML

Manifest = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
CRD_FILE = ROOT / "charts" / "trimtab" / "files" / "crd.yaml"
READY_S = 60.0
REQUEST_S = 30.0
STOP_S = 15.0
PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """One line for all tests that are skipped for want of the variable: pytest folds those of one place."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and NOT_SET in report.longrepr[2]:
        report.longrepr = (__file__, 0, report.longrepr[2])
    return report


def assets() -> Path:
    """Folder of the binaries; skips the test where the variable is not set."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        pytest.skip(NOT_SET)
    missing = [name for name in ("etcd", "kube-apiserver") if not (Path(folder) / name).exists()]
    if missing:
        pytest.fail(f"KUBEBUILDER_ASSETS={folder} holds no {' and no '.join(missing)}", pytrace=False)
    return Path(folder)


class ApiError(Exception):
    """The API server's refusal: `status` (HTTP), `reason`, `message`, `causes` ((field, message) pairs)."""

    def __init__(self, status: int, body: Any) -> None:
        known = body if isinstance(body, dict) else {}
        self.status = status
        self.reason = known.get("reason", "")
        self.message = known.get("message", str(body))
        causes = (known.get("details") or {}).get("causes") or []
        self.causes = [(cause.get("field", ""), cause.get("message", "")) for cause in causes]
        super().__init__(f"{status} {self.reason}: {self.message}")


# --- the processes ------------------------------------------------------------------------------------


def _die_with_parent() -> None:
    """Runs in the child before exec: the kernel ends it when pytest is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


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

    def audit(self, user: str) -> list[Manifest]:
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
                command, cwd=self.folder, stdout=log, stderr=log, preexec_fn=_die_with_parent
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
def _running(folder: Path) -> Iterator[ApiServer]:
    server = ApiServer(assets(), folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()


# --- the client ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Api:
    """A user's client in one namespace. Objects are plain data; a refusal is raised as `ApiError`.

    Kinds are found by discovery: `api.get("Pod", "x")`; `api_version=` tells two of one name apart. Writes
    use fieldValidation=Strict unless `params` say otherwise; `dryRun="All"` is a parameter as any other.
    """

    server: ApiServer
    session: aiohttp.ClientSession
    namespace: str
    token: str

    Error = ApiError

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content_type: str = "application/json",
        **params: str,
    ) -> Any:
        """Any request; the answer as data."""
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Accept": params.pop("accept", "application/json"),
        }
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body), content_type
        async with self.session.request(
            method, self.server.url + path, data=data, headers=headers, params=params
        ) as response:
            text = await response.text()
            try:
                answer = json.loads(text)
            except ValueError:
                answer = text
            if response.status >= 400:
                raise ApiError(response.status, answer)
            return answer

    async def create(self, manifest: Manifest, **params: str) -> Manifest:
        """POST an object."""
        path = await self.path(manifest["kind"], api_version=manifest["apiVersion"])
        return await self.request("POST", path, body=manifest, **{"fieldValidation": "Strict"} | params)

    async def apply(self, manifest: Manifest, *, manager: str = "test", **params: str) -> Manifest:
        """Server-side apply, with force."""
        options = {"fieldManager": manager, "force": "true", "fieldValidation": "Strict"} | params
        path = await self._path_of(manifest)
        return await self.request(
            "PATCH", path, body=manifest, content_type="application/apply-patch+yaml", **options
        )

    async def replace(self, manifest: Manifest, *, subresource: str = "", **params: str) -> Manifest:
        """PUT an object, or its status."""
        path = await self._path_of(manifest, subresource)
        return await self.request("PUT", path, body=manifest, **{"fieldValidation": "Strict"} | params)

    async def patch(
        self,
        kind: str,
        name: str,
        body: Any,
        *,
        how: str = "merge",
        subresource: str = "",
        api_version: str = "",
        **params: str,
    ) -> Manifest:
        """PATCH an object: `how` is merge, json or strategic."""
        path = await self.path(kind, name, subresource=subresource, api_version=api_version)
        options = {"fieldValidation": "Strict"} | params
        return await self.request("PATCH", path, body=body, content_type=PATCH_TYPES[how], **options)

    async def get(
        self, kind: str, name: str, *, subresource: str = "", api_version: str = "", **params: str
    ) -> Manifest:
        """GET an object."""
        path = await self.path(kind, name, subresource=subresource, api_version=api_version)
        return await self.request("GET", path, **params)

    async def list(self, kind: str, *, api_version: str = "", **params: str) -> list[Manifest]:
        """The objects of a kind in the namespace; `labelSelector="a=b"` is a parameter."""
        return (await self.request("GET", await self.path(kind, api_version=api_version), **params))["items"]

    async def delete(self, kind: str, name: str, *, api_version: str = "", body: Any = None) -> Manifest:
        """DELETE an object; `body` are the options (preconditions, grace period)."""
        return await self.request("DELETE", await self.path(kind, name, api_version=api_version), body=body)

    async def wait_for(
        self,
        kind: str,
        name: str,
        holds: Callable[[Manifest], bool],
        *,
        what: str,
        timeout_s: float = 30.0,
        api_version: str = "",
    ) -> Manifest:
        """Get an object until something holds of it; one that is not there yet is waited for."""
        deadline = time.monotonic() + timeout_s
        found: Manifest | str = "not there"
        while time.monotonic() < deadline:
            try:
                found = await self.get(kind, name, api_version=api_version)
            except ApiError as error:
                if error.status != 404:
                    raise
                found = "not there"
            if isinstance(found, dict) and holds(found):
                return found
            await asyncio.sleep(0.05)
        raise AssertionError(
            f"{kind} {name}: not {what} after {timeout_s} s; found {json.dumps(found, indent=1)}"
        )

    async def install_crd(self, manifest: Manifest) -> None:
        """Create or update a CustomResourceDefinition, and wait until it is served."""
        name, version = manifest["metadata"]["name"], manifest["spec"]["versions"][0]["name"]
        await self.apply(manifest)
        await self.wait_for(
            "CustomResourceDefinition",
            name,
            lambda crd: any(
                condition["type"] == "Established" and condition["status"] == "True"
                for condition in (crd.get("status", {}).get("conditions") or [])
            ),
            what="Established",
        )
        await self.path(
            manifest["spec"]["names"]["kind"], api_version=f"{manifest['spec']['group']}/{version}"
        )

    async def path(self, kind: str, name: str = "", *, subresource: str = "", api_version: str = "") -> str:
        """Where a kind, or one object of it, is; a kind that was just installed is waited for."""
        deadline = time.monotonic() + 15
        while (found := self._known(kind, api_version)) is None:
            await self._discover()
            if self._known(kind, api_version) is None:
                if time.monotonic() > deadline:
                    raise LookupError(f"the API server has no kind {kind} {api_version}")
                await asyncio.sleep(0.1)
        prefix, resource, namespaced = found
        parts = [prefix, f"namespaces/{self.namespace}" if namespaced else "", resource, name, subresource]
        return "/".join(part for part in parts if part)

    async def _path_of(self, manifest: Manifest, subresource: str = "") -> str:
        return await self.path(
            manifest["kind"],
            manifest["metadata"]["name"],
            subresource=subresource,
            api_version=manifest["apiVersion"],
        )

    def _known(self, kind: str, api_version: str) -> tuple[str, str, bool] | None:
        for (version, known), (resource, namespaced) in self.server.kinds.items():
            if known == kind and api_version in ("", version):
                return f"/api/{version}" if "/" not in version else f"/apis/{version}", resource, namespaced
        return None

    async def _discover(self) -> None:
        for root in ("/api", "/apis"):
            groups = await self.request(
                "GET", root, accept="application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            )
            for group in groups["items"]:
                for version in group["versions"]:
                    name = "/".join(filter(None, [group["metadata"].get("name"), version["version"]]))
                    for resource in version.get("resources", []):
                        self.server.kinds[name, resource["responseKind"]["kind"]] = (
                            resource["resource"],
                            resource["scope"] == "Namespaced",
                        )


MakeUser = Callable[..., Awaitable[Api]]
Kubectl = Callable[..., Awaitable[subprocess.CompletedProcess[str]]]


# --- the fixtures -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """The API server that all tests share."""
    with _running(tmp_path_factory.mktemp("apiserver")) as server:
        yield server


@pytest.fixture
def own_apiserver(tmp_path: Path) -> Iterator[ApiServer]:
    """An API server of the test's own (4 s): it may be stopped, restarted and changed."""
    with _running(tmp_path) as server:
        yield server


@pytest.fixture
def connect() -> Iterator[Callable[[ApiServer], contextlib.AbstractAsyncContextManager[Api]]]:
    """`async with connect(own_apiserver) as api:` gives a client with all rights in a new namespace."""
    yield _connected


@contextlib.asynccontextmanager
async def _connected(server: ApiServer) -> AsyncIterator[Api]:
    connector = aiohttp.TCPConnector(ssl=server.ssl_context())
    timeout = aiohttp.ClientTimeout(total=REQUEST_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        api = Api(server, session, f"test-{secrets.token_hex(4)}", server.token)
        await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": api.namespace}})
        yield api


@pytest.fixture
async def api(apiserver: ApiServer) -> AsyncIterator[Api]:
    """Client with all rights, in a namespace of the test's own."""
    async with _connected(apiserver) as client:
        yield client


@pytest.fixture
async def crd(api: Api) -> AsyncIterator[Api]:
    """`api`, with RLTrainingJob installed; the test's jobs are deleted after it."""
    if ("trimtab.dev/v1alpha1", "RLTrainingJob") not in api.server.kinds:
        await api.install_crd(YAML(typ="safe", pure=True).load(CRD_FILE))
    yield api
    await api.request("DELETE", await api.path("RLTrainingJob"))


@pytest.fixture
async def make_user(api: Api) -> AsyncIterator[MakeUser]:
    """Makes service accounts with the rights that are named, and gives a client for each."""
    cluster_wide: list[tuple[str, str]] = []

    async def make(name: str, rules: list[Manifest], *, cluster: bool = False) -> Api:
        rbac, full_name = "rbac.authorization.k8s.io", f"{api.namespace}-{name}"
        kind = "ClusterRole" if cluster else "Role"
        subject = {"kind": "ServiceAccount", "name": name, "namespace": api.namespace}
        await api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
        await api.create(
            {"apiVersion": f"{rbac}/v1", "kind": kind, "metadata": {"name": full_name}, "rules": rules}
        )
        await api.create(
            {
                "apiVersion": f"{rbac}/v1",
                "kind": f"{kind}Binding",
                "metadata": {"name": full_name},
                "roleRef": {"apiGroup": rbac, "kind": kind, "name": full_name},
                "subjects": [subject],
            }
        )
        if cluster:
            cluster_wide.extend([(f"{kind}Binding", full_name), (kind, full_name)])
        answer = await api.request(
            "POST",
            await api.path("ServiceAccount", name, subresource="token"),
            body={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        )
        return Api(api.server, api.session, api.namespace, answer["status"]["token"])

    yield make
    for kind, name in cluster_wide:
        await api.delete(kind, name)


@pytest.fixture
def kubectl(api: Api) -> Kubectl:
    """Runs kubectl with all rights in the test's namespace; `stdin` is text, `check=False` lets it fail."""
    config = api.server.kubeconfig(namespace=api.namespace)
    binary = api.server.binaries / "kubectl"
    if not binary.exists():
        pytest.fail(f"{binary} is missing: KUBEBUILDER_ASSETS needs kubectl too", pytrace=False)

    async def run(
        *arguments: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        result = await asyncio.to_thread(
            subprocess.run,
            [str(binary), "--kubeconfig", str(config), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == 0 or not check, f"kubectl {' '.join(arguments)}: {result.stderr}"
        return result

    return run
