"""Certificates and CURVE keys of a job, all derived from one master key: nothing is stored, nothing read.

Every function of (master key, job uid, time) alone: after a restart the operator makes the same CA, the same
keys and, within one rotation period, the same bytes again, so that it needs no right to read Secrets and an
apply of what is there already changes nothing. Called by the reconcile loop's adapter, which puts
`secret_data` into `<job>-tls` and dials coordinators with `operator_pems`.

    master key --HKDF(job uid)--> CA key --signs--> leaves of this period: coordinator, worker, operator
               --HKDF(job uid)--> CURVE key pairs: server, client

    |---- period: 20 days ----|---- period ----|
    |---- a leaf: 30 days --------------|
                              ^ rotated here, with 10 days left

Periods begin at another time for each job, so that a thousand jobs are not rotated in the same second. A
CA's private key leaves this module in no form.
"""

import datetime as dt
import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from secrets import token_bytes
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trimtab.errors import UserError
from trimtab_operator.constants import GROUP

MASTER_KEY_FILE: Final = "master.key"
MASTER_KEY_BYTES: Final = 32

COORDINATOR: Final = "coordinator"
WORKER: Final = "worker"
OPERATOR: Final = "operator"
"""Common names, and DNS names, of the three leaves; the coordinator's decides what each may ask."""

LEAF_VALID: Final = dt.timedelta(days=30)
ROTATED_WITH: Final = dt.timedelta(days=10)
"""A leaf is replaced when it is valid for less than this."""
BACK_DATED: Final = dt.timedelta(minutes=5)
"""Clocks of nodes may be this far behind ours."""

_PERIOD: Final = LEAF_VALID - ROTATED_WITH
_EPOCH: Final = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_CA_VALID_UNTIL: Final = dt.datetime(2126, 1, 1, tzinfo=dt.UTC)
"""Fixed, as a CA that is derived again must be the same one; it ends with its job."""
_SALT: Final = b"trimtab.dev/identity/v1"
_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


@dataclass(frozen=True)
class MasterKey:
    """What every job's keys are derived from. Whoever has it can join any job."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != MASTER_KEY_BYTES:
            raise UserError(
                f"the master key has {len(self.secret)} bytes, not {MASTER_KEY_BYTES}: give the raw bytes "
                f"(openssl rand {MASTER_KEY_BYTES})"
            )

    @classmethod
    def generate(cls) -> Self:
        """A new one, from the system's random numbers."""
        return cls(token_bytes(MASTER_KEY_BYTES))

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """The key in `master.key`; None where there is no such file. UserError where it is no key."""
        path = folder / MASTER_KEY_FILE
        try:
            return cls(path.read_bytes())
        except FileNotFoundError:
            return None
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from error

    def derive(self, purpose: str, num_bytes: int = 32) -> bytes:
        """Bytes that only the holder of the key can compute, independent for each purpose."""
        hkdf = HKDF(algorithm=hashes.SHA256(), length=num_bytes, salt=_SALT, info=purpose.encode())
        return hkdf.derive(self.secret)


@dataclass(frozen=True)
class Pems:
    """What a TLS client or server needs, as PEM."""

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    not_after: dt.datetime


@dataclass(frozen=True)
class CurvePair:
    """A CURVE key pair, z85-encoded as ZeroMQ takes it."""

    public: bytes
    secret: bytes = field(repr=False)


