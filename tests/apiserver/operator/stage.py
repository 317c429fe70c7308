"""Plays all scenes at once: each waits most of its time, and operators take seconds to start.

    @together                    a job, in a namespace of its own, served by the one operator that runs
    async def test_...(world):   in cluster mode with just the roles of the chart
    @together(alone=True)        no operator but those that the scene starts
    @together(own=True)          on an API server of its own, which may be stopped

The first test that asks for the stage has all selected scenes played, on one loop; each test then says what
became of its own. Scenes that start operators share a few places, so that a small machine keeps up.
"""

import asyncio
import base64
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from tests.apiserver import client
from tests.apiserver.chart import CHART, granted, render
from tests.apiserver.client import Api, connected
from tests.apiserver.operator.process import OperatorProcess
from tests.apiserver.operator.world import SETTINGS, World, open_world
from tests.apiserver.server import ApiServer, running

from trimtab_operator.adapter.settings import IDENTITY_SECRET

PLACES = 2
KINDS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
Play = Callable[[World], Awaitable[None]]


@dataclass(frozen=True)
class Scene:
    """What one test is about."""

    play: Play
    alone: bool
    own: bool

    @property
    def served(self) -> bool:
        """Whether the one operator serves it."""
        return not (self.alone or self.own)


SCENES: dict[str, Scene] = {}


def together(play: Play | None = None, *, alone: bool = False, own: bool = False) -> Any:
    """Have the scene played with all others; the test says what became of it."""

    def register(scene: Play) -> Callable[["Stage"], None]:
        name = scene.__name__
        SCENES[name] = Scene(scene, alone=alone, own=own)

        def test(stage: "Stage") -> None:
            stage.tell(name)

        test.__name__, test.__module__, test.__doc__ = name, scene.__module__, scene.__doc__
        return test

    return register if play is None else register(play)


class Stage:
    """Two API servers: one for the operator that serves all namespaces, one for the scenes without it."""

    def __init__(self, served: ApiServer, shared: ApiServer, folder: Path) -> None:
        self._served = served
        self._shared = shared
        self._folder = folder
        self._ends: dict[str, BaseException | None] = {}
        self.used: set[tuple[str, str, str]] = set()
        """Rights that the operator used: group, resource, verb."""
        self.granted: set[tuple[str, str, str]] = set()
        self.refused: list[str] = []

    def tell(self, name: str) -> None:
        """Raise what the scene ended with."""
        error = self._ends[name]
        if error is not None:
            raise error

    async def play(self, names: set[str]) -> None:
        """Play these scenes."""
        scenes = {name: SCENES[name] for name in sorted(names)}
        places = asyncio.Semaphore(PLACES)
        async with AsyncExitStack() as stack:
            shared = await stack.enter_async_context(connected(self._shared))
            await shared.install_crd(_crd())
            first = {name: scene for name, scene in scenes.items() if not scene.served}
            tasks = [asyncio.create_task(self._alone(name, scene, places)) for name, scene in first.items()]
            served = [name for name, scene in scenes.items() if scene.served]
            if served:
                await self._serve(served)
            await asyncio.gather(*tasks)

    # -- with operators of their own

    async def _alone(self, name: str, scene: Scene, places: asyncio.Semaphore) -> None:
        async with places, AsyncExitStack() as stack:
            server = self._shared
            if scene.own:
                folder = self._folder / f"{name}-server"
                folder.mkdir()
                own = running(folder)
                server = await asyncio.to_thread(own.__enter__)
                stack.push_async_callback(asyncio.to_thread, own.__exit__, None, None, None)
            api = await stack.enter_async_context(connected(server))
            world = await stack.enter_async_context(open_world(api, self._folder / name))
            await self._end(name, scene, world)

    async def _end(self, name: str, scene: Scene, world: World) -> None:
        [end] = await asyncio.gather(scene.play(world), return_exceptions=True)
        self._ends[name] = end

    # -- with the one operator

    async def _serve(self, names: list[str]) -> None:
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(connected(self._served))
            await api.install_crd(_crd())
            user = await self._install(api)
            operator = self._start(user)
            stack.callback(operator.kill)
            await operator.ready()
            secret = await api.get("Secret", IDENTITY_SECRET)
            master = base64.b64decode(secret["data"]["master.key"])
            await asyncio.gather(*(self._served_scene(name, operator, master) for name in names))
            await operator.end()
            self._take_account(user)

    async def _served_scene(self, name: str, operator: OperatorProcess, master: bytes) -> None:
        async with (
            connected(self._served) as api,
            open_world(api, self._folder / name, operator=operator) as world,
        ):
            world.master = master
            await self._end(name, SCENES[name], world)

    async def _install(self, api: Api) -> Api:
        """Give a service account what the chart gives the operator's, and no more; its client."""
        rendered = render({}, api.namespace)
        objects = [each for each in rendered if each["kind"] in KINDS and "aggregate" not in str(each)]
        for manifest in objects:
            manifest["metadata"].pop("namespace", None)
            await api.apply(manifest)
            if manifest["kind"] in ("Role", "ClusterRole"):
                self.granted |= granted(manifest["rules"])
        account = next(each for each in objects if each["kind"] == "ServiceAccount")
        config = next(each for each in rendered if each["metadata"]["name"].endswith("-settings"))
        settings = json.loads(config["data"]["settings.json"]) | SETTINGS
        (self._folder / "settings.json").write_text(json.dumps(settings))
        return await client.account(api, account["metadata"]["name"])

    def _start(self, user: Api) -> OperatorProcess:
        """As the chart starts it: for all namespaces, with a lease, and a key that it makes itself."""
        command = [
            *(sys.executable, "-m", "trimtab_operator.main", "run", "--health-port=0"),
            f"--kubeconfig={user.server.kubeconfig(token=user.token, namespace=user.namespace)}",
            f"--settings={self._folder / 'settings.json'}",
            f"--identity-dir={self._folder / 'identity'}",
        ]
        return OperatorProcess(command, self._folder / "operator.log")

    def _take_account(self, user: Api) -> None:
        """What the operator asked for, by the audit log."""
        for event in self._served.audit(f"system:serviceaccount:{user.namespace}:release-trimtab"):
            if "objectRef" not in event or "responseStatus" not in event:
                continue  # discovery, which is open to everybody
            reference, status = event["objectRef"], event["responseStatus"]
            resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
            group = reference.get("apiGroup", "")
            self.used.add((group, resource, event["verb"]))
            if event["verb"] == "patch" and status["code"] == 201:
                self.used.add((group, resource, "create"))  # a server-side apply of what was not there
            if event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid":
                self.refused.append(event["requestURI"])


def _crd() -> dict[str, Any]:
    crd: dict[str, Any] = YAML(typ="safe", pure=True).load(CHART / "files" / "crd.yaml")
    return crd
