"""A real API server for tests: etcd and kube-apiserver from KUBEBUILDER_ASSETS, as `setup-envtest` has them.

server.py starts the processes, client.py is what a test talks to them with. What a test asks for:

    api             client with all rights, in a namespace of the test's own
    crd             the same with RLTrainingJob installed, from charts/trimtab/files/crd.yaml
    make_user       await make_user("alice", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}])
                    makes a service account with these rights (cluster=True: everywhere) and gives its client
    kubectl         await kubectl("get", "pods") as the test's user with all rights, in its namespace
    apiserver       the processes: url, ca_file, kubeconfig(token=..., namespace=...), audit(), restart()
    own_apiserver   processes of the test's own, for one that stops them or changes what all tests share

Tests that use a client are `async def`. Every wait has a deadline.
"""

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from tests.apiserver import client
from tests.apiserver.client import Api, Kubectl, MakeUser, Manifest, connected
from tests.apiserver.server import NOT_SET, ApiServer, running

CRD_FILE = Path(__file__).resolve().parents[2] / "charts" / "trimtab" / "files" / "crd.yaml"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """One line for all tests that are skipped for want of the variable: pytest folds those of one place."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and NOT_SET in report.longrepr[2]:
        report.longrepr = (__file__, 0, report.longrepr[2])
    return report


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """The API server that all tests share."""
    with running(tmp_path_factory.mktemp("apiserver")) as server:
        yield server


@pytest.fixture
def own_apiserver(tmp_path: Path) -> Iterator[ApiServer]:
    """An API server of the test's own (4 s): it may be stopped, restarted and changed."""
    with running(tmp_path) as server:
        yield server


@pytest.fixture
def connect() -> Iterator[Callable[[ApiServer], contextlib.AbstractAsyncContextManager[Api]]]:
    """`async with connect(own_apiserver) as api:` gives a client with all rights in a new namespace."""
    yield connected


@pytest.fixture
async def api(apiserver: ApiServer) -> AsyncIterator[Api]:
    """Client with all rights, in a namespace of the test's own."""
    async with connected(apiserver) as client:
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
        return await client.account(api, name)

    yield make
    for kind, name in cluster_wide:
        await api.delete(kind, name)


@pytest.fixture
def kubectl(api: Api) -> Kubectl:
    """Runs kubectl with all rights in the test's namespace; `stdin` is text, `check=False` lets it fail."""
    return functools.partial(client.kubectl, api)
