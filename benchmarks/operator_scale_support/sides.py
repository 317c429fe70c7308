"""The two operators that are compared: what each is asked for, how it is started, when it is done.

A job of ours has six pods, and so has a RayCluster with five workers. Both sides' pods ask for the same
resources, and their specs are about as long (`operator_scale.py` checks it).
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab_operator.constants import API_VERSION, KIND, LABEL_JOB, PLURAL

Manifest = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "jobs"
PODS = 6
CORE = f"/api/v1/namespaces/{NAMESPACE}"
OUR_VARIABLES = 19
"""Of the platform's, in each of our containers, to make the pods' specs as long as KubeRay's are without."""
RESOURCES = {"requests": {"cpu": "10m", "memory": "10Mi"}}
IMAGE = "registry.example/team/training:2026.11.3"


@dataclass(frozen=True, kw_only=True)
class Side:
    """One operator."""

    name: str
    crds: tuple[Path, ...]
    path: str
    """Collection of its jobs."""
    make: Callable[[str], Manifest]
    """A job of a name."""
    label: str
    """Of a pod: the name of its job."""
    children: dict[str, int]
    """Collection of every kind that it makes for a job, and how many."""
    told: Callable[[Manifest], bool]
    """Whether a job's status says that all its pods are there."""
    up: Callable[[Manifest], bool]
    """Whether a job's status says that all its pods run."""


def trimtab() -> Side:
    """Ours."""
    networking, policy = "networking.k8s.io/v1", "policy/v1"
    return Side(
        name="trimtab",
        crds=(ROOT / "charts" / "trimtab" / "files" / "crd.yaml",),
        path=f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/{PLURAL}",
        make=_job,
        label=LABEL_JOB,
        children={
            f"{CORE}/pods": PODS,
            f"{CORE}/services": 1,
            f"{CORE}/configmaps": 1,
            f"{CORE}/secrets": 1,
            f"/apis/{networking}/namespaces/{NAMESPACE}/networkpolicies": 1,
            f"/apis/{policy}/namespaces/{NAMESPACE}/poddisruptionbudgets": 1,
        },
        told=_all_seen,
        up=lambda job: job.get("status", {}).get("phase") in ("Starting", "Running"),
    )


def kuberay(crds: Path) -> Side:
    """KubeRay, whose RayClusters are read from the given folder of CRDs."""
    files = tuple(path for path in sorted(crds.rglob("*.yaml")) if "rayclusters" in path.name)
    others = tuple(path for path in sorted(crds.rglob("*.yaml")) if path not in files)
    if not files:
        sys.exit(f"--kuberay-crds {crds}: no file there is named *rayclusters*.yaml")
    return Side(
        name="kuberay",
        crds=(*files, *others),
        path=f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters",
        make=_ray_cluster,
        label="ray.io/cluster",
        children={f"{CORE}/pods": PODS, f"{CORE}/services": 1},
        told=lambda cluster: cluster.get("status", {}).get("desiredWorkerReplicas") == PODS - 1,
        up=lambda cluster: cluster.get("status", {}).get("state") == "ready",
    )


def trimtab_command(kubeconfig: Path, folder: Path) -> list[str]:
    """Our operator, as the chart starts it."""
    role = {"image": IMAGE, "env": _env(OUR_VARIABLES)}
    settings = {
        "operatorNamespace": NAMESPACE,
        "operatorLabels": {"app.kubernetes.io/name": "trimtab"},
        "roles": dict.fromkeys(("coordinator", "actor", "rollout", "reward"), role),
    }
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "identity").mkdir(exist_ok=True)
    (folder / "identity" / "master.key").write_bytes(b"benchmark" * 3 + b"12345")
    return [
        *(sys.executable, "-m", "trimtab_operator.main", "run"),
        f"--kubeconfig={kubeconfig}",
        f"--settings={folder / 'settings.json'}",
        f"--identity-dir={folder / 'identity'}",
        "--health-port=0",
    ]


def kuberay_command(binary: Path, kubeconfig: Path) -> list[str]:
    """KubeRay, with more workers (10 for 1) and three times the requests of its defaults."""
    return [
        *(str(binary), f"--kubeconfig={kubeconfig}"),
        *("--reconcile-concurrency=10", "--qps=300", "--burst=600"),
        f"--leader-election-namespace={NAMESPACE}",
        *("--metrics-addr=127.0.0.1:0", "--health-probe-bind-address=127.0.0.1:0"),
    ]


def spec_bytes(pod: Manifest) -> int:
    """Length of a pod's spec."""
    return len(json.dumps(pod["spec"], separators=(",", ":")))


def _all_seen(job: Manifest) -> bool:
    status = job.get("status", {})
    units = status.get("units") or ()
    current = status.get("observedGeneration") == job["metadata"]["generation"]
    return current and len(units) == PODS and all(unit.get("seen") for unit in units)


def _env(variables: int) -> list[Manifest]:
    return [
        {"name": f"TEAM_SETTING_{number:02}", "value": f"value-of-setting-{number:02}-of-the-team"}
        for number in range(variables)
    ]


def _job(name: str) -> Manifest:
    role = {"resources": RESOURCES}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {
            "model": {"path": "/shared/models/qwen"},
            "data": {"train": {"path": "/shared/data/train.jsonl"}},
            "algorithm": {"grpo": {"groupSize": 8}},
            "training": {"steps": 100_000, "promptsPerStep": 16},
            "rewards": [{"function": "exact_match"}],
            "volumes": [{"name": "shared", "nfs": {"server": "nfs.example", "path": "/trimtab"}}],
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
            "storage": {"volume": {"name": "shared"}},
            "roles": {
                "coordinator": role,
                "actor": role,
                "rollout": {**role, "replicas": PODS - 3},
                "reward": role,
            },
        },
    }


def _ray_cluster(name: str) -> Manifest:
    def template(container: str) -> Manifest:
        main = {
            "name": container,
            "image": IMAGE,
            "resources": RESOURCES,
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
        }
        volume = {"name": "shared", "nfs": {"server": "nfs.example", "path": "/ray"}}
        return {"spec": {"containers": [main], "volumes": [volume]}}

    workers = {
        "groupName": "workers",
        "replicas": PODS - 1,
        "minReplicas": PODS - 1,
        "maxReplicas": PODS - 1,
        "rayStartParams": {},
        "template": template("ray-worker"),
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {
            "rayVersion": "2.46.0",
            "headGroupSpec": {"rayStartParams": {}, "template": template("ray-head")},
            "workerGroupSpecs": [workers],
        },
    }
