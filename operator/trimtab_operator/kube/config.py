"""How to reach the API server: from a kubeconfig file, or from the service account of a pod.

Read once at the start, by `main`; the token of a service account is read again while the operator runs,
since the kubelet replaces it. Everything wrong is a `ConfigError` that names the file and the field.
"""

import base64
import binascii
import contextlib
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from trimtab_operator.kube.errors import ConfigError, JsonObject

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_AGE_S: Final = 60.0
"""A token that was read longer ago than this is read again."""


class TokenFile:
    """A bearer token in a file that somebody else keeps fresh."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._read_at = -TOKEN_AGE_S

    def __call__(self) -> str:
        """The token; the last one where the file cannot be read just now."""
        if self._clock() - self._read_at >= TOKEN_AGE_S or not self._token:
            with contextlib.suppress(OSError):
                self._token = self._path.read_text(encoding="utf-8").strip()
                self._read_at = self._clock()
        return self._token


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """One API server and the right to talk to it."""

    server: str
    """https://host:port, without a slash at the end."""
    namespace: str
    """Of the context or of the pod."""
    tls: ssl.SSLContext | None = None
    """None for plain http."""
    token: Callable[[], str] | None = None
    """Bearer token to use now; None: a client certificate, or nothing."""


def load_config(
    kubeconfig: str = "", *, environ: Mapping[str, str], account: Path = SERVICE_ACCOUNT
) -> ClusterConfig:
    """The given file, else $KUBECONFIG, else the service account of this pod."""
    paths = kubeconfig or environ.get("KUBECONFIG", "")
    if paths:
        return _from_kubeconfig([Path(path) for path in paths.split(os.pathsep) if path])
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError(
            "no way to an API server: this is no pod (KUBERNETES_SERVICE_HOST is not set); "
            "give --kubeconfig FILE or set KUBECONFIG"
        )
    token = TokenFile(account / "token")
    if not token():
        raise ConfigError(f"{account / 'token'}: no token; the pod needs automountServiceAccountToken: true")
    address = f"[{host}]" if ":" in host else host
    return ClusterConfig(
        server=f"https://{address}:{port}",
        namespace=_read(account / "namespace", "the service account's namespace").strip(),
        tls=_tls(account / "ca.crt", ca_data=None),
        token=token,
    )


def _from_kubeconfig(paths: list[Path]) -> ClusterConfig:
    """The current context. Of several files, the first that says something is right, as with kubectl."""
    documents = [(path, _load_yaml(path)) for path in paths]
    current = next((str(data["current-context"]) for _, data in documents if data.get("current-context")), "")
    names = ", ".join(str(path) for path in paths)
    if not current:
        raise ConfigError(f"{names}: current-context is not set; `kubectl config use-context NAME` sets it")
    context, _ = _entry(documents, "contexts", current, "context")
    cluster, cluster_folder = _entry(documents, "clusters", str(context.get("cluster", "")), "cluster")
    user, user_folder = _entry(documents, "users", str(context.get("user", "")), "user")
    server = str(cluster.get("server") or "").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise ConfigError(f"{names}: clusters[].cluster.server is {server!r}, not an https:// address")
    if "exec" in user or "auth-provider" in user:
        raise ConfigError(
            f"{names}: the user of context {current} logs in through a program, which the operator does not "
            "start; give it a token or a client certificate"
        )
    return ClusterConfig(
        server=server,
        namespace=str(context.get("namespace") or "default"),
        tls=_kubeconfig_tls(cluster, cluster_folder, user, user_folder)
        if server.startswith("https")
        else None,
        token=_kubeconfig_token(user, user_folder),
    )


def _kubeconfig_token(user: JsonObject, folder: Path) -> Callable[[], str] | None:
    if user.get("tokenFile"):
        return TokenFile(folder / str(user["tokenFile"]))
    if user.get("token"):
        token = str(user["token"])
        return lambda: token
    return None


def _kubeconfig_tls(
    cluster: JsonObject, cluster_folder: Path, user: JsonObject, user_folder: Path
) -> ssl.SSLContext:
    ca_file = cluster.get("certificate-authority")
    ca_data = cluster.get("certificate-authority-data")
    context = _tls(
        cluster_folder / str(ca_file) if ca_file else None,
        ca_data=_decode(ca_data, "certificate-authority-data").decode("ascii", "replace")
        if ca_data
        else None,
    )
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if user.get("client-certificate") or user.get("client-certificate-data"):
        with (
            _as_file(user, user_folder, "client-certificate") as certificate,
            _as_file(user, user_folder, "client-key") as key,
        ):
            try:
                context.load_cert_chain(certificate, key)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"client-certificate, client-key: {error}") from error
    return context


def _tls(ca_file: Path | None, *, ca_data: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file, cadata=ca_data)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{ca_file or 'certificate-authority-data'}: {error}") from error


@contextlib.contextmanager
def _as_file(user: JsonObject, folder: Path, field: str) -> Iterator[Path]:
    """A file with the field's contents: Python's ssl cannot take a client certificate from memory."""
    if user.get(field):
        yield folder / str(user[field])
        return
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        file.write(_decode(user.get(f"{field}-data") or "", f"{field}-data"))
        yield Path(file.name)


def _decode(text: object, field: str) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except binascii.Error as error:
        raise ConfigError(f"kubeconfig: {field} is not base64") from error


def _entry(
    documents: list[tuple[Path, JsonObject]], section: str, name: str, member: str
) -> tuple[JsonObject, Path]:
    """The named entry of a section, and the folder that its relative paths start from."""
    for path, data in documents:
        for entry in data.get(section) or ():
            if isinstance(entry, dict) and entry.get("name") == name:
                return entry.get(member) or {}, path.absolute().parent
    names = ", ".join(str(path) for path, _ in documents)
    raise ConfigError(f"{names}: {section} has no entry named {name!r}")


def _load_yaml(path: Path) -> JsonObject:
    try:
        data = YAML(typ="safe", pure=True).load(_read(path, "a kubeconfig"))
    except YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} is no kubeconfig: it holds {type(data).__name__}, not a mapping")
    return data


def _read(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {what} is wanted there: {error.strerror}") from error
