"""A client of the API server, as a test uses it: objects are plain data, kinds are found by discovery."""

import asyncio
import contextlib
import json
import secrets
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from tests.apiserver.server import ApiServer

Manifest = dict[str, Any]
REQUEST_S = 30.0
PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}


class ApiError(Exception):
    """The API server's refusal: `status` (HTTP), `reason`, `message`, `causes` ((field, message) pairs)."""

    def __init__(self, status: int, body: Any) -> None:
        known = body if isinstance(body, dict) else {}
        self.status = status
        self.reason = known.get("reason", "")
        self.message = known.get("message", str(body))
        causes = (known.get("details") or {}).get("causes") or []
        self.causes = [(cause.get("field", ""), cause.get("message", "")) for cause in causes]
        super().__init__(f"{status} {self.reason}: {self.message}")


@dataclass(frozen=True)
class Api:
    """A user's client in one namespace. Objects are plain data; a refusal is raised as `ApiError`.

    Kinds are found by discovery: `api.get("Pod", "x")`; `api_version=` tells two of one name apart. Writes
    use fieldValidation=Strict unless `params` say otherwise; `dryRun="All"` is a parameter as any other.
    """

    server: ApiServer
    session: aiohttp.ClientSession
    namespace: str
    token: str

    Error = ApiError

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content_type: str = "application/json",
        **params: str,
    ) -> Any:
        """Any request; the answer as data."""
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Accept": params.pop("accept", "application/json"),
        }
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body), content_type
        async with self.session.request(
            method, self.server.url + path, data=data, headers=headers, params=params
        ) as response:
            text = await response.text()
            try:
                answer = json.loads(text)
            except ValueError:
                answer = text
            if response.status >= 400:
                raise ApiError(response.status, answer)
            return answer

    async def create(self, manifest: Manifest, **params: str) -> Manifest:
        """POST an object."""
        path = await self.path(manifest["kind"], api_version=manifest["apiVersion"])
        return await self.request("POST", path, body=manifest, **{"fieldValidation": "Strict"} | params)

    async def apply(self, manifest: Manifest, *, manager: str = "test", **params: str) -> Manifest:
        """Server-side apply, with force."""
        options = {"fieldManager": manager, "force": "true", "fieldValidation": "Strict"} | params
        path = await self._path_of(manifest)
        return await self.request(
            "PATCH", path, body=manifest, content_type="application/apply-patch+yaml", **options
        )

    async def replace(self, manifest: Manifest, *, subresource: str = "", **params: str) -> Manifest:
        """PUT an object, or its status."""
        path = await self._path_of(manifest, subresource)
        return await self.request("PUT", path, body=manifest, **{"fieldValidation": "Strict"} | params)

    async def patch(
        self,
        kind: str,
        name: str,
        body: Any,
        *,
        how: str = "merge",
        subresource: str = "",
        api_version: str = "",
        **params: str,
    ) -> Manifest:
        """PATCH an object: `how` is merge, json or strategic."""
        path = await self.path(kind, name, subresource=subresource, api_version=api_version)
        options = {"fieldValidation": "Strict"} | params
        return await self.request("PATCH", path, body=body, content_type=PATCH_TYPES[how], **options)

    async def get(
        self, kind: str, name: str, *, subresource: str = "", api_version: str = "", **params: str
    ) -> Manifest:
        """GET an object."""
        path = await self.path(kind, name, subresource=subresource, api_version=api_version)
        return await self.request("GET", path, **params)

    async def list(self, kind: str, *, api_version: str = "", **params: str) -> list[Manifest]:
        """The objects of a kind in the namespace; `labelSelector="a=b"` is a parameter."""
        return (await self.request("GET", await self.path(kind, api_version=api_version), **params))["items"]

    async def delete(self, kind: str, name: str, *, api_version: str = "", body: Any = None) -> Manifest:
        """DELETE an object; `body` are the options (preconditions, grace period)."""
        return await self.request("DELETE", await self.path(kind, name, api_version=api_version), body=body)

    async def wait_for(
        self,
        kind: str,
        name: str,
        holds: Callable[[Manifest], bool],
        *,
        what: str,
        timeout_s: float = 30.0,
        api_version: str = "",
    ) -> Manifest:
        """Get an object until something holds of it; one that is not there yet is waited for."""
        deadline = time.monotonic() + timeout_s
        found: Manifest | str = "not there"
        while time.monotonic() < deadline:
            try:
                found = await self.get(kind, name, api_version=api_version)
            except ApiError as error:
                if error.status != 404:
                    raise
                found = "not there"
            if isinstance(found, dict) and holds(found):
                return found
            await asyncio.sleep(0.05)
        raise AssertionError(
            f"{kind} {name}: not {what} after {timeout_s} s; found {json.dumps(found, indent=1)}"
        )

    async def install_crd(self, manifest: Manifest) -> None:
        """Create or update a CustomResourceDefinition, and wait until it is served."""
        name, version = manifest["metadata"]["name"], manifest["spec"]["versions"][0]["name"]
        await self.apply(manifest)
        await self.wait_for(
            "CustomResourceDefinition",
            name,
            lambda crd: any(
                condition["type"] == "Established" and condition["status"] == "True"
                for condition in (crd.get("status", {}).get("conditions") or [])
            ),
            what="Established",
        )
        await self.path(
            manifest["spec"]["names"]["kind"], api_version=f"{manifest['spec']['group']}/{version}"
        )

    async def path(self, kind: str, name: str = "", *, subresource: str = "", api_version: str = "") -> str:
        """Where a kind, or one object of it, is; a kind that was just installed is waited for."""
        deadline = time.monotonic() + 15
        while (found := self._known(kind, api_version)) is None:
            await self._discover()
            if self._known(kind, api_version) is None:
                if time.monotonic() > deadline:
                    raise LookupError(f"the API server has no kind {kind} {api_version}")
                await asyncio.sleep(0.1)
        prefix, resource, namespaced = found
        parts = [prefix, f"namespaces/{self.namespace}" if namespaced else "", resource, name, subresource]
        return "/".join(part for part in parts if part)

    async def _path_of(self, manifest: Manifest, subresource: str = "") -> str:
        return await self.path(
            manifest["kind"],
            manifest["metadata"]["name"],
            subresource=subresource,
            api_version=manifest["apiVersion"],
        )

    def _known(self, kind: str, api_version: str) -> tuple[str, str, bool] | None:
        for (version, known), (resource, namespaced) in self.server.kinds.items():
            if known == kind and api_version in ("", version):
                return f"/api/{version}" if "/" not in version else f"/apis/{version}", resource, namespaced
        return None

    async def _discover(self) -> None:
        for root in ("/api", "/apis"):
            groups = await self.request(
                "GET", root, accept="application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            )
            for group in groups["items"]:
                for version in group["versions"]:
                    name = "/".join(filter(None, [group["metadata"].get("name"), version["version"]]))
                    for resource in version.get("resources", []):
                        self.server.kinds[name, resource["responseKind"]["kind"]] = (
                            resource["resource"],
                            resource["scope"] == "Namespaced",
                        )


@contextlib.asynccontextmanager
async def connected(server: ApiServer) -> AsyncIterator[Api]:
    """A client with all rights in a new namespace."""
    connector = aiohttp.TCPConnector(ssl=server.ssl_context())
    timeout = aiohttp.ClientTimeout(total=REQUEST_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        api = Api(server, session, f"test-{secrets.token_hex(4)}", server.token)
        await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": api.namespace}})
        yield api


async def kubectl(
    api: Api, *arguments: str, stdin: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run kubectl as a client's user in its namespace."""
    binary = api.server.binaries / "kubectl"
    if not binary.exists():
        raise FileNotFoundError(f"{binary} is missing: KUBEBUILDER_ASSETS needs kubectl too")
    config = api.server.kubeconfig(token=api.token, namespace=api.namespace)
    result = await asyncio.to_thread(
        subprocess.run,
        [str(binary), "--kubeconfig", str(config), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0 or not check, f"kubectl {' '.join(arguments)}: {result.stderr}"
    return result


async def account(api: Api, name: str) -> Api:
    """The client of a service account of the namespace."""
    answer = await api.request(
        "POST",
        await api.path("ServiceAccount", name, subresource="token"),
        body={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
    )
    return Api(api.server, api.session, api.namespace, answer["status"]["token"])


MakeUser = Callable[..., Awaitable[Api]]
Kubectl = Callable[..., Awaitable[subprocess.CompletedProcess[str]]]
