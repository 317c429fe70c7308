"""Calls to the API server: one method a verb, each with a deadline and with typed errors.

One `Client` is one connection pool with a bound on the calls under way; the election has one of its own,
so that renewing the lease never queues behind the pods of a thousand jobs. Runs on the operator's loop.
Nothing is retried here but a 429, which the server did not execute: what failed goes back to the queue.

A write first calls `guard`, which raises where this process no longer knows that it leads: after a long
stall the first thing that it does is not to write.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import aiohttp

from trimtab_operator.constants import MANAGER
from trimtab_operator.kube.config import ClusterConfig
from trimtab_operator.kube.errors import (
    ApiError,
    ForbiddenError,
    GoneError,
    JsonObject,
    KubeError,
    RefusedError,
    TooManyRequestsError,
    TransportError,
    from_status,
)
from trimtab_operator.kube.resources import ACCESS_REVIEWS, Resource

REQUEST_TIMEOUT_S: Final = 15.0
CONNECT_TIMEOUT_S: Final = 5.0
WATCH_S: Final = 290.0
"""The server is asked to end a watch after this; it is taken up again where it ended."""
WATCH_SILENCE_S: Final = 90.0
"""A watch that says nothing for this long is dead: bookmarks come about every minute."""
PAGE_SIZE: Final = 500
MAX_IN_FLIGHT: Final = 64
BUSY_ATTEMPTS: Final = 4
BUSY_PAUSE_S: Final = 1.0
MAX_BUSY_PAUSE_S: Final = 10.0
USER_AGENT: Final = "trimtab-operator"

_JSON: Final = "application/json"
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call that has ended, for metrics."""

    verb: str
    """As RBAC names it."""
    resource: Resource
    subresource: str
    code: int
    """0: no answer."""
    seconds: float


@dataclass(frozen=True)
class Page:
    """Part of a list."""

    items: list[JsonObject]
    resource_version: str
    """Of the whole list: where a watch goes on."""


@dataclass(frozen=True)
class WatchEvent:
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: JsonObject


