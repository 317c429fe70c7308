"""What a dry run of a job's pods finds, asked of a real API server."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from trimtab_operator.adapter.rehearsal import rehearse
from trimtab_operator.kube.client import Client
from trimtab_operator.kube.config import load_config
from trimtab_operator.model.observed import Job
from trimtab_operator.model.resolved import Settings

ROLES = {name: {"image": "i"} for name in ("coordinator", "actor", "rollout", "reward")}
SPEC: dict[str, Any] = {
    "model": {"path": "/models/tiny"},
    "data": {"train": {"path": "/data/train.jsonl"}},
    "algorithm": {"grpo": {}},
    "training": {"steps": 3},
    "rewards": [{"function": "exact_match"}],
    "storage": {"claim": {"size": "1Gi"}},
}
SOUND = {"spec": {"containers": [{"name": "logs", "image": "l"}]}}


@pytest.fixture
async def client(api: Any) -> AsyncIterator[Client]:
    path = api.server.kubeconfig(token=api.token, namespace=api.namespace)
    made = Client(load_config(str(path), environ={}))
    yield made
    await made.close()


async def problems(
    client: Client, api: Any, *, platform: dict[str, Any] | None = None, **spec: Any
) -> tuple[str, ...]:
    job = Job(
        namespace=api.namespace,
        name="job",
        uid="0f4e6c1a-3f5b-4b0e-9d52-1d6a3c1f7a10",
        generation=1,
        resource_version="1",
        created=datetime(2026, 11, 1, tzinfo=UTC),
        spec={**SPEC, **spec},
    )
    return await rehearse(client, job, Settings.model_validate({"roles": ROLES, **(platform or {})}))


def of_actor(template: dict[str, Any]) -> dict[str, Any]:
    return {"actor": {"podTemplate": template}}


async def test_sound_template_passes_and_nothing_is_made(client, api) -> None:
    assert await problems(client, api, roles=of_actor(SOUND)) == ()
    assert await api.list("Pod") == []


@pytest.mark.parametrize(
    ("spec", "role", "words"),
    [
        ({"roles": of_actor({"spec": {"tolerate": []}})}, "actor", "tolerate"),
        ({"roles": of_actor({"spec": {"containers": [{"name": "logs"}]}})}, "actor", "image"),
        ({"roles": of_actor({"spec": {"priority": "high"}})}, "actor", "priority"),
        ({"volumes": [{"name": "v", "emptyDir": {"size": "1Gi"}}]}, "coordinator", "size"),
        ({"networkPolicy": {"egress": [{"port": 443}]}}, "", "egress[0].port"),
        ({"networkPolicy": {"egress": [{"ports": [{"port": 0}]}]}}, "", "egress[0].ports[0].port"),
        ({"scheduling": {"affinity": {"nodeAffinity": {"prefer": []}}}}, "coordinator", "prefer"),
        (
            {"roles": {"rollout": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"key": "k"}}}]}}},
            "rollout",
            "secretKeyRef.name",
        ),
    ],
    ids=[
        *("an unknown field", "a field that is missing", "a value of another type"),
        *("a volume", "an unknown field of an egress rule", "a port that cannot be"),
        *("an affinity", "a variable from elsewhere"),
    ],
)
async def test_what_is_wrong_is_named_with_its_role(
    client, api, spec: dict[str, Any], role: str, words: str
) -> None:
    (found,) = await problems(client, api, **spec)
    assert found.startswith(f"the pods of {role}: " if role else "the NetworkPolicy: ")
    assert words in found


async def test_rules_of_the_platform_are_tried_too(client, api) -> None:
    (found,) = await problems(client, api, platform={"metricsFrom": [{"namespaceSelektor": {}}]})
    assert "ingress[2].from[0].namespaceSelektor" in found


async def test_rules_for_a_hub_and_git_pass(client, api) -> None:
    ports = [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 22}]
    world = [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}]
    assert await problems(client, api, networkPolicy={"egress": [{"to": world, "ports": ports}]}) == ()


async def test_quota_passes_for_now(client, api) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
    await api.create(quota | {"spec": {"hard": {"pods": "0"}}})
    assert await problems(client, api, roles=of_actor(SOUND)) == ()


async def test_policy_and_pod_security_pass_for_now(client, api) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await api.patch("Namespace", api.namespace, {"metadata": {"labels": labels}})
    assert await problems(client, api, roles=of_actor(SOUND)) == (), "the sidecar is not restricted"
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": f"no-{api.namespace}"}}
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    where = {"matchLabels": {"kubernetes.io/metadata.name": api.namespace}}
    policy = {
        "matchConstraints": {"resourceRules": [pods], "namespaceSelector": where},
        "validations": [{"expression": "object.metadata.name == 'probe'", "message": "no such pods"}],
    }
    binding = {"policyName": f"no-{api.namespace}", "validationActions": ["Deny"]}
    await api.create(head | {"kind": "ValidatingAdmissionPolicy", "spec": policy})
    await api.create(head | {"kind": "ValidatingAdmissionPolicyBinding", "spec": binding})
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"}}
    pod |= {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    await api.patch("Namespace", api.namespace, {"metadata": {"labels": {next(iter(labels)): None}}})
    async with asyncio.timeout(30):
        while True:  # a policy takes a moment to be in force
            try:
                await api.create(pod, dryRun="All")
            except api.Error as error:
                assert "no such pods" in error.message
                break
            await asyncio.sleep(0.2)
    assert await problems(client, api, roles=of_actor(SOUND)) == ()
