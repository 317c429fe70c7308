"""The chains that a job's certificates form, for cryptography's verifier and in real gRPC handshakes."""

import base64
import datetime as dt
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import zmq
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.verification import ClientVerifier, PolicyBuilder, Store, VerificationError
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import UserError
from trimtab.v1 import job_control_pb2 as jc
from trimtab.v1 import job_control_pb2_grpc as jc_grpc
from trimtab_operator.certs import (
    LEAF_VALID,
    ROTATED_WITH,
    JobCredentials,
    MasterKey,
    Pems,
    needs_rotation,
    z85_encode,
)

NOW = dt.datetime.now(dt.UTC)
MASTER = MasterKey(bytes(range(32)))
UID = "7b0c2a2e-6a51-4f7e-9b1e-0b8e6f0e1a11"
OTHER_UID = "0e7a5c1e-3f0d-4b6e-8a53-6f2b0c9d7e42"
HOST = "coordinator-0-0.arithmetic.research.svc"


def credentials(uid: str = UID, master: MasterKey = MASTER) -> JobCredentials:
    return JobCredentials(master, job_uid=uid, namespace="research", job_name="arithmetic")


def leaf(data: dict[str, bytes], name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(data[f"{name}.crt"])


def policy(data: dict[str, bytes], at: dt.datetime = NOW) -> PolicyBuilder:
    return PolicyBuilder().store(Store([x509.load_pem_x509_certificate(data["ca.crt"])])).time(at)


def client_verifier(data: dict[str, bytes], at: dt.datetime = NOW) -> ClientVerifier:
    return policy(data, at).build_client_verifier()


@pytest.mark.parametrize("name", ["coordinator", HOST, f"{HOST}.cluster.local"])
def test_coordinators_leaf_serves_under_each_of_its_names(name: str) -> None:
    data = credentials().secret_data(NOW)
    chain = policy(data).build_server_verifier(x509.DNSName(name)).verify(leaf(data, "coordinator"), [])
    assert len(chain) == 2


def test_workers_leaf_is_a_client_and_cannot_pass_for_the_coordinator() -> None:
    data = credentials().secret_data(NOW)
    verified = client_verifier(data).verify(leaf(data, "worker"), [])
    assert verified.subjects == [x509.DNSName("worker")]
    with pytest.raises(VerificationError):
        policy(data).build_server_verifier(x509.DNSName("coordinator")).verify(leaf(data, "worker"), [])
    with pytest.raises(VerificationError):  # not even under its own name: it may not serve
        policy(data).build_server_verifier(x509.DNSName("worker")).verify(leaf(data, "worker"), [])


def test_operators_leaf_is_a_client_of_the_same_authority() -> None:
    pems = credentials().operator_pems(NOW)
    certificate = x509.load_pem_x509_certificate(pems.certificate)
    data = credentials().secret_data(NOW)
    assert client_verifier(data).verify(certificate, []).subjects == [x509.DNSName("operator")]
    assert certificate.not_valid_after_utc == pems.not_after == credentials().not_after(NOW)


@pytest.mark.parametrize("who", ["another job", "another operator"])
def test_leaf_of_somebody_else_is_refused(who: str) -> None:
    other = credentials(OTHER_UID) if who == "another job" else credentials(master=MasterKey.generate())
    with pytest.raises(VerificationError):
        client_verifier(credentials().secret_data(NOW)).verify(leaf(other.secret_data(NOW), "worker"), [])


def test_credentials_derived_again_are_the_same_bytes_until_the_rotation() -> None:
    first = credentials().secret_data(NOW)
    rotation = credentials().not_after(NOW) - ROTATED_WITH
    moment = dt.timedelta(seconds=1)
    assert credentials().secret_data(rotation - moment) == first
    second = credentials().secret_data(rotation)
    assert second["worker.key"] != first["worker.key"]
    unchanged = [key for key in first if key == "ca.crt" or key.startswith("curve-")]
    assert {k: second[k] for k in unchanged} == {k: first[k] for k in unchanged}
    # Old and new leaves meet for as long as the old ones are in some process.
    client_verifier(second, rotation).verify(leaf(first, "worker"), [])
    client_verifier(first, rotation).verify(leaf(second, "worker"), [])


@given(st.datetimes(dt.datetime(2026, 1, 1), dt.datetime(2100, 1, 1), timezones=st.just(dt.UTC)), st.uuids())
def test_leaf_is_valid_for_ten_days_at_least_whenever_it_is_made(now: dt.datetime, uid: object) -> None:
    job = credentials(str(uid))
    left = job.not_after(now) - now
    assert ROTATED_WITH < left <= LEAF_VALID
    assert not needs_rotation(job.not_after(now), now)
    rotation = job.not_after(now) - ROTATED_WITH
    assert needs_rotation(job.not_after(now), rotation)
    assert job.not_after(rotation) > job.not_after(now)


def test_leaf_is_valid_for_clocks_that_are_five_minutes_behind() -> None:
    job = credentials()
    start = job.not_after(NOW) - LEAF_VALID
    data = job.secret_data(start)
    client_verifier(data, start - dt.timedelta(minutes=5)).verify(leaf(data, "worker"), [])


def test_no_output_holds_the_authoritys_or_the_master_key() -> None:
    job = credentials()
    number = job._ca_key.private_numbers().private_value
    secrets = [number.to_bytes(32, "big"), MASTER.secret]
    data = job.secret_data(NOW)
    pems = job.operator_pems(NOW)
    outputs = [*data.values(), pems.ca, pems.certificate, pems.key]
    for pem in [data["coordinator.key"], data["worker.key"], pems.key]:
        key = serialization.load_pem_private_key(pem, None)
        outputs.append(
            key.private_bytes(
                serialization.Encoding.DER,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        assert key.private_numbers().private_value != number  # type: ignore[union-attr]
    outputs += [repr(thing).encode() for thing in (MASTER, job, pems, job.curve("server"))]
    for secret in secrets:
        for form in (secret, secret.hex().encode(), base64.b64encode(secret), z85_encode(secret)):
            assert not [output for output in outputs if form in output]


def test_curve_pairs_are_what_zeromq_makes_of_them() -> None:
    server, client = credentials().curve("server"), credentials().curve("client")
    assert zmq.curve_public(server.secret) == server.public
    assert zmq.curve_public(client.secret) == client.public
    assert server.secret != client.secret
    assert credentials(OTHER_UID).curve("server").public != server.public
    assert z85_encode(bytes.fromhex("864fd26fb559f75b")) == b"HelloWorld"  # the RFC's own example


@pytest.mark.parametrize("length", [0, 31, 33])
def test_master_key_of_another_length_is_refused_with_its_file(tmp_path: Path, length: int) -> None:
    (tmp_path / "master.key").write_bytes(b"k" * length)
    with pytest.raises(UserError, match=rf"master\.key: .*{length} bytes, not 32"):
        MasterKey.load(tmp_path)


def test_master_key_is_read_back_and_absent_without_its_file(tmp_path: Path) -> None:
    assert MasterKey.load(tmp_path) is None
    made = MasterKey.generate()
    (tmp_path / "master.key").write_bytes(made.secret)
    assert MasterKey.load(tmp_path) == made


class Named(jc_grpc.JobControlServicer):
    """Answers with the caller's common name."""

    def GetStatus(self, request: jc.GetStatusRequest, context: grpc.ServicerContext) -> jc.JobStatus:  # noqa: N802
        return jc.JobStatus(name=context.auth_context()["x509_common_name"][0].decode())


@contextmanager
def coordinator_of(job: JobCredentials) -> Iterator[int]:
    data = job.secret_data(NOW)
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        jc_grpc.add_JobControlServicer_to_server(Named(), server)
        identity = grpc.ssl_server_credentials(
            [(data["coordinator.key"], data["coordinator.crt"])],
            root_certificates=data["ca.crt"],
            require_client_auth=True,
        )
        port = server.add_secure_port("127.0.0.1:0", identity)
        server.start()
        yield port
        server.stop(None).wait(10)


def ask(port: int, pems: Pems, *, trusting: JobCredentials) -> str:
    ca = trusting.secret_data(NOW)["ca.crt"]
    identity = grpc.ssl_channel_credentials(ca, pems.key, pems.certificate)
    options = (("grpc.ssl_target_name_override", "coordinator"),)
    with grpc.secure_channel(f"127.0.0.1:{port}", identity, options) as channel:
        return jc_grpc.JobControlStub(channel).GetStatus(jc.GetStatusRequest(), timeout=10).name


def test_operator_after_a_restart_reaches_a_coordinator_with_the_leaf_from_before() -> None:
    with coordinator_of(credentials()) as port:
        again = credentials()
        assert ask(port, again.operator_pems(NOW), trusting=again) == "operator"


@pytest.mark.parametrize("trusts", ["the coordinator's", "its own"])
def test_another_jobs_leaf_does_not_get_through_the_handshake(trusts: str) -> None:
    other = credentials(OTHER_UID)
    with coordinator_of(credentials()) as port, pytest.raises(grpc.RpcError) as refused:
        ask(port, other.operator_pems(NOW), trusting=other if trusts == "its own" else credentials())
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
