"""A Kubernetes API server as the benchmark sees it: JSON over one session, cheap counts, watches.

Looking must cost little, since it runs beside what is measured: objects are counted by a list of one item,
and read in full only once the counts are right.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp
from ruamel.yaml import YAML

from trimtab_operator.kube.client import open_session
from trimtab_operator.kube.config import load_config

Manifest = dict[str, Any]

IN_FLIGHT = 24
PAGE = 500
_TIMEOUT = aiohttp.ClientTimeout(total=60.0)
_BUSY = (429, 504)
"""What a server says that has too much to do just now."""


class ApiError(Exception):
    """The server's refusal."""

    def __init__(self, method: str, path: str, status: int, text: str) -> None:
        super().__init__(f"{method} {path}: {status} {text[:500]}")
        self.status = status


class Api:
    """One API server, with all rights. An asynchronous context manager."""

    def __init__(self, kubeconfig: Path) -> None:
        self._config = load_config(str(kubeconfig), environ={})

    async def __aenter__(self) -> "Api":
        self._session = open_session(self._config)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def text(
        self,
        method: str,
        path: str,
        *,
        body: Manifest | None = None,
        params: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> str:
        """One request; the answer as it is."""
        async with self._session.request(
            method,
            self._config.server + path,
            data=None if body is None else json.dumps(body).encode(),
            params=params,
            headers={"Content-Type": content_type},
            timeout=_TIMEOUT,
        ) as response:
            text = await response.text()
            if response.status >= 400:
                raise ApiError(method, path, response.status, text)
            return text

    async def call(self, method: str, path: str, **options: Any) -> Manifest:
        """One request; the answer as an object."""
        answer: Manifest = json.loads(await self.text(method, path, **options))
        return answer

    async def create_all(self, path: str, manifests: Iterable[Manifest]) -> None:
        """POST them as fast as the server takes them."""
        slots = asyncio.Semaphore(IN_FLIGHT)

        async def create(manifest: Manifest) -> None:
            async with slots:
                await self.text("POST", path, body=manifest)

        await asyncio.gather(*map(create, manifests))

    async def count(self, path: str) -> int:
        """How many objects a collection has, at the price of one."""
        answer = await self.call("GET", path, params={"limit": "1"})
        return len(answer["items"]) + int(answer["metadata"].get("remainingItemCount") or 0)

    async def items(self, path: str, **params: str) -> list[Manifest]:
        """All objects of a collection."""
        found: list[Manifest] = []
        wanted = {**params, "limit": str(PAGE)}
        while True:
            answer = await self.call("GET", path, params=wanted)
            found += answer["items"]
            if not answer["metadata"].get("continue"):
                return found
            wanted["continue"] = answer["metadata"]["continue"]

    async def added(self, path: str) -> AsyncIterator[Manifest]:
        """Objects that are made from now on, as the server tells of them; the first item is empty."""
        version = (await self.call("GET", path, params={"limit": "1"}))["metadata"]["resourceVersion"]
        params = {"watch": "true", "resourceVersion": version}
        url, timeout = self._config.server + path, aiohttp.ClientTimeout(total=None, sock_read=60.0)
        async with self._session.get(url, params=params, timeout=timeout) as response:
            yield {}
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ADDED":
                    yield event["object"]

    async def apply_files(self, paths: Iterable[Path]) -> None:
        """Server-side apply CRDs from files of YAML, and wait until they are served."""
        for path in paths:
            for document in YAML(typ="safe").load_all(path.read_text(encoding="utf-8")):
                if not document or document["kind"] != "CustomResourceDefinition":
                    continue
                name = document["metadata"]["name"]
                url = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
                # Whole, not applied: a CRD of 3 MB is a body like any other.
                await self.text("POST", url.rpartition("/")[0], body=document)
                await until(lambda url=url: self._served(url), f"{name} served", within_s=60.0)

    async def _served(self, url: str) -> bool:
        conditions = (await self.call("GET", url)).get("status", {}).get("conditions") or ()
        return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


async def until(
    holds: Callable[[], Awaitable[object]], what: str, *, within_s: float, every_s: float = 0.25
) -> float:
    """Wait until something holds; the time at which it was asked for the last time, answered."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            if await holds():
                return time.monotonic()
        except ApiError as error:
            if error.status not in _BUSY:
                raise
        if time.monotonic() > deadline:
            raise TimeoutError(f"not {what} within {within_s:.0f} s")
        await asyncio.sleep(every_s)
