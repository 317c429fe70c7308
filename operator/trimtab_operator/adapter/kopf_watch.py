"""kopf, as the watch of jobs and nothing else: one `on.event` handler, in a thread with a loop of its own.

kopf cancels every task of the loop that it ends in, and takes the signals of the main thread; so it gets
neither. It writes nothing: no annotations, no finalizers, no events, no peering. Started only while this
operator leads. Each job is handed over to the operator's loop as it is, and is trimmed there.

Should kopf end by itself (its watch was refused, the API group vanished), `wait` returns the reason, and the
process ends with it: a new one starts from a clean list.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection
from typing import Any, Final

import kopf

from trimtab_operator.constants import GROUP, PLURAL, VERSION
from trimtab_operator.kube.client import open_session
from trimtab_operator.kube.config import ClusterConfig
from trimtab_operator.kube.errors import JsonObject

logger = logging.getLogger(__name__)

STOP_S: Final = 4.0


class KopfWatch:
    """Delivers every change of a job to `deliver(type, object)`, on the loop that made this object."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        namespaces: Collection[str],
        deliver: Callable[[str | None, JsonObject], None],
    ) -> None:
        self._config = config
        self._namespaces = tuple(namespaces)
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        self.started = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def wait(self) -> str:
        """Wait until kopf has ended; why."""
        return await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """End the thread; where it takes too long it ends with the process."""
        self._stop.set()
        if self._thread.is_alive():
            await asyncio.wait({self._ended}, timeout=STOP_S)

    def _run(self) -> None:
        why = asyncio.run(self._watch())
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end, why)

    async def _watch(self) -> str:
        """Run kopf to its end, on the thread's loop; why it ended."""
        task = asyncio.ensure_future(
            kopf.operator(
                registry=self._registry(),
                settings=_settings(),
                standalone=True,
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                stop_flag=self._stop,
                ready_flag=self.started,
            )
        )
        await asyncio.wait({task})
        if task.cancelled():
            return "it was cancelled"
        error = task.exception()
        return "it was stopped" if error is None else f"{type(error).__name__}: {error}"

    def _end(self, why: str) -> None:
        if not self._ended.done():
            self._ended.set_result(why)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> Any:
            return kopf.AiohttpSession(
                server=self._config.server,
                aiohttp_session=open_session(self._config),
                default_namespace=self._config.namespace,
            )

        @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
        async def changed(event: Any, **_: Any) -> None:
            self._loop.call_soon_threadsafe(self._deliver, event["type"], event["object"])

        return registry


class _NothingToCompare(kopf.DiffBaseStorage):
    """What kopf tells changes of an object by: nothing, as our handler takes it whole.

    Copying each object for that was a third of what the operator did for jobs that take steps.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        """See kopf."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """See kopf."""
        return None

    def store(self, **_: Any) -> None:
        """See kopf."""


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.persistence.diffbase_storage = _NothingToCompare()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 5.0
    settings.queueing.idle_timeout = 1.0
    return settings
