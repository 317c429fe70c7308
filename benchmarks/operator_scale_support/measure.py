"""What is measured of an operator on a fresh control plane; the same for both sides."""

import asyncio
import json
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from operator_scale_support.api import Api, Manifest, until
from operator_scale_support.processes import Process
from operator_scale_support.sides import CORE, NAMESPACE, PODS, Side, spec_bytes
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

NODES, PODS_PER_NODE = 10, 1000
MADE_WITHIN_S = 900.0
GONE_WITHIN_S = 300.0
SINGLE_WITHIN_S = 30.0
QUIET_S = 1.0
LIST_EVERY_S = 2.0
"""Between lists of all jobs, which are work for the API server too."""


async def prepare(api: Api, side: Side) -> None:
    """Nodes whose kubelet KWOK plays, the CRDs and the namespace."""
    await api.create_all("/api/v1/nodes", map(_node, range(NODES)))
    await api.apply_files(side.crds)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await api.call("POST", "/api/v1/namespaces", body=namespace)

    async def ready() -> bool:
        nodes = await api.items("/api/v1/nodes")
        conditions = [item for node in nodes for item in node["status"].get("conditions") or ()]
        num_ready = sum(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
        account = f"{CORE}/serviceaccounts", f"{CORE}/configmaps"
        return num_ready == NODES and all([await api.count(path) for path in account])

    await until(ready, "the nodes ready", within_s=60.0)


async def account(api: Api, kubeconfig: Path) -> Path:
    """A kubeconfig for the operator: with the token of a service account, as it has in a cluster."""
    name = {"name": "operator", "namespace": NAMESPACE}
    await api.call("POST", f"{CORE}/serviceaccounts", body={"metadata": name})
    binding = {
        "metadata": {"name": "operator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", **name}],
    }
    await api.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body=binding)
    path = f"{CORE}/serviceaccounts/operator/token"
    answer = await api.call("POST", path, body={"spec": {"expirationSeconds": 7200}})
    return _with_token(kubeconfig, answer["status"]["token"])


def _with_token(kubeconfig: Path, token: str) -> Path:
    config = YAML(typ="safe").load(kubeconfig.read_text(encoding="utf-8"))
    context = next(each for each in config["contexts"] if each["name"] == config["current-context"])
    context["context"]["user"] = "operator"
    config["users"] = [{"name": "operator", "user": {"token": token}}]
    made = kubeconfig.with_name("operator.kubeconfig")
    made.write_text(json.dumps(config), encoding="utf-8")
    return made


def _node(number: int) -> Manifest:
    """Its pods' addresses are this machine's own, so that whoever plays a pod can listen there."""
    network = f"127.{100 + number}.0.0/16"
    sizes = {"cpu": "1000", "memory": "4Ti", "pods": str(PODS_PER_NODE)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": f"node-{number}",
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": f"node-{number}", "type": "kwok"},
        },
        "spec": {"podCIDR": network, "podCIDRs": [network]},
        "status": {"capacity": sizes, "allocatable": sizes},
    }


async def latency(api: Api, side: Side, operator: Process, count: int) -> dict[str, Any]:
    """Seconds from the apply of a single job until all its pods are created, one job after the other."""
    seconds = []
    for number in range(count):
        operator.check()
        added = api.added(f"{CORE}/pods")
        async with asyncio.timeout(SINGLE_WITHIN_S):
            await anext(added)
            begun = time.monotonic()
            await api.text("POST", side.path, body=side.make(f"single-{number:02}"))
            await _pods_of(added, side, f"single-{number:02}")
            seconds.append(time.monotonic() - begun)
        await added.aclose()  # type: ignore[attr-defined]
        await asyncio.sleep(QUIET_S)
    return {"median_s": statistics.median(seconds), "seconds": [round(each, 3) for each in seconds]}


async def _pods_of(added: AsyncIterator[Manifest], side: Side, name: str) -> None:
    missing = PODS
    while missing:
        pod = await anext(added)
        missing -= pod["metadata"].get("labels", {}).get(side.label) == name


