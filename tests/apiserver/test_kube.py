"""The operator's client and election against a real API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from trimtab_operator.kube.client import Client
from trimtab_operator.kube.config import load_config
from trimtab_operator.kube.election import Election, LeaseLostError
from trimtab_operator.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    RefusedError,
)
from trimtab_operator.kube.resources import CONFIG_MAPS, JOBS, LEASES, PODS, SERVICES


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }


def service(name: str, **selector: str) -> dict[str, Any]:
    spec = {"clusterIP": "None", "selector": selector}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
async def client_of() -> AsyncIterator[Callable[[Any], Client]]:
    """The operator's client for a user of the harness, by way of a kubeconfig."""
    clients: list[Client] = []

    def make(user: Any) -> Client:
        path = user.server.kubeconfig(token=user.token, namespace=user.namespace)
        clients.append(Client(load_config(str(path), environ={})))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


@pytest.fixture
def client(api: Any, client_of: Callable[[Any], Client]) -> Client:
    return client_of(api)


async def test_object_is_created_read_changed_and_deleted_by_its_uid(client: Client, api: Any) -> None:
    made = await client.create(CONFIG_MAPS, api.namespace, config_map("a", x="1"))
    with pytest.raises(AlreadyExistsError):
        await client.create(CONFIG_MAPS, api.namespace, config_map("a"))
    merged = await client.merge(CONFIG_MAPS, api.namespace, "a", {"data": {"y": "2"}})
    assert merged["data"] == {"x": "1", "y": "2"}
    with pytest.raises(ConflictError):
        await client.replace(CONFIG_MAPS, api.namespace, made)
    with pytest.raises(ConflictError):
        await client.delete(CONFIG_MAPS, api.namespace, "a", uid="00000000-0000-0000-0000-000000000000")
    await client.delete(CONFIG_MAPS, api.namespace, "a", uid=made["metadata"]["uid"])
    with pytest.raises(NotFoundError):
        await client.get(CONFIG_MAPS, api.namespace, "a")


async def test_misspelt_field_is_refused(client: Client, api: Any) -> None:
    with pytest.raises(RefusedError, match="dta"):
        await client.create(CONFIG_MAPS, api.namespace, config_map("a") | {"dta": {}})


