"""The harness itself: what the other tests of this folder stand on."""

import pytest

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "a", "labels": {"color": "red"}},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}


async def test_object_is_created_read_patched_and_deleted(api):
    created = await api.create(POD)
    assert created["metadata"]["namespace"] == api.namespace
    await api.patch("Pod", "a", {"metadata": {"labels": {"size": "1"}}})
    assert [pod["metadata"]["uid"] for pod in await api.list("Pod", labelSelector="size=1")] == [
        created["metadata"]["uid"]
    ]
    await api.delete("Pod", "a")
    with pytest.raises(api.Error) as caught:
        await api.get("Pod", "a")
    assert (caught.value.status, caught.value.reason) == (404, "NotFound")


async def test_misspelt_field_is_refused(api):
    with pytest.raises(api.Error, match=r'unknown field "spec\.nodeNam"'):
        await api.create(POD | {"spec": POD["spec"] | {"nodeNam": "n"}})


async def test_user_may_do_what_the_rules_say_and_no_more(api, make_user):
    await api.create(POD)
    reader = await make_user("reader", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}])
    assert len(await reader.list("Pod")) == 1
    with pytest.raises(api.Error) as caught:
        await reader.get("Pod", "a")
    assert caught.value.status == 403
    audit = api.server.audit(f"system:serviceaccount:{api.namespace}:reader")
    assert [(event["verb"], event["responseStatus"]["code"]) for event in audit] == [
        ("list", 200),
        ("get", 403),
    ]


async def test_kubectl_acts_in_the_namespace_of_the_test(api, kubectl):
    await api.create(POD)
    result = await kubectl("get", "pods", "-o", "name")
    assert result.stdout == "pod/a\n"


async def test_server_restarts_with_its_data_and_ends_its_processes(own_apiserver, connect):
    async with connect(own_apiserver) as api:
        await api.create(POD)
    etcd, before = own_apiserver.processes["etcd"], own_apiserver.processes["kube-apiserver"]
    own_apiserver.restart()
    async with connect(own_apiserver) as again:
        await again.request("GET", f"/api/v1/namespaces/{api.namespace}/pods/a")
    after = own_apiserver.processes["kube-apiserver"]
    own_apiserver.stop()
    assert None not in [process.poll() for process in (etcd, before, after)]