class JobCredentials:
    """Everything that one job's processes and the operator prove themselves with."""

    def __init__(
        self,
        master: MasterKey,
        *,
        job_uid: str,
        namespace: str,
        job_name: str,
        cluster_domain: str = "cluster.local",
    ) -> None:
        self._master = master
        self._uid = job_uid
        self._host = f"coordinator-0-0.{job_name}.{namespace}.svc"
        self._cluster_domain = cluster_domain

    def secret_data(self, now: dt.datetime) -> dict[str, bytes]:
        """The contents of the Secret, by key: what the pods mount, each role its part."""
        coordinator, worker = self._leaf(COORDINATOR, now), self._leaf(WORKER, now)
        server, client = self.curve("server"), self.curve("client")
        return {
            "ca.crt": coordinator.ca,
            "coordinator.crt": coordinator.certificate,
            "coordinator.key": coordinator.key,
            "worker.crt": worker.certificate,
            "worker.key": worker.key,
            "curve-server.key": server.secret,
            "curve-server.pub": server.public,
            "curve-client.key": client.secret,
            "curve-client.pub": client.public,
        }

    def operator_pems(self, now: dt.datetime) -> Pems:
        """With which the operator dials the job's coordinator; to be made anew once `needs_rotation`."""
        return self._leaf(OPERATOR, now)

    def not_after(self, now: dt.datetime) -> dt.datetime:
        """Until when the leaves that are made now are valid."""
        return self._period_start(now) + LEAF_VALID

    def curve(self, end: str) -> CurvePair:
        """The key pair of the experience plane's `server` (the coordinator) or `client` (all workers)."""
        key = X25519PrivateKey.from_private_bytes(self._derive(f"curve/{end}"))
        return CurvePair(
            public=z85_encode(key.public_key().public_bytes_raw()), secret=z85_encode(key.private_bytes_raw())
        )

    @cached_property
    def ca_certificate(self) -> x509.Certificate:
        """The job's own certificate authority."""
        return self._sign_ca()

    def _derive(self, purpose: str, num_bytes: int = 32) -> bytes:
        return self._master.derive(f"{purpose}/{self._uid}", num_bytes)

    def _private_key(self, purpose: str) -> ec.EllipticCurvePrivateKey:
        # 128 bits more than the group's order has: the remainder is uniform but for 2**-128.
        number = int.from_bytes(self._derive(f"p256/{purpose}", 48), "big")
        order = ec.SECP256R1().group_order
        return ec.derive_private_key(number % (order - 1) + 1, ec.SECP256R1())

    @cached_property
    def _ca_key(self) -> ec.EllipticCurvePrivateKey:
        return self._private_key("ca")

    def _period_start(self, now: dt.datetime) -> dt.datetime:
        offset = int.from_bytes(hashlib.sha256(self._uid.encode()).digest()[:8], "big")
        begin = _EPOCH - dt.timedelta(seconds=offset % int(_PERIOD.total_seconds()))
        return begin + (now - begin) // _PERIOD * _PERIOD

    def _name(self, common_name: str) -> x509.Name:
        return x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, GROUP),
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, self._uid),
                x509.NameAttribute(NameOID.COMMON_NAME, common_name),
            ]
        )

    def _sign_ca(self) -> x509.Certificate:
        key = self._ca_key.public_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(self._name("ca"))
            .issuer_name(self._name("ca"))
            .public_key(key)
            .serial_number(self._serial("ca"))
            .not_valid_before(_EPOCH)
            .not_valid_after(_CA_VALID_UNTIL)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(ca=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key), critical=False)
        )
        return builder.sign(self._ca_key, hashes.SHA256(), ecdsa_deterministic=True)

    def _leaf(self, name: str, now: dt.datetime) -> Pems:
        start = self._period_start(now)
        purpose = f"{name}/{start.isoformat()}"
        key = self._private_key(purpose)
        not_after = start + LEAF_VALID
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if name == COORDINATOR:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._ca_key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(self._name(name))
            .issuer_name(self.ca_certificate.subject)
            .public_key(key.public_key())
            .serial_number(self._serial(purpose))
            .not_valid_before(start - BACK_DATED)
            .not_valid_after(not_after)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(self._dns_names(name)), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(authority, critical=False)
        )
        certificate = builder.sign(self._ca_key, hashes.SHA256(), ecdsa_deterministic=True)
        return Pems(
            ca=self.ca_certificate.public_bytes(serialization.Encoding.PEM),
            certificate=certificate.public_bytes(serialization.Encoding.PEM),
            key=key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
            not_after=not_after,
        )

    def _dns_names(self, name: str) -> list[x509.GeneralName]:
        names = [name]
        if name == COORDINATOR:
            names += [self._host, f"{self._host}.{self._cluster_domain}"]
        return [x509.DNSName(text) for text in names]

    def _serial(self, purpose: str) -> int:
        """Positive and within 20 bytes, as RFC 5280 wants it."""
        return int.from_bytes(self._derive(f"serial/{purpose}", 16), "big") + 1


def needs_rotation(not_after: dt.datetime, now: dt.datetime) -> bool:
    """Whether leaves that are valid until then are to be replaced."""
    return not_after - now <= ROTATED_WITH


def z85_encode(data: bytes) -> bytes:
    """ZeroMQ's text form of a key (RFC 32/Z85): five characters for every four bytes."""
    text = bytearray()
    for position in range(0, len(data), 4):
        number = int.from_bytes(data[position : position + 4], "big")
        text += bytes(_Z85[number // 85**power % 85] for power in range(4, -1, -1))
    return bytes(text)


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