async def test_quota_refuses_and_rbac_forbids(
    client: Client, api: Any, make_user: Any, client_of: Callable[[Any], Client]
) -> None:
    await api.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none"},
            "spec": {"hard": {"pods": "0"}},
        }
    )
    # The quota controller, which is not here, would write what is used.
    await api.patch(
        "ResourceQuota",
        "none",
        {"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}},
        subresource="status",
    )
    reader = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    creator = reader | {"verbs": ["create"]}
    with pytest.raises(RefusedError, match="exceeded quota"):
        await client_of(await make_user("creator", [creator])).create(PODS, api.namespace, pod("a"))
    with pytest.raises(ForbiddenError, match="cannot create resource"):
        await client_of(await make_user("reader", [reader])).create(PODS, api.namespace, pod("a"))


async def test_apply_changes_its_own_object_and_leaves_that_of_somebody_else(
    client: Client, api: Any
) -> None:
    await client.apply(SERVICES, api.namespace, service("ours", app="one"))
    changed = await client.apply(SERVICES, api.namespace, service("ours", app="two"))
    assert changed["spec"]["selector"] == {"app": "two"}
    again = await client.apply(SERVICES, api.namespace, service("ours", app="two"))
    assert again["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"], "no write"
    await api.create(service("theirs", app="web"))
    with pytest.raises(ConflictError):
        await client.apply(SERVICES, api.namespace, service("theirs", app="job"))
    assert (await api.get("Service", "theirs"))["spec"]["selector"] == {"app": "web"}


async def test_status_of_a_job_is_replaced_whole_with_its_version(client: Client, crd: Any) -> None:
    made = await client.create(JOBS, crd.namespace, minimal_job("j"))
    head = {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {
            name: made["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")
        },
    }
    written = await client.replace(
        JOBS, crd.namespace, head | {"status": {"phase": "Pending", "attempt": 7}}, subresource="status"
    )
    assert written["status"]["attempt"] == 7
    assert written["spec"] == made["spec"]
    assert written["metadata"]["generation"] == made["metadata"]["generation"]
    with pytest.raises(ConflictError):
        await client.replace(JOBS, crd.namespace, head | {"status": {}}, subresource="status")
    with pytest.raises(RefusedError, match="fase"):
        await client.replace(
            JOBS,
            crd.namespace,
            head | {"metadata": written["metadata"], "status": {"fase": "x"}},
            subresource="status",
        )


async def test_list_comes_in_pages_and_by_label(client: Client, api: Any) -> None:
    for number in range(5):
        await api.create(pod(f"p{number}", mine="yes"))
    await api.create(pod("other"))
    pages = [page async for page in client.pages(PODS, api.namespace, label_selector="mine=yes", page_size=2)]
    assert [len(page.items) for page in pages] == [2, 2, 1]
    assert len({page.resource_version for page in pages}) == 1


async def test_list_of_metadata_has_no_spec(client: Client, api: Any) -> None:
    await api.create(pod("p"))
    pages = [page async for page in client.pages(PODS, api.namespace, metadata_only=True)]
    (item,) = pages[0].items
    assert item["metadata"]["name"] == "p"
    assert "spec" not in item


async def test_watch_tells_what_happens_after_a_version(client: Client, api: Any) -> None:
    pages = [page async for page in client.pages(CONFIG_MAPS, api.namespace)]
    mine = config_map("mine")
    mine["metadata"]["labels"] = {"mine": "yes"}
    await api.create(mine)
    await api.create(config_map("other"))
    await api.patch("ConfigMap", "mine", {"data": {"a": "b"}})
    await api.delete("ConfigMap", "mine")
    seen = []
    watch = client.watch(
        CONFIG_MAPS, api.namespace, since=pages[-1].resource_version, label_selector="mine=yes"
    )
    async with asyncio.timeout(20), contextlib.aclosing(watch):
        async for event in watch:
            seen.append((event.type, event.object["metadata"]["name"]))
            if event.type == "DELETED":
                break
    assert seen == [("ADDED", "mine"), ("MODIFIED", "mine"), ("DELETED", "mine")]


async def test_one_of_two_candidates_leads_and_the_other_takes_over(
    api: Any, client_of: Callable[[Any], Client]
) -> None:
    one, two = (
        Election(client_of(api), namespace=api.namespace, name="lease", identity=name)
        for name in ("one", "two")
    )
    await one.acquire()
    waiting = asyncio.create_task(two.acquire())
    holding = asyncio.create_task(one.hold())
    await asyncio.sleep(5)
    assert one.leading
    assert not waiting.done()
    lease = await api.get("Lease", "lease")
    assert lease["spec"]["holderIdentity"] == "one"
    holding.cancel()
    await one.release()
    async with asyncio.timeout(6):
        await waiting
    assert two.leading
    assert (await api.get("Lease", "lease"))["spec"]["leaseTransitions"] == 1


async def test_lease_that_is_taken_by_hand_ends_the_leader(api: Any, client: Client) -> None:
    one = Election(client, namespace=api.namespace, name="lease", identity="one")
    await one.acquire()
    await api.patch("Lease", "lease", {"spec": {"holderIdentity": "two"}})
    with pytest.raises(LeaseLostError, match="two took the lease"):
        async with asyncio.timeout(10):
            await one.hold()


async def test_restart_of_the_api_server_is_survived_by_the_leader_and_its_client(
    own_apiserver: Any, connect: Any, client_of: Callable[[Any], Client]
) -> None:
    async with connect(own_apiserver) as api:
        client = client_of(api)
        one = Election(client_of(api), namespace=api.namespace, name="lease", identity="one")
        await one.acquire()
        holding = asyncio.create_task(one.hold())
        await asyncio.to_thread(own_apiserver.restart)
        async with asyncio.timeout(30):
            while True:
                try:
                    await client.get(LEASES, api.namespace, "lease")
                except KubeError:
                    await asyncio.sleep(0.1)
                else:
                    break
        await asyncio.sleep(3)
        assert one.leading, "restarted within the lease"
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)


def minimal_job(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "trimtab.dev/v1alpha1",
        "kind": "RLTrainingJob",
        "metadata": {"name": name},
        "spec": {
            "model": {"path": "/models/tiny"},
            "data": {"train": {"path": "/data/train.jsonl"}, "maxPromptTokens": 64},
            "algorithm": {"grpo": {"groupSize": 4}},
            "training": {"steps": 4, "promptsPerStep": 4, "miniBatchPrompts": 4, "maxResponseTokens": 32},
            "rewards": [{"function": "exact_match"}],
            "storage": {"claim": {"size": "1Gi"}},
        },
    }
