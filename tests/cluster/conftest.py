"""Whole jobs in a real cluster: Trimtab installed by helm, pods in namespaces that enforce `restricted`.

What the tests take from outside, and how to give it with kind: docs/cluster-tests.md. What a test
asks for:

    space       a namespace of its own with a claim on the volume that all nodes share; space.start(job)
    make_space  further ones
    operator    the installed operator
    faults      what can be done to the cluster: stop and start nodes, restart the API server
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from tests.cluster.jobs import (
    CLAIM,
    DATA_MOUNT,
    NUM_ROWS,
    OPERATOR_NAMESPACE,
    PACED_REWARD,
    QUICKSTART,
    SLEEP,
    Space,
    helper_pod,
)
from tests.cluster.kube import HOST, Kube, Manifest, nodes, run, until
from tests.cluster.release import Faults, Images, Operator

SETUP_NAMESPACE = "trimtab-test-setup"
NOT_GIVEN = (
    "needs a cluster: KUBECONFIG, and TRIMTAB_IMAGE_PREFIX with images that its nodes have or can pull"
    " (docs/cluster-tests.md)"
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each test here is about whole jobs; without a cluster one skipped test stands for all of them."""
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.timeout(900))
    if ours and not (os.environ.get("KUBECONFIG") and os.environ.get("TRIMTAB_IMAGE_PREFIX")):
        ours[0].add_marker(pytest.mark.skip(NOT_GIVEN))
        config.hook.pytest_deselected(items=ours[1:])
        items[:] = [item for item in items if item not in ours[1:]]


@pytest.fixture(scope="session")
def images() -> Images:
    """Images from TRIMTAB_IMAGE_PREFIX and TRIMTAB_IMAGE_TAG."""
    prefix, tag = os.environ["TRIMTAB_IMAGE_PREFIX"], os.environ.get("TRIMTAB_IMAGE_TAG", "dev")
    return Images(*(f"{prefix}/{name}:{tag}" for name in ("operator", "control", "worker")), prefix, tag)


@pytest.fixture(scope="session")
def operator(images: Images) -> Iterator[Operator]:
    """Trimtab, installed by helm for all tests and uninstalled after them."""
    installed = Operator(images)
    installed.upgrade()
    try:
        yield installed
    finally:
        run("helm", "uninstall", "trimtab", "-n", OPERATOR_NAMESPACE, "--wait", "--timeout=120s")
        installed.kube("delete", "namespace", OPERATOR_NAMESPACE, "--timeout=90s")


@dataclass(frozen=True)
class Volume:
    """The folder on the nodes that all of them share."""

    folder: str


@pytest.fixture(scope="session")
def volume(images: Images) -> Iterator[Volume]:
    """The shared folder, emptied and writable for everybody (a hostPath knows no fsGroup)."""
    folder = os.environ.get("TRIMTAB_TEST_FOLDER", "/var/lib/trimtab-test")
    kube = Kube(SETUP_NAMESPACE)
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SETUP_NAMESPACE}})

    def as_root(name: str, script: str) -> None:
        pod = helper_pod(name, images.control, "sh", "-c", script)
        pod["spec"]["securityContext"] = {"runAsUser": 0}
        pod["spec"]["containers"][0]["securityContext"] = {}
        pod["spec"]["volumes"][0] = {
            "name": "trimtab", "hostPath": {"path": folder, "type": "DirectoryOrCreate"}
        }  # fmt: skip
        kube.apply(pod)
        kube(
            "wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s", timeout_s=130
        )

    as_root("make-folder", f"rm -rf {DATA_MOUNT}/* && chmod 0777 {DATA_MOUNT}")
    try:
        yield Volume(folder)
    finally:
        as_root("empty-folder", f"rm -rf {DATA_MOUNT}/*")
        kube("delete", "namespace", SETUP_NAMESPACE, "--timeout=90s")


MakeSpace = Callable[[str], Space]


@pytest.fixture(scope="session")
def prepared(images: Images, volume: Volume) -> None:
    """The quickstart's model and data on the volume, made as its README says, by a restricted pod."""
    space, objects = _make_space("trimtab-test-prepare", images, volume)
    try:
        space.kube("create", "configmap", "quickstart-prepare", f"--from-file={QUICKSTART / 'prepare.py'}")
        for manifest in YAML(typ="safe").load_all((QUICKSTART / "cluster-prepare.yaml").read_text()):
            if manifest["kind"] == "Job":
                manifest["spec"]["template"]["spec"]["containers"][0]["image"] = images.worker
                space.kube.apply(manifest)
        space.kube(
            "wait", "job/quickstart-prepare", "--for=condition=Complete", "--timeout=300s", timeout_s=310
        )
        prompts = [f"{7919 * number % 100_000:05d}" for number in range(1, NUM_ROWS + 1)]
        rows = "".join(
            json.dumps({"prompt": prompt, "answer": "".join(sorted(prompt))}) + "\n" for prompt in prompts
        )
        script = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
        space.kube.exec("reader", "python", "-c", script, f"{DATA_MOUNT}/paced.jsonl", rows)
    finally:
        _remove_space(space, objects)


@pytest.fixture
def make_space(
    images: Images, volume: Volume, prepared: None, operator: Operator, request: pytest.FixtureRequest
) -> Iterator[MakeSpace]:
    """Makes restricted namespaces; they and the jobs in them are removed after the test."""
    made: list[tuple[Space, list[Manifest]]] = []

    def make(name: str) -> Space:
        space, objects = _make_space(f"trimtab-test-{name}", images, volume)
        made.append((space, objects))
        space.kube("create", "configmap", "paced", f"--from-literal=paced.py={PACED_REWARD}")
        return space

    try:
        yield make
    finally:
        for space, objects in made:
            # Jobs first, so that the operator sees to their pods.
            space.kube("delete", "rltj", "--all", "--timeout=60s")
            _remove_space(space, objects)


@pytest.fixture
def space(make_space: MakeSpace, request: pytest.FixtureRequest) -> Space:
    """A namespace of the test's own."""
    name = request.node.name.removeprefix("test_").replace("_", "-").replace("[", "-").replace("]", "")
    return make_space(name[:40].strip("-"))


def _make_space(name: str, images: Images, volume: Volume) -> tuple[Space, list[Manifest]]:
    """A namespace, its claim and the volume behind it, and a pod that reads there."""
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }
    sizes = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    persistent = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            **sizes,
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": volume.folder},
            "claimRef": {"namespace": name, "name": CLAIM},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM},
        "spec": {**sizes, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}},
    }
    space = Space(name, worker=images.worker, control=images.control)
    space.kube.apply(namespace, persistent)
    space.kube.apply(claim)
    until(lambda: space.kube.get("serviceaccount", "default"), f"a service account in {name}", timeout_s=60)
    space.run_pod("reader", images.control, *SLEEP, nodeSelector={HOST: nodes()[0]})
    return space, [namespace, persistent]


def _remove_space(space: Space, objects: list[Manifest]) -> None:
    """End what runs there; the namespace goes in the background."""
    space.kube("delete", "pod", "--all", "--grace-period=0", "--force", "--ignore-not-found")
    for entry in objects:
        name = entry["metadata"]["name"]
        space.kube("delete", entry["kind"], name, "--wait=false", "--ignore-not-found")


@pytest.fixture
def faults() -> Faults:
    """Faults of the cluster."""
    return Faults()
