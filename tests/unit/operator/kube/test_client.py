import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from trimtab_operator.kube.client import Call, Client
from trimtab_operator.kube.config import ClusterConfig
from trimtab_operator.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    GoneError,
    KubeError,
    NotFoundError,
    NotLeadingError,
    RefusedError,
    TooManyRequestsError,
    TransportError,
)
from trimtab_operator.kube.resources import JOBS, LEASES, PODS, resource_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Connect = Callable[[Handler], Awaitable[Client]]
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}


def _status(code: int, reason: str = "", message: str = "no") -> web.Response:
    return web.json_response(
        {"kind": "Status", "code": code, "reason": reason, "message": message}, status=code
    )


def test_paths_are_those_of_the_api() -> None:
    assert PODS.path(None) == "/api/v1/pods"
    assert PODS.path("a", "b") == "/api/v1/namespaces/a/pods/b"
    assert JOBS.path("a", "b", "status") == "/apis/trimtab.dev/v1alpha1/namespaces/a/rltrainingjobs/b/status"
    assert resource_of({"apiVersion": "v1", "kind": "Pod"}) == PODS


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (404, "NotFound", NotFoundError),
        (409, "Conflict", ConflictError),
        (409, "AlreadyExists", AlreadyExistsError),
        (410, "Expired", GoneError),
        (401, "Unauthorized", ForbiddenError),
        (422, "Invalid", RefusedError),
        (500, "InternalError", ApiError),
    ],
    ids=["not found", "conflict", "exists", "gone", "not logged in", "invalid", "server error"],
)
async def test_errors_have_a_type_by_their_code(
    connect: Connect, code: int, reason: str, kind: type[KubeError]
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return _status(code, reason, "because")

    client = await connect(answer)
    with pytest.raises(ApiError, match="because") as caught:
        await client.get(PODS, "default", "a")
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("allowed", "kind"),
    [(True, RefusedError), (False, ForbiddenError)],
    ids=["admission refuses", "RBAC forbids"],
)
async def test_create_that_is_forbidden_is_told_apart_by_the_right_to_create(
    connect: Connect, allowed: bool, kind: type[KubeError]
) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path.endswith("/selfsubjectaccessreviews"):
            asked = (await request.json())["spec"]["resourceAttributes"]
            assert asked == {"namespace": "default", "verb": "create", "group": "", "resource": "pods"}
            return web.json_response({"status": {"allowed": allowed}}, status=201)
        return _status(403, "Forbidden", "exceeded quota")

    client = await connect(answer)
    with pytest.raises(ApiError, match="exceeded quota") as caught:
        await client.create(PODS, "default", POD)
    assert type(caught.value) is kind


async def test_busy_server_is_asked_again_after_the_time_it_names(connect: Connect) -> None:
    answers = [_status(429), web.json_response(POD, status=201)]
    answers[0].headers["Retry-After"] = "0"
    bodies = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return answers.pop(0)

    assert await (await connect(answer)).create(PODS, "default", POD) == POD
    assert bodies == [POD, POD]


async def test_server_that_stays_busy_is_given_up(connect: Connect) -> None:
    async def answer(_: web.Request) -> web.Response:
        response = _status(429)
        response.headers["Retry-After"] = "0"
        return response

    with pytest.raises(TooManyRequestsError):
        await (await connect(answer)).get(PODS, "default", "a")


async def test_no_answer_is_a_transport_error_and_is_counted() -> None:
    calls: list[Call] = []
    config = ClusterConfig(server="http://127.0.0.1:1", namespace="default")
    client = Client(config, observe=calls.append)
    with pytest.raises(TransportError, match="get pods a"):
        await client.get(PODS, "default", "a")
    await client.close()
    assert [(call.verb, call.resource, call.code) for call in calls] == [("get", PODS, 0)]


async def test_answer_that_is_no_json_is_a_transport_error(connect: Connect) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="<html>")

    with pytest.raises(TransportError, match="no JSON"):
        await (await connect(answer)).get(PODS, "default", "a")


async def test_guard_holds_back_writes_and_no_reads(serve: Any) -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.method)
        return web.json_response(POD)

    def guard() -> None:
        raise NotLeadingError("no")

    client = Client(await serve(answer), guard=guard)
    for write in (
        client.create(PODS, "default", POD),
        client.apply(PODS, "default", POD),
        client.replace(PODS, "default", POD),
        client.merge(PODS, "default", "a", {}),
        client.delete(PODS, "default", "a", uid="1"),
    ):
        with pytest.raises(NotLeadingError):
            await write
    await client.get(PODS, "default", "a")
    await client.close()
    assert seen == ["GET"]


