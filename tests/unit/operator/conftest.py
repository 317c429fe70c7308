"""A peer for the Kubernetes client: a real HTTP server whose answers the test gives."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from trimtab_operator.kube.client import Client
from trimtab_operator.kube.config import ClusterConfig

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[ClusterConfig]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """`config = await serve(handler)`: every request is answered by the handler."""
    servers: list[TestServer] = []

    async def start(handler: Handler) -> ClusterConfig:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
        return ClusterConfig(server=str(server.make_url("")).rstrip("/"), namespace="default")

    yield start
    for server in servers:
        await server.close()


@pytest.fixture
async def connect(serve: Serve) -> AsyncIterator[Callable[[Handler], Awaitable[Client]]]:
    """`client = await connect(handler)`: a client of such a server."""
    clients: list[Client] = []

    async def start(handler: Handler) -> Client:
        clients.append(Client(await serve(handler)))
        return clients[-1]

    yield start
    for client in clients:
        await client.close()
