"""The merge of pod templates, beside the API server's strategic merge patch of a Deployment's template."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from trimtab_operator.builders.merge import TEMPLATE, Fields, Items, merge_template

Manifest = dict[str, Any]

SPREAD: Manifest = {
    "maxSkew": 1,
    "topologyKey": "topology.kubernetes.io/zone",
    "whenUnsatisfiable": "ScheduleAnyway",
}

BASE: Manifest = {
    "metadata": {"labels": {"app": "x", "keep": "1"}},
    "spec": {
        "nodeSelector": {"pool": "a", "zone": "b"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "one"}],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
        "topologySpreadConstraints": [SPREAD | {"labelSelector": {"matchLabels": {"app": "x"}}}],
        "initContainers": [{"name": "first", "image": "i:1"}],
        "containers": [
            {
                "name": "trimtab",
                "image": "w:1",
                "command": ["trimtab", "agent"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "envFrom": [{"configMapRef": {"name": "one"}}],
                "ports": [{"containerPort": 7070, "name": "control"}],
                "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
                "securityContext": {"capabilities": {"drop": ["ALL"]}, "runAsUser": 7},
                "volumeMounts": [
                    {"name": "tmp", "mountPath": "/scratch"},
                    {"name": "cfg", "mountPath": "/c"},
                ],
            },
            {"name": "second", "image": "s:1"},
        ],
        "volumes": [
            {"name": "tmp", "emptyDir": {"medium": "Memory"}},
            {"name": "cfg", "configMap": {"name": "cfg"}},
        ],
    },
}


def pod(**spec: Any) -> Manifest:
    return {"spec": spec}


def main(**fields: Any) -> Manifest:
    return pod(containers=[{"name": "trimtab", **fields}])


PATCHES: dict[str, Manifest] = {
    "nothing": {},
    "labels and annotations": {"metadata": {"labels": {"keep": None, "new": "2"}, "annotations": {"a": "b"}}},
    "an image": main(image="w:2"),
    "a command": main(command=["sh", "-c", "x"], args=["y"]),
    "variables": main(env=[{"name": "C", "value": "3"}, {"name": "A", "value": "9"}]),
    "a variable less": main(env=[{"name": "A", "$patch": "delete"}]),
    "other variables": main(env=[{"$patch": "replace"}, {"name": "C", "value": "3"}]),
    "no variables": main(env=None),
    "a list without a key": main(envFrom=[{"secretRef": {"name": "two"}}]),
    "ports": main(ports=[{"containerPort": 7070, "name": "grpc"}, {"containerPort": 9090}]),
    "resources": main(resources={"limits": {"cpu": None, "memory": "2Gi"}, "requests": {"memory": "1Gi"}}),
    "a security context": main(securityContext={"runAsUser": None, "capabilities": {"add": ["CHOWN"]}}),
    "mounts": main(
        volumeMounts=[{"name": "cfg", "mountPath": "/scratch"}, {"name": "cfg", "mountPath": "/d"}]
    ),
    "a sidecar": pod(containers=[{"name": "logs", "image": "l:1"}]),
    "a container less": pod(containers=[{"name": "second", "$patch": "delete"}]),
    "init containers": pod(
        initContainers=[{"name": "more", "image": "m:1"}, {"name": "first", "image": "i:2"}]
    ),
    "a volume of another kind": pod(volumes=[{"name": "tmp", "secret": {"secretName": "s"}}]),
    "a volume of the same kind": pod(volumes=[{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}]),
    "a volume more": pod(volumes=[{"name": "data", "hostPath": {"path": "/data"}}]),
    "node selectors": pod(nodeSelector={"pool": None, "disk": "ssd"}),
    "other node selectors": pod(nodeSelector={"$patch": "replace", "disk": "ssd"}),
    "tolerations": pod(tolerations=[{"key": "other", "operator": "Exists"}]),
    "pull secrets": pod(imagePullSecrets=[{"name": "two"}]),
    "host aliases": pod(
        hostAliases=[{"ip": "10.0.0.1", "hostnames": ["b"]}, {"ip": "10.0.0.2", "hostnames": ["c"]}]
    ),
    "spread constraints": pod(
        topologySpreadConstraints=[{"topologyKey": SPREAD["topologyKey"], "maxSkew": 3}]
    ),
    "affinity": pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}),
    "scalars": pod(terminationGracePeriodSeconds=7, schedulerName="s", enableServiceLinks=False),
    "several at once": {
        "metadata": {"labels": {"x": "y"}},
        "spec": {
            "containers": [
                {"name": "logs", "image": "l:1", "env": [{"name": "A", "value": "x"}]},
                {
                    "name": "trimtab",
                    "env": [{"name": "B", "value": "b"}],
                    "volumeMounts": [{"mountPath": "/new", "name": "tmp"}],
                },
            ],
            "volumes": [{"name": "cfg", "configMap": {"name": "other"}}, {"name": "z", "emptyDir": {}}],
        },
    },
}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
async def test_merge_is_the_api_servers(api: Any, patch: Manifest) -> None:
    await api.create(deployment(BASE))
    theirs = await api.patch(
        "Deployment", "x", {"spec": {"template": as_kubectl_sends_it(patch)}}, how="strategic", dryRun="All"
    )
    await api.delete("Deployment", "x", body={"propagationPolicy": "Background"})
    ours = await api.create(deployment(merge_template(BASE, patch)), dryRun="All")
    assert in_one_order(ours["spec"]["template"]) == in_one_order(theirs["spec"]["template"])


def deployment(template: Manifest) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template},
    }


def as_kubectl_sends_it(patch: Manifest) -> Manifest:
    """kubectl says which keys of a changed volume stay, as the API server alone would keep both kinds."""
    patch = copy.deepcopy(patch)
    known = {volume["name"] for volume in BASE["spec"]["volumes"]}
    for volume in patch.get("spec", {}).get("volumes", []):
        if volume["name"] in known:
            volume["$retainKeys"] = sorted(volume)
    return patch


def in_one_order(data: Any, schema: Fields | Items | None = TEMPLATE) -> Any:
    """The template with its merged lists sorted: their order is ours (see `merge`)."""
    if isinstance(schema, Items):
        items = [in_one_order(item, schema.item) for item in data]
        return sorted(items, key=lambda item: str(item[schema.key]))
    if isinstance(data, dict):
        fields = schema.fields if schema is not None else {}
        return {name: in_one_order(value, fields.get(name)) for name, value in data.items()}
    return data


NOT_IN_A_TEMPLATE = (
    "spec.ephemeralContainers",  # refused at a pod's creation
    "metadata.finalizers",
    "metadata.ownerReferences",  # of the operator alone
    "spec.volumes.ephemeral.volumeClaimTemplate.metadata",
)


async def test_merge_keys_are_the_api_servers(api: Any) -> None:
    definitions = (await api.request("GET", "/openapi/v2"))["definitions"]
    theirs = {
        path: key
        for path, key in merge_keys(definitions, "io.k8s.api.core.v1.PodTemplateSpec")
        if not path.startswith(NOT_IN_A_TEMPLATE)
    }
    assert theirs.items() <= our_keys(TEMPLATE).items()
    assert len(theirs) >= 10


def merge_keys(
    definitions: Manifest, name: str, prefix: str = "", above: tuple[str, ...] = ()
) -> Iterator[tuple[str, str]]:
    for field, schema in definitions[name].get("properties", {}).items():
        path = f"{prefix}.{field}".lstrip(".")
        if "merge" in schema.get("x-kubernetes-patch-strategy", ""):
            yield path, schema.get("x-kubernetes-patch-merge-key", "")
        inner = schema.get("items", schema).get("$ref", "").rpartition("/")[2]
        if inner and inner not in above:
            yield from merge_keys(definitions, inner, path, (*above, inner))


def our_keys(schema: Fields, prefix: str = "") -> dict[str, str]:
    keys = {}
    for name, below in schema.fields.items():
        path = f"{prefix}.{name}".lstrip(".")
        if isinstance(below, Items):
            keys[path] = below.key
        keys |= our_keys(below.item if isinstance(below, Items) else below, path)
    return keys
