"""What every test can ask for: a tiny model directory, a job's certificates, and no network."""

import datetime as dt
import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Before any import of transformers, datasets or vllm: they read these once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory: 2-layer Llama, hidden 64, untied, float32; 128-id character tokenizer."""
    from trimtab.testing.tiny_model import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny-model"))


TLS_PARTS = {
    "coordinator": ("coordinator.crt", "coordinator.key", "curve-server.key"),
    "worker": ("worker.crt", "worker.key", "curve-client.key"),
}


class TlsMount:
    """A job's Secret as Kubernetes mounts it into a pod: a role's part of it, swapped as a whole."""

    def __init__(self, path: Path, role: str, *, uid: str) -> None:
        self.path = path
        self._names = ("ca.crt", "curve-server.pub", "curve-client.pub", *TLS_PARTS[role])
        self._uid = uid
        self._numbers = itertools.count()
        path.mkdir()
        self.fill(dt.datetime.now(dt.UTC))
        for name in self._names:
            (path / name).symlink_to(f"..data/{name}")

    def fill(self, now: dt.datetime) -> None:
        """What the operator makes at that time; the link is replaced last, as the kubelet does it."""
        from trimtab_operator.certs import JobCredentials, MasterKey

        job = JobCredentials(MasterKey(b"m" * 32), job_uid=self._uid, namespace="ns", job_name="job")
        data = job.secret_data(now)
        self.write({name: data[name] for name in self._names})

    def write(self, data: dict[str, bytes]) -> None:
        """Other contents."""
        folder = self.path / f"..{next(self._numbers)}"
        folder.mkdir()
        for name, content in data.items():
            (folder / name).write_bytes(content)
        link = self.path / "..new"
        link.symlink_to(folder.name)
        link.replace(self.path / "..data")


@pytest.fixture
def tls_mount(tmp_path: Path) -> Callable[..., TlsMount]:
    """`tls_mount(role, uid=...)`: the folder that TRIMTAB_TLS_DIR names in a pod of the job with that uid."""
    numbers = itertools.count()

    def mount(role: str, *, uid: str = "this-job") -> TlsMount:
        return TlsMount(tmp_path / f"tls-{role}-{uid}-{next(numbers)}", role, uid=uid)

    return mount


class ServiceNames:
    """What a cluster's DNS says of a headless Service: the coordinator's address, if it has one."""

    NAME = "coordinator-0-0.e2e.research.svc.cluster.local"

    def __init__(self) -> None:
        self.address: str | None = None
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def target(self, port: int) -> str:
        """The coordinator by its name, looked up here."""
        return f"dns://127.0.0.1:{self.port}/{self.NAME}:{port}"

    def close(self) -> None:
        """Answer no more."""
        self._socket.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join(10)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            query, client = self._socket.recvfrom(512)
            if not query:
                return
            end = query.index(b"\x00", 12) + 1
            labels, kind = query[12:end], int.from_bytes(query[end : end + 2], "big")
            wanted = b"".join(bytes([len(part)]) + part.encode() for part in self.NAME.split(".")) + b"\x00"
            known = labels == wanted and self.address is not None
            answers = known and kind == 1  # an A record; of any other kind there is none
            flags = 0x8180 if known else 0x8183
            header = query[:2] + b"".join(n.to_bytes(2, "big") for n in (flags, 1, int(answers), 0, 0))
            record = b""
            if answers:
                assert self.address is not None
                record = b"\xc0\x0c\x00\x01\x00\x01" + (0).to_bytes(4, "big") + b"\x00\x04"
                record += socket.inet_aton(self.address)
            self._socket.sendto(header + query[12 : end + 4] + record, client)


@pytest.fixture
def service_names() -> Iterator[ServiceNames]:
    """A DNS server that knows one name, or not."""
    names = ServiceNames()
    yield names
    names.close()