async def test_writes_say_what_the_server_has_to_check(connect: Connect) -> None:
    seen: dict[str, tuple[str, str, Any]] = {}

    async def answer(request: web.Request) -> web.Response:
        seen[request.method] = (request.query_string, request.content_type, await request.json())
        return web.json_response(POD)

    client = await connect(answer)
    await client.create(PODS, "default", POD)
    await client.apply(PODS, "default", POD)
    await client.delete(PODS, "default", "a", uid="1", grace_s=0)
    assert seen["POST"] == ("fieldValidation=Strict", "application/json", POD)
    query, kind, _ = seen["PATCH"]
    assert kind == "application/apply-patch+yaml"
    assert query == "fieldValidation=Strict&fieldManager=trimtab.dev/operator&force=false"
    options = seen["DELETE"][2]
    assert options["preconditions"] == {"uid": "1"}
    assert options["gracePeriodSeconds"] == 0


async def test_token_of_the_moment_goes_with_each_request(serve: Any) -> None:
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response(POD)

    config = await serve(answer)
    tokens = iter(["one", "two"])
    client = Client(ClusterConfig(server=config.server, namespace="x", token=lambda: next(tokens)))
    await client.get(PODS, "default", "a")
    await client.get(PODS, "default", "a")
    await client.close()
    assert seen == ["Bearer one", "Bearer two"]


async def test_list_goes_on_with_the_token_of_the_page_before(connect: Connect) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.query.get("continue") == "next":
            return web.json_response({"metadata": {"resourceVersion": "7"}, "items": [{"n": 2}]})
        assert request.query["limit"] == "1"
        return web.json_response(
            {"metadata": {"resourceVersion": "7", "continue": "next"}, "items": [{"n": 1}]}
        )

    client = await connect(answer)
    pages = [page async for page in client.pages(PODS, None, page_size=1)]
    assert [page.items for page in pages] == [[{"n": 1}], [{"n": 2}]]
    assert pages[-1].resource_version == "7"


def _watching(lines: list[bytes]) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.query["watch"] == "true"
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write(line)
            await asyncio.sleep(0)
        return response

    return answer


async def test_watch_puts_lines_together_from_whatever_arrives(connect: Connect) -> None:
    large = "x" * 300_000
    text = b"".join(
        json.dumps({"type": kind, "object": {"text": kind + large}}).encode() + b"\n"
        for kind in ("ADDED", "BOOKMARK")
    )
    client = await connect(_watching([text[:10], text[10:300_100], text[300_100:]]))
    events = [event async for event in client.watch(PODS, None, since="1")]
    assert [event.type for event in events] == ["ADDED", "BOOKMARK"]
    assert events[1].object == {"text": "BOOKMARK" + large}


@pytest.mark.parametrize(
    ("status", "kind"),
    [({"code": 410, "reason": "Expired"}, GoneError), ({"code": 500, "reason": "InternalError"}, ApiError)],
    ids=["too old", "server error"],
)
async def test_watch_that_fails_in_its_stream_raises_what_a_call_would(
    connect: Connect, status: dict[str, Any], kind: type[ApiError]
) -> None:
    line = json.dumps({"type": "ERROR", "object": {"kind": "Status", **status}}).encode() + b"\n"
    client = await connect(_watching([line]))
    with pytest.raises(ApiError) as caught:
        [event async for event in client.watch(PODS, None, since="1")]
    assert type(caught.value) is kind


async def test_watches_of_many_namespaces_leave_room_for_calls(serve: Any) -> None:
    over = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response(POD)
        response = web.StreamResponse()
        await response.prepare(request)
        await over.wait()
        return response

    client = Client(await serve(answer))

    async def watch(namespace: str) -> None:
        async for _ in client.watch(PODS, namespace, since="1"):
            pass

    watches = [asyncio.create_task(watch(f"team-{n}")) for n in range(60)]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        assert await client.get(PODS, "team-1", "a") == POD
    over.set()
    await asyncio.gather(*watches)
    await client.close()


async def test_calls_under_way_are_bounded(serve: Any) -> None:
    under_way, most = 0, 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return web.json_response(POD)

    client = Client(await serve(answer), max_in_flight=3)
    await asyncio.gather(*(client.get(LEASES, "default", str(n)) for n in range(12)))
    await client.close()
    assert most == 3
