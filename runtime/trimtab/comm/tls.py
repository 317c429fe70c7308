"""What the processes of a job prove themselves with: certificates for gRPC, CURVE keys for ZeroMQ.

In a cluster the operator mounts a folder (TRIMTAB_TLS_DIR) into every pod:

    ca.crt                                       the job's own authority: nobody else's certificate counts
    coordinator.crt, .key | worker.crt, .key     who this process is, on the control plane
    curve-server.pub                             the coordinator, on the experience plane
    curve-server.key, curve-client.pub           of the coordinator: its key, and the only one it lets in
    curve-client.key, curve-client.pub           of every worker

Certificates are replaced while the job runs: a server reads them again for each connection, a client each
time it dials; connections that stand go on. The CURVE keys stay the same for the job's life. Without the
folder (on a laptop) everything is plain, and bound to the loopback interface.

Of the coordinator's certificate its name (`coordinator`) is checked, whatever address it was reached at.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from trimtab.errors import UserError

logger = logging.getLogger(__name__)

COORDINATOR: Final = "coordinator"
WORKER: Final = "worker"
OPERATOR: Final = "operator"
"""The names that certificates are made out to."""

_SERVER_NAME: Final = (("grpc.ssl_target_name_override", COORDINATOR),)
_NEWEST: Final = "..data"
"""What Kubernetes swaps when it replaces a mounted Secret: a link to the folder with all its files."""

Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class CurveServer:
    """The coordinator's end of the experience plane."""

    public: bytes
    secret: bytes = field(repr=False)
    allowed: bytes
    """The key that the job's workers have, and nobody else."""


@dataclass(frozen=True)
class CurveClient:
    """A worker's end of the experience plane."""

    server: bytes
    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class JobTls:
    """One process's part of the folder."""

    directory: Path
    name: str
    """COORDINATOR or WORKER: whose certificate is used."""

    @classmethod
    def found_in(cls, directory: Path) -> "JobTls":
        """With the certificate that the folder holds, for commands that run inside one of the job's pods."""
        coordinator = (directory / f"{COORDINATOR}.crt").exists()
        return cls(directory, COORDINATOR if coordinator else WORKER)

    def server_credentials(self) -> grpc.ServerCredentials:
        """For the coordinator's gRPC server: nobody gets through without a certificate of the job."""
        served = self._pems()
        return grpc.dynamic_ssl_server_credentials(
            _configuration(served), _Reload(self, served), require_client_authentication=True
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For one dial of the coordinator."""
        ca, key, certificate = self._pems()
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def curve_server(self) -> CurveServer:
        """For the coordinator's ZeroMQ socket."""
        public, secret, allowed = self._read("curve-server.pub", "curve-server.key", "curve-client.pub")
        return CurveServer(_key(public), _key(secret), _key(allowed))

    def curve_client(self) -> CurveClient:
        """For a worker's ZeroMQ socket."""
        server, public, secret = self._read("curve-server.pub", "curve-client.pub", "curve-client.key")
        return CurveClient(_key(server), _key(public), _key(secret))

    def _pems(self) -> tuple[bytes, bytes, bytes]:
        ca, key, certificate = self._read("ca.crt", f"{self.name}.key", f"{self.name}.crt")
        return ca, key, certificate

    def _read(self, *names: str) -> list[bytes]:
        """The files of one moment: a key and the certificate that was made for it."""
        newest = self.directory / _NEWEST
        folder = newest.resolve() if newest.exists() else self.directory
        try:
            return [(folder / name).read_bytes() for name in names]
        except OSError as error:
            raise UserError(
                f"TRIMTAB_TLS_DIR: {error.filename} cannot be read ({error.strerror}); the operator mounts "
                "the job's Secret there"
            ) from error


def aio_channel(address: str, tls: JobTls | None, options: Options) -> grpc.aio.Channel:
    """A channel to the coordinator, for asyncio."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=(*options, *_SERVER_NAME))


def channel(address: str, tls: JobTls | None, options: Options) -> grpc.Channel:
    """A channel to the coordinator, for callers that block."""
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, tls.channel_credentials(), options=(*options, *_SERVER_NAME))


class _Reload:
    """What gRPC asks before each handshake, on a thread of its own: the configuration, if it has changed."""

    def __init__(self, tls: JobTls, served: tuple[bytes, bytes, bytes]) -> None:
        self._tls = tls
        self._served = served

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        try:
            found = self._tls._pems()
        except UserError as error:  # being replaced: what was served is still good
            logger.warning("%s; going on with the certificate from before", error)
            return None
        if found == self._served:
            return None
        self._served = found
        logger.info("serving a new certificate")
        return _configuration(found)


def _configuration(pems: tuple[bytes, bytes, bytes]) -> grpc.ServerCertificateConfiguration:
    ca, key, certificate = pems
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=ca)


def _key(text: bytes) -> bytes:
    return text.strip()
