import base64
from collections.abc import Callable
from typing import Any

import pytest

from trimtab_operator.builders.children import child_manifests
from trimtab_operator.model.actions import EnsureChildren
from trimtab_operator.model.resolved import Resolved

Make = Callable[..., Resolved]
Children = dict[tuple[str, str], dict[str, Any]]

UID = "0f4e6c1a-3f5b-4b0e-9d52-1d6a3c1f7a10"


def children(
    resolved: Resolved, *, rollout: int = 1, reward: int = 1, scaled: tuple[str, ...] = ()
) -> Children:
    wanted = EnsureChildren(
        resolved=resolved,
        rollout_replicas=rollout,
        min_rollout_replicas=1,
        reward_replicas=reward,
        min_reward_replicas=1,
    )
    manifests = child_manifests(wanted, secret_data={"ca.crt": b"pem"}, scaled=scaled)
    return {(each["kind"], each["metadata"]["name"]): each for each in manifests}


def test_children_of_a_small_job_are_owned_by_it_and_carry_its_labels(make: Make) -> None:
    found = children(make())
    assert set(found) == {
        ("Service", "sums"),
        ("Secret", "sums-tls"),
        ("NetworkPolicy", "sums"),
        ("PersistentVolumeClaim", "sums-run"),
    }
    for manifest in found.values():
        metadata = manifest["metadata"]
        assert metadata["namespace"] == "team-a"
        assert metadata["labels"]["trimtab.dev/job-uid"] == UID
        assert metadata["ownerReferences"] == [
            {
                "apiVersion": "trimtab.dev/v1alpha1",
                "kind": "RLTrainingJob",
                "name": "sums",
                "uid": UID,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ]


def test_service_names_the_coordinator_before_it_is_ready(make: Make) -> None:
    spec = children(make())["Service", "sums"]["spec"]
    assert spec["clusterIP"] == "None"
    assert spec["publishNotReadyAddresses"] is True
    assert spec["selector"] == {"trimtab.dev/job-uid": UID, "trimtab.dev/role": "coordinator"}


def test_secret_holds_the_files_that_it_is_given(make: Make) -> None:
    data = children(make())["Secret", "sums-tls"]["data"]
    assert {name: base64.b64decode(text) for name, text in data.items()} == {"ca.crt": b"pem"}


@pytest.mark.parametrize(("replicas", "available"), [(2, 1), (5, 4)])
def test_budget_lets_one_replica_go_at_a_time(make: Make, replicas: int, available: int) -> None:
    budget = children(make(), rollout=replicas)["PodDisruptionBudget", "sums-rollout"]["spec"]
    assert budget["minAvailable"] == available
    assert budget["selector"]["matchLabels"] == {
        "trimtab.dev/job-uid": UID,
        "trimtab.dev/role": "rollout",
    }


def test_budget_of_one_replica_exists_only_to_lower_one_that_is_there(make: Make) -> None:
    assert ("PodDisruptionBudget", "sums-reward") not in children(make(), rollout=3)
    budget = children(make(), reward=1, scaled=("reward",))["PodDisruptionBudget", "sums-reward"]["spec"]
    assert budget["minAvailable"] == 0


def test_claim_is_as_the_job_asks(make: Make) -> None:
    claim = {"size": "1536Mi", "storageClassName": "fast", "accessModes": ["ReadWriteMany"]}
    spec = children(make(storage={"claim": claim}))["PersistentVolumeClaim", "sums-run"]["spec"]
    assert spec == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1536Mi"}},
        "storageClassName": "fast",
    }


def test_claim_is_not_made_where_the_job_brings_a_volume(make: Make) -> None:
    volume = {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}
    found = children(make(storage={"volume": {"name": "runs"}}, volumes=[volume]))
    assert "PersistentVolumeClaim" not in {kind for kind, _ in found}


def policy(resolved: Resolved) -> dict[str, Any]:
    spec: dict[str, Any] = children(resolved)["NetworkPolicy", "sums"]["spec"]
    return spec


def test_policy_lets_in_the_jobs_own_pods_and_the_operators_alone(make: Make) -> None:
    spec = policy(make())
    own = {"matchLabels": {"trimtab.dev/job-uid": UID}}
    assert spec["podSelector"] == own
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"] == [
        {"from": [{"podSelector": own}]},
        {
            "from": [
                {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "trimtab-system"}},
                    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "trimtab-operator"}},
                }
            ],
            "ports": [{"protocol": "TCP", "port": 7070}],
        },
    ]


def test_policy_lets_a_scraper_that_the_platform_names_reach_the_gauges_alone(make: Make) -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    *_, rule = policy(make(settings={"metricsFrom": [peer]}))["ingress"]
    assert rule["from"] == [peer]
    assert rule["ports"] == [{"protocol": "TCP", "port": 7071, "endPort": 7134}]


def test_policy_is_not_made_where_the_platform_wants_none(make: Make) -> None:
    assert ("NetworkPolicy", "sums") not in children(make(settings={"networkPolicy": False}))


HTTPS = {"ports": [{"protocol": "TCP", "port": 443}]}


@pytest.mark.parametrize(
    ("platform", "job", "rules"),
    [
        (None, None, None),
        ([HTTPS], None, [HTTPS]),
        ([], None, []),
        ([HTTPS], {"egress": []}, []),
        (None, {"egress": [HTTPS]}, [HTTPS]),
    ],
    ids=["neither", "the platform", "the platform, nowhere", "the job, nowhere", "the job"],
)
def test_policy_restricts_egress_where_job_or_platform_say(
    make: Make, platform: Any, job: Any, rules: list[Any] | None
) -> None:
    spec = policy(make(settings={"egress": platform} if platform is not None else {}, networkPolicy=job))
    if rules is None:
        assert "egress" not in spec
        return
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    *further, own, dns = spec["egress"]
    assert own["to"] == [{"podSelector": {"matchLabels": {"trimtab.dev/job-uid": UID}}}]
    assert {port["port"] for port in dns["ports"]} == {53}
    assert further == rules


def test_policy_of_pods_on_their_nodes_network_cannot_tell_them_apart(make: Make) -> None:
    gpus = {"actor": {"gpusPerNode": 8}}
    assert policy(make(roles=gpus, scheduling={"rdma": {"hostNetwork": True}}))["ingress"] == [{}]
    assert policy(make(roles=gpus, scheduling={"rdma": {}}))["ingress"] != [{}]
    assert policy(make(scheduling={"rdma": {"hostNetwork": True}}))["ingress"] != [{}], "no pod has GPUs"


def test_device_classes_give_each_role_with_gpus_a_claim_template(make: Make) -> None:
    found = children(
        make(
            roles={"actor": {"gpusPerNode": 4}, "rollout": {"gpusPerNode": 1}},
            scheduling={"accelerator": {"deviceClass": {"name": "gpu.nvidia.com"}}},
        )
    )
    counts = {
        name: template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
        for (kind, name), template in found.items()
        if kind == "ResourceClaimTemplate"
    }
    assert {name: exactly["count"] for name, exactly in counts.items()} == {
        "sums-gpu-actor": 4,
        "sums-gpu-rollout": 1,
    }
    assert {exactly["deviceClassName"] for exactly in counts.values()} == {"gpu.nvidia.com"}