async def burst(api: Api, side: Side, operator: Process, count: int) -> dict[str, Any]:
    """Seconds until everything of `count` jobs that are applied at once is there, from the first request."""
    before = await counts(api, side)
    asked = await requests(api)
    cpu_s, begun = operator.cpu_s(), time.monotonic()
    await api.create_all(side.path, (side.make(_name(number)) for number in range(count)))
    found: dict[str, Any] = {"jobs": count, "applied_s": time.monotonic() - begun}
    pods = f"{CORE}/pods"
    wanted = {path: before[path] + count * each for path, each in side.children.items()}

    async def pods_there() -> bool:
        operator.check()
        return await api.count(pods) >= wanted[pods]

    async def all_there() -> bool:
        return all([await api.count(path) >= number for path, number in wanted.items()])

    async def told() -> bool:
        return all(map(side.told, await api.items(side.path)))

    async def up() -> bool:
        return all(map(side.up, await api.items(side.path)))

    found["pods_s"] = await until(pods_there, f"{side.name}: all pods", within_s=MADE_WITHIN_S) - begun
    found["children_s"] = await until(all_there, f"{side.name}: every child", within_s=MADE_WITHIN_S) - begun
    found["told_s"] = (
        await until(told, f"{side.name}: every status complete", within_s=MADE_WITHIN_S, every_s=LIST_EVERY_S)
        - begun
    )
    found["cpu_s"] = operator.cpu_s() - cpu_s
    found["running_s"] = (
        await until(up, f"{side.name}: all pods run", within_s=MADE_WITHIN_S, every_s=LIST_EVERY_S) - begun
    )
    found["requests_per_job"] = more(asked, await requests(api), count)
    over = {path: number for path, number in (await counts(api, side)).items() if number > wanted[path]}
    if over:
        raise RuntimeError(f"{side.name} made more than was asked for: {over} instead of {wanted}")
    return found


def _name(number: int) -> str:
    return f"job-{number:04}"


async def counts(api: Api, side: Side) -> dict[str, int]:
    """How many objects there are of each kind that the side makes."""
    return {path: await api.count(path) for path in side.children}


async def pod_bytes(api: Api) -> dict[str, float]:
    """Mean length of the pods that are there, as JSON without what the server notes for itself."""
    pods = (await api.call("GET", f"{CORE}/pods", params={"limit": str(10 * PODS)}))["items"]
    return {"spec_bytes": statistics.mean(map(spec_bytes, pods)), "pods": len(pods)}


async def remove_all(api: Api, side: Side, before: dict[str, int]) -> None:
    """Delete all jobs, and wait until what belonged to them is gone."""
    await api.text("DELETE", side.path, params={"propagationPolicy": "Background"})

    async def gone() -> bool:
        return await counts(api, side) == before and await api.count(side.path) == 0

    await until(gone, f"{side.name}: what the deleted jobs had", within_s=GONE_WITHIN_S, every_s=1.0)


async def requests(api: Api) -> dict[str, float]:
    """Requests that the API server has answered so far, by its own count: `PUT pods/status` and the like."""
    total: Counter[str] = Counter()
    for family in text_string_to_metric_families(await api.text("GET", "/metrics")):
        if family.name != "apiserver_request":
            continue
        for sample in family.samples:
            labels = sample.labels
            what = "/".join(filter(None, (labels["resource"], labels["subresource"])))
            total[f"{labels['verb']} {what}"] += sample.value
    return dict(total)


def more(before: dict[str, float], after: dict[str, float], jobs: int) -> dict[str, float]:
    """What a job cost in requests of every kind of which there were some."""
    each = {name: (number - before.get(name, 0)) / jobs for name, number in after.items()}
    kept = {name: round(number, 2) for name, number in each.items() if number >= 0.05}
    return dict(sorted(kept.items(), key=lambda item: -item[1]))
