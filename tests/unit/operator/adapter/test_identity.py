import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from trimtab.errors import UserError
from trimtab_operator.adapter.identity import master_key
from trimtab_operator.kube.client import Client

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Connect = Callable[[Handler], Awaitable[Client]]


class SecretServer:
    """Takes one Secret, by POST alone."""

    def __init__(self) -> None:
        self.secret: dict[str, Any] | None = None

    async def answer(self, request: web.Request) -> web.Response:
        assert request.method == "POST", "the operator has no right to read Secrets"
        if self.secret is not None:
            return web.json_response({"code": 409, "reason": "AlreadyExists"}, status=409)
        self.secret = await request.json()
        return web.json_response(self.secret, status=201)


async def _key(client: Client, folder: Path, sleep: Callable[[float], Awaitable[None]]) -> bytes:
    key = await master_key(client, folder=folder, namespace="ns", secret="identity", sleep=sleep)  # noqa: S106 -- a name
    return key.secret


async def _no_sleep(_: float) -> None:
    raise AssertionError("nothing to wait for")


async def test_first_leader_makes_the_secret_and_uses_its_key(connect: Connect, tmp_path: Path) -> None:
    server = SecretServer()
    secret = await _key(await connect(server.answer), tmp_path, _no_sleep)
    assert server.secret is not None
    assert base64.b64decode(server.secret["data"]["master.key"]) == secret
    assert server.secret["immutable"] is True
    assert server.secret["metadata"]["name"] == "identity"


async def test_key_that_is_mounted_is_used_and_nothing_made(connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "master.key").write_bytes(b"k" * 32)
    server = SecretServer()
    assert await _key(await connect(server.answer), tmp_path, _no_sleep) == b"k" * 32
    assert server.secret is None


async def test_key_of_another_leader_is_waited_for(connect: Connect, tmp_path: Path) -> None:
    server = SecretServer()
    server.secret = {}

    async def kubelet(_: float) -> None:
        (tmp_path / "master.key").write_bytes(b"o" * 32)

    assert await _key(await connect(server.answer), tmp_path, kubelet) == b"o" * 32


async def test_secret_that_is_never_mounted_is_named(connect: Connect, tmp_path: Path) -> None:
    server = SecretServer()
    server.secret = {}
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    with pytest.raises(UserError, match=r"the Secret ns/identity is there, but .*master.key is not"):
        await _key(await connect(server.answer), tmp_path, sleep)
    assert sum(waits) >= 180
