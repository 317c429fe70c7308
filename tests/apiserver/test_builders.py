"""What the builders make, in front of a real API server: every object of many a job is accepted.

Nothing is stored (dryRun=All), unknown fields are refused (fieldValidation=Strict), and the namespace
enforces the restricted Pod Security Standard, unless the job asks for what that refuses.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from trimtab_operator.builders.children import child_manifests
from trimtab_operator.builders.config_map import resolved_manifest
from trimtab_operator.builders.groups import pod_groups
from trimtab_operator.builders.pods import pod_manifest
from trimtab_operator.builders.resolve import resolve
from trimtab_operator.model.actions import EnsureChildren
from trimtab_operator.model.observed import Job
from trimtab_operator.model.plan import PodPlan
from trimtab_operator.model.resolved import Resolved, Settings

Manifest = dict[str, Any]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ENFORCE = "pod-security.kubernetes.io/enforce"

SPEC: Manifest = {
    "model": {"path": "/models/tiny"},
    "data": {"train": {"path": "/data/train.jsonl"}},
    "algorithm": {"grpo": {"groupSize": 8, "kl": {"coefficient": 0.0}}},
    "training": {"steps": 30, "promptsPerStep": 16},
    "rewards": [{"function": "exact_match"}],
    "roles": {"rollout": {"replicas": 2}},
    "storage": {"claim": {"size": "10Gi"}},
}
GPUS: Manifest = {
    "actor": {"nodes": 2, "gpusPerNode": 8, "resources": {"requests": {"cpu": 64, "memory": "500Gi"}}},
    "rollout": {"replicas": 3, "gpusPerNode": 1},
}
RESTRICTED: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
SIDECARS: Manifest = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "x"}},
    "spec": {
        "containers": [
            {"name": "logs", "image": "fluent:1", "securityContext": RESTRICTED},
            {
                "name": "trimtab",
                "env": [{"name": "HF_HOME", "value": "/cache"}],
                "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
            },
        ],
        "initContainers": [
            {"name": "proxy", "image": "p:1", "restartPolicy": "Always", "securityContext": RESTRICTED},
            {"name": "fetch", "image": "f:1", "securityContext": RESTRICTED},
        ],
        "volumes": [
            {"name": "cache", "emptyDir": {"sizeLimit": "5Gi"}},
            {"name": "trimtab-tmp", "ephemeral": {"volumeClaimTemplate": {"spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "50Gi"}}}}}},
        ],
    },
}  # fmt: skip
SPREAD: Manifest = {
    "maxSkew": 1,
    "topologyKey": "topology.kubernetes.io/zone",
    "whenUnsatisfiable": "ScheduleAnyway",
}
SCHEDULING: Manifest = {
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"trimtab.dev/job": "sums"}},
                    },
                }
            ]
        }
    },
    "topologySpreadConstraints": [SPREAD],
    "schedulerName": "my-scheduler",
    "priorityClassName": "system-node-critical",
    "imagePullSecrets": ["registry"],
}
SECRET_ENV = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}

JOBS: dict[str, Manifest] = {
    "small": {},
    "gpus": {"roles": GPUS},
    "gpus of another name": {
        "roles": GPUS,
        "scheduling": {"accelerator": {"resource": {"name": "amd.com/gpu"}}},
    },
    "gpus of a device class": {
        "roles": GPUS,
        "scheduling": {"accelerator": {"deviceClass": {"name": "gpu.nvidia.com"}}},
    },
    "scheduling": {"scheduling": SCHEDULING},
    "sidecars": {"roles": {"actor": {"podTemplate": SIDECARS}, "reward": {"podTemplate": SIDECARS}}},
    "variables": {"roles": {"actor": {"env": [SECRET_ENV, {"name": "A", "value": "$(TRIMTAB_HOST)"}]}}},
    "code in the image": {"code": {"image": {"path": "/opt/mine"}}},
    "code in a config map": {"code": {"configMap": {"name": "rewards"}}},
    "code on a volume": {
        "code": {"volume": {"name": "code", "path": "src"}},
        "volumes": [{"name": "code", "persistentVolumeClaim": {"claimName": "code", "readOnly": True}}],
    },
    "code from git": {"code": {"git": {"url": "https://git.test/r", "revision": "v1", "secretName": "t"}}},
    "storage of a class": {"storage": {"claim": {"size": 1_000_000_000, "storageClassName": "nfs"}}},
    "storage on a volume": {
        "storage": {"volume": {"name": "runs", "subPath": "team"}},
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}],
    },
    "storage below the checkpoints": {
        "storage": None,
        "checkpoint": {"uri": "/runs/sums"},
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}],
        "volumeMounts": [{"name": "runs", "mountPath": "/runs"}],
    },
    "egress": {"networkPolicy": {"egress": [{"ports": [{"protocol": "TCP", "port": 443}]}]}},
    "memory": {"roles": {"actor": {"sharedMemory": "64Gi"}}},
}
NOT_RESTRICTED: dict[str, Manifest] = {
    "rdma": {"roles": GPUS, "scheduling": {"rdma": {"resources": {"rdma/hca": 1}}}},
    "rdma on the nodes' network": {"roles": GPUS, "scheduling": {"rdma": {"hostNetwork": True}}},
    "a folder of the node": {
        "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
    },
}
PLATFORM: Manifest = {
    "roles": {
        role: {
            "image": f"registry.test/{role}:1",
            "imagePullPolicy": "IfNotPresent",
            "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
        }
        for role in ("coordinator", "actor", "rollout", "reward")
    },
    "operatorLabels": {"app.kubernetes.io/name": "trimtab-operator"},
}
EVERYTHING: Manifest = PLATFORM | {
    "imagePullSecrets": ["shared"],
    "proxy": {"http": "http://proxy.test:3128", "https": "http://proxy.test:3128", "noProxy": "corp.test"},
    "caBundleConfigMap": "corp-ca",
    "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
    "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
}


def rendered(api: Any, changes: Mapping[str, Any], platform: Mapping[str, Any]) -> Resolved:
    spec = {name: value for name, value in (SPEC | changes).items() if value is not None}
    job = Job(
        namespace=api.namespace,
        name="sums",
        uid="0f4e6c1a-3f5b-4b0e-9d52-1d6a3c1f7a10",
        generation=1,
        resource_version="1",
        created=datetime(2026, 11, 1, tzinfo=UTC),
        spec=spec,
    )
    return resolve(job, Settings.model_validate(platform), attempt=1001)


async def accept(api: Any, resolved: Resolved) -> list[Manifest]:
    """Have the API server judge everything that a job is made of; gives the pods as it would store them."""
    await api.create(resolved_manifest(resolved), dryRun="All")
    spec = resolved.resolved_job.job.spec
    wanted = EnsureChildren(
        resolved=resolved,
        rollout_replicas=spec.roles.rollout.replicas,
        min_rollout_replicas=spec.roles.rollout.min_replicas,
        reward_replicas=spec.roles.reward.replicas,
        min_reward_replicas=spec.roles.reward.min_replicas,
    )
    for manifest in child_manifests(wanted, secret_data={"ca.crt": b"pem"}, scaled=("reward",)):
        await api.apply(manifest, dryRun="All")
    groups = pod_groups(
        resolved, rollout_replicas=wanted.rollout_replicas, reward_replicas=wanted.reward_replicas
    )
    plans = [
        PodPlan(
            job=resolved.resolved_job.job.name,
            job_uid=resolved.job_uid,
            group=group.name,
            role=group.roles[0],
            replica=replica,
            node=node,
            incarnation=1,
            attempt=resolved.attempt,
        )
        for group in groups
        for replica in range(group.replicas)
        for node in range(group.nodes)
    ]
    return [await api.create(pod_manifest(plan, resolved), dryRun="All") for plan in plans]


@pytest.fixture
async def restricted(api: Any) -> Any:
    """`api`, in a namespace that refuses pods beyond the restricted standard."""
    await api.patch("Namespace", api.namespace, {"metadata": {"labels": {ENFORCE: "restricted"}}})
    return api


@pytest.mark.parametrize(
    "platform", [PLATFORM, EVERYTHING], ids=["plain platform", "platform with everything"]
)
@pytest.mark.parametrize("changes", JOBS.values(), ids=JOBS)
async def test_objects_of_a_job_are_accepted_in_a_restricted_namespace(
    restricted: Any, changes: Manifest, platform: Manifest
) -> None:
    pods = await accept(restricted, rendered(restricted, changes, platform))
    roles = {pod["metadata"]["labels"]["trimtab.dev/role"] for pod in pods}
    assert roles == {"coordinator", "actor", "rollout", "reward"}
    assert all(pod["spec"]["containers"][0]["name"] == "trimtab" for pod in pods)


@pytest.mark.parametrize("changes", NOT_RESTRICTED.values(), ids=NOT_RESTRICTED)
async def test_objects_of_a_job_beyond_the_standard_are_accepted_where_it_is_not_enforced(
    api: Any, changes: Manifest
) -> None:
    resolved = rendered(api, changes, EVERYTHING)
    await accept(api, resolved)
    await api.patch("Namespace", api.namespace, {"metadata": {"labels": {ENFORCE: "restricted"}}})
    with pytest.raises(api.Error, match="violates PodSecurity"):
        await accept(api, resolved)


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(EXAMPLES.glob("*/*.yaml")) if "kind: RLTrainingJob" in path.read_text()],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
async def test_objects_of_each_example_are_accepted(restricted: Any, path: Path) -> None:
    spec = YAML(typ="safe", pure=True).load(path)["spec"]
    # Those for a laptop say nothing of where a cluster keeps the run.
    laptop = "storage" not in spec and "uri" not in spec.get("checkpoint", {})
    storage = {"storage": {"claim": {"size": "10Gi"}}} if laptop else {}
    await accept(restricted, rendered(restricted, {"storage": None} | spec | storage, PLATFORM))


async def test_gpus_are_requested_as_they_are_limited(restricted: Any) -> None:
    pods = await accept(restricted, rendered(restricted, {"roles": GPUS}, PLATFORM))
    (actor, _) = [pod for pod in pods if pod["metadata"]["labels"]["trimtab.dev/role"] == "actor"]
    resources = actor["spec"]["containers"][0]["resources"]
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == "8"


async def test_everything_is_applied_again_without_a_change(api: Any) -> None:
    resolved = rendered(api, {"roles": {"rollout": {"replicas": 2}}}, EVERYTHING)
    wanted = EnsureChildren(
        resolved=resolved,
        rollout_replicas=2,
        min_rollout_replicas=1,
        reward_replicas=1,
        min_reward_replicas=1,
    )
    for manifest in child_manifests(wanted, secret_data={"ca.crt": b"pem"}):
        first = await api.apply(manifest, manager="trimtab.dev/operator", force="false")
        again = await api.apply(manifest, manager="trimtab.dev/operator", force="false")
        if manifest["kind"] == "PersistentVolumeClaim":  # written anew as it is, whoever applies it
            for name in ("resourceVersion", "managedFields"):
                again["metadata"][name] = first["metadata"][name]
        assert again == first
