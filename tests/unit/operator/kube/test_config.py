import base64
import datetime
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from trimtab_operator.kube.config import TOKEN_AGE_S, TokenFile, load_config
from trimtab_operator.kube.errors import ConfigError


def _certificate() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), pem


def _kubeconfig(**changes: Any) -> dict[str, Any]:
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/"}}],
        "users": [{"name": "u", "user": {"token": "abc"}}],
        **changes,
    }


def _write(path: Path, data: Any) -> str:
    path.write_text(json.dumps(data))
    return str(path)


def test_kubeconfig_gives_server_namespace_and_token(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path / "config", _kubeconfig()), environ={})
    assert (config.server, config.namespace) == ("https://10.0.0.1:6443", "team")
    assert config.token is not None
    assert config.token() == "abc"


def test_kubeconfig_client_certificate_from_data_and_files_is_taken(tmp_path: Path) -> None:
    certificate, key = _certificate()
    (tmp_path / "ca.crt").write_bytes(certificate)
    (tmp_path / "client.key").write_bytes(key)
    data = _kubeconfig(
        clusters=[
            {"name": "c", "cluster": {"server": "https://10.0.0.1", "certificate-authority": "ca.crt"}}
        ],
        users=[
            {
                "name": "u",
                "user": {
                    "client-certificate-data": base64.b64encode(certificate).decode(),
                    "client-key": "client.key",
                },
            }
        ],
    )
    config = load_config("", environ={"KUBECONFIG": _write(tmp_path / "config", data)})
    assert config.token is None
    assert config.tls is not None
    assert config.tls.verify_mode == ssl.CERT_REQUIRED
    assert len(config.tls.get_ca_certs()) == 1


def test_kubeconfig_of_several_files_takes_the_first_that_says_something(tmp_path: Path) -> None:
    first = _write(tmp_path / "a", {"current-context": "here"})
    second = _write(tmp_path / "b", _kubeconfig(**{"current-context": "other"}))
    assert load_config(f"{first}:{second}", environ={}).namespace == "team"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"current-context": ""}, "current-context is not set"),
        ({"current-context": "gone"}, "contexts has no entry named 'gone'"),
        ({"users": []}, "users has no entry named 'u'"),
        ({"clusters": [{"name": "c", "cluster": {"server": "10.0.0.1"}}]}, "not an https:// address"),
        ({"users": [{"name": "u", "user": {"exec": {"command": "aws"}}}]}, "logs in through a program"),
        (
            {
                "clusters": [
                    {"name": "c", "cluster": {"server": "https://x", "certificate-authority-data": "%"}}
                ]
            },
            "certificate-authority-data is not base64",
        ),
    ],
    ids=["no context", "unknown context", "unknown user", "no address", "login program", "no base64"],
)
def test_kubeconfig_that_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(_write(tmp_path / "config", _kubeconfig(**change)), environ={})


def test_kubeconfig_that_is_missing_or_no_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(str(tmp_path / "missing"), environ={})
    (tmp_path / "broken").write_text("a: [")
    with pytest.raises(ConfigError, match="is no YAML"):
        load_config(str(tmp_path / "broken"), environ={})


def test_pod_takes_its_service_account(tmp_path: Path) -> None:
    certificate, _ = _certificate()
    (tmp_path / "ca.crt").write_bytes(certificate)
    (tmp_path / "token").write_text("one\n")
    (tmp_path / "namespace").write_text("trimtab-system")
    config = load_config("", environ={"KUBERNETES_SERVICE_HOST": "fd00::1"}, account=tmp_path)
    assert (config.server, config.namespace) == ("https://[fd00::1]:443", "trimtab-system")


def test_neither_kubeconfig_nor_pod_says_what_to_give() -> None:
    with pytest.raises(ConfigError, match="give --kubeconfig FILE"):
        load_config("", environ={})


def test_token_file_is_read_again_when_it_is_old_and_kept_while_it_is_gone(tmp_path: Path) -> None:
    now = [0.0]
    (tmp_path / "token").write_text("one")
    token = TokenFile(tmp_path / "token", clock=lambda: now[0])
    assert token() == "one"
    (tmp_path / "token").write_text("two")
    assert token() == "one"
    now[0] = TOKEN_AGE_S
    assert token() == "two"
    (tmp_path / "token").unlink()
    now[0] = 3 * TOKEN_AGE_S
    assert token() == "two"