def open_session(config: ClusterConfig) -> aiohttp.ClientSession:
    """A session that authenticates each request with the token of that moment.

    It has as many connections as are needed: calls are bounded by the client, and watches, one for each
    namespace that is served, must not wait for one another.
    """

    async def authenticate(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if config.token is not None:
            request.headers["Authorization"] = f"Bearer {config.token()}"
        return await handler(request)

    connector = (
        aiohttp.TCPConnector(limit=0, ssl=config.tls)
        if config.tls is not None
        else aiohttp.TCPConnector(limit=0)
    )
    return aiohttp.ClientSession(
        connector=connector,
        middlewares=(authenticate,),
        headers={"User-Agent": USER_AGENT},
        trust_env=False,
    )


class Client:
    """The API server as this operator uses it. Close it at the end."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        guard: Callable[[], None] = lambda: None,
        observe: Callable[[Call], None] = lambda call: None,
    ) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(max_in_flight)
        self._guard = guard
        self._observe = observe

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
        """Read an object."""
        return await self._call("get", "GET", resource, namespace, name)

    async def create(
        self, resource: Resource, namespace: str, manifest: JsonObject, *, dry_run: bool = False
    ) -> JsonObject:
        """POST an object. RefusedError, not ForbiddenError, where admission is the reason.

        `dry_run`: everything is checked, and nothing made.
        """
        params = _STRICT | {"dryRun": "All"} if dry_run else _STRICT
        try:
            return await self._call(
                "create", "POST", resource, namespace, body=manifest, params=params, write=True
            )
        except ForbiddenError as error:
            if error.code == HTTPStatus.FORBIDDEN and await self.may("create", resource, namespace):
                raise RefusedError(str(error), code=error.code, reason=error.reason) from error
            raise

    async def apply(
        self, resource: Resource, namespace: str, manifest: JsonObject, *, force: bool = False
    ) -> JsonObject:
        """Server-side apply. Without force, a field that somebody else has set differently is a conflict."""
        return await self._call(
            "patch",
            "PATCH",
            resource,
            namespace,
            manifest["metadata"]["name"],
            body=manifest,
            content_type=_APPLY,
            params={**_STRICT, "fieldManager": MANAGER, "force": str(force).lower()},
            write=True,
        )

    async def replace(
        self, resource: Resource, namespace: str, manifest: JsonObject, *, subresource: str = ""
    ) -> JsonObject:
        """PUT an object, or its subresource; its resourceVersion and uid are preconditions."""
        return await self._call(
            "update",
            "PUT",
            resource,
            namespace,
            manifest["metadata"]["name"],
            subresource=subresource,
            body=manifest,
            params=_STRICT,
            write=True,
        )

    async def merge(self, resource: Resource, namespace: str, name: str, changes: JsonObject) -> JsonObject:
        """PATCH an object with the members that change."""
        return await self._call(
            "patch",
            "PATCH",
            resource,
            namespace,
            name,
            body=changes,
            content_type=_MERGE,
            params=_STRICT,
            write=True,
        )

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_s: int | None = None
    ) -> JsonObject:
        """Delete that very object; what it owns goes in the background."""
        options: JsonObject = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        return await self._call("delete", "DELETE", resource, namespace, name, body=options, write=True)

    async def may(self, verb: str, resource: Resource, namespace: str) -> bool:
        """Whether RBAC lets the operator do that; True where the server does not tell."""
        review = {
            "apiVersion": ACCESS_REVIEWS.api_version,
            "kind": ACCESS_REVIEWS.kind,
            "spec": {
                "resourceAttributes": {
                    "namespace": namespace,
                    "verb": verb,
                    "group": resource.group,
                    "resource": resource.plural,
                }
            },
        }
        try:
            answer = await self._call("create", "POST", ACCESS_REVIEWS, None, body=review)
        except KubeError:
            return True
        return bool(answer.get("status", {}).get("allowed"))

    async def pages(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        label_selector: str = "",
        metadata_only: bool = False,
        page_size: int = PAGE_SIZE,
    ) -> AsyncIterator[Page]:
        """List in pages, so that no more than one is held; GoneError where it took too long.

        `metadata_only`: objects without spec and status, from the server's own cache.
        """
        params = {"limit": str(page_size)}
        if label_selector:
            params["labelSelector"] = label_selector
        accept = _JSON
        if metadata_only:
            accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
        while True:
            answer = await self._call("list", "GET", resource, namespace, params=params, accept=accept)
            metadata = answer.get("metadata", {})
            yield Page(answer.get("items") or [], str(metadata.get("resourceVersion", "")))
            if not metadata.get("continue"):
                return
            params["continue"] = metadata["continue"]

    async def watch(
        self, resource: Resource, namespace: str | None, *, since: str, label_selector: str = ""
    ) -> AsyncIterator[WatchEvent]:
        """Changes after a resourceVersion, bookmarks among them, until the server ends the watch.

        GoneError: list again. TransportError: nothing was heard for `WATCH_SILENCE_S`, or it broke.
        """
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(int(WATCH_S)),
        }
        if label_selector:
            params["labelSelector"] = label_selector
        url = self._config.server + resource.path(namespace)
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=WATCH_SILENCE_S)
        begun = time.monotonic()
        try:
            async with self._http.get(url, params=params, timeout=timeout) as response:
                self._count("watch", resource, "", response.status, begun)
                if response.status != HTTPStatus.OK:
                    raise _error(response, await response.read())
                try:
                    async for line in _lines(response.content):
                        yield _watch_event(line)
                finally:
                    _abort(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._count("watch", resource, "", 0, begun)
            raise TransportError(f"watch of {resource.plural}: {_words(error)}") from error

    async def _call(
        self,
        verb: str,
        method: str,
        resource: Resource,
        namespace: str | None,
        name: str = "",
        *,
        subresource: str = "",
        body: JsonObject | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        params: Mapping[str, str] | None = None,
        write: bool = False,
    ) -> JsonObject:
        url = self._config.server + resource.path(namespace, name, subresource)
        headers = {"Accept": accept, "Content-Type": content_type}
        data = None if body is None else json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
        for attempt in range(1, BUSY_ATTEMPTS + 1):
            async with self._slots:
                if write:
                    self._guard()
                begun = time.monotonic()
                code = 0
                try:
                    async with self._http.request(
                        method, url, data=data, headers=headers, params=params, timeout=_TIMEOUT
                    ) as response:
                        content = await response.read()
                        code = response.status
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    raise TransportError(f"{verb} {resource.plural} {name}: {_words(error)}") from error
                finally:
                    self._count(verb, resource, subresource, code, begun)
            if code < HTTPStatus.BAD_REQUEST:
                return _object(content)
            failure = _error(response, content)
            if not isinstance(failure, TooManyRequestsError) or attempt == BUSY_ATTEMPTS:
                raise failure
            asked_s = BUSY_PAUSE_S if failure.retry_after_s is None else failure.retry_after_s
            await asyncio.sleep(min(asked_s, MAX_BUSY_PAUSE_S))
        raise AssertionError("the loop returns or raises")

    @property
    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session(self._config)
        return self._session

    def _count(self, verb: str, resource: Resource, subresource: str, code: int, begun: float) -> None:
        seconds = time.monotonic() - begun
        self._observe(Call(verb=verb, resource=resource, subresource=subresource, code=code, seconds=seconds))


_STRICT: Final = {"fieldValidation": "Strict"}
_TIMEOUT: Final = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a stream, of any length."""
    rest = bytearray()
    async for chunk in stream.iter_any():
        rest += chunk
        *whole, last = rest.split(b"\n")
        for line in whole:
            if line:
                yield bytes(line)
        rest = last


def _abort(response: aiohttp.ClientResponse) -> None:
    """Cut an answer that is not at its end: TLS would say goodbye and wait for one that goes on talking."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()


def _watch_event(line: bytes) -> WatchEvent:
    event = _object(line)
    body = event.get("object") or {}
    if event.get("type") != "ERROR":
        return WatchEvent(str(event.get("type")), body)
    failure = from_status(int(body.get("code") or HTTPStatus.INTERNAL_SERVER_ERROR), body)
    raise GoneError(str(failure), code=HTTPStatus.GONE) if failure.reason == "Expired" else failure


def _error(response: aiohttp.ClientResponse, content: bytes) -> ApiError:
    retry_after = response.headers.get("Retry-After", "")
    try:
        body: Any = json.loads(content)
    except ValueError:
        body = content.decode("utf-8", "replace").strip()
    return from_status(
        response.status, body, retry_after_s=float(retry_after) if retry_after.isdigit() else None
    )


def _object(content: bytes) -> JsonObject:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise TransportError("the API server's answer is no JSON") from error
    if not isinstance(value, dict):
        raise TransportError("the API server's answer is no JSON object")
    return value


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
