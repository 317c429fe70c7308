"""Puts the operator together and runs it: the parts, the order in which they start, and how they end.

    health server --> election --(leads)--> master key --> CRD is there --> pods listed --> kopf, queue
                                                                                             |
    SIGTERM: begin nothing more, finish what is under way, release the lease, 0 <------------|
    lease lost, a watch gave up, a bug in a part: the process ends with 1, and is started again

Everything but kopf runs on one loop, in the main thread.
"""

import asyncio
import logging
import os
import signal
import socket
import uuid
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any, Final

from trimtab.errors import TrimtabError
from trimtab_operator.adapter.health import HealthServer
from trimtab_operator.adapter.identity import master_key
from trimtab_operator.adapter.leader import Frame, Leader, PartEndedError
from trimtab_operator.adapter.metrics import OperatorMetrics
from trimtab_operator.adapter.settings import LEASE, Options
from trimtab_operator.constants import PLURAL
from trimtab_operator.kube.client import Client
from trimtab_operator.kube.config import ClusterConfig, load_config
from trimtab_operator.kube.election import Election, LeaseLostError
from trimtab_operator.kube.errors import KubeError, NotFoundError
from trimtab_operator.kube.resources import JOBS

logger = logging.getLogger(__name__)

CRD_LOOK_S: Final = 2.0
CRD_SAY_EVERY: Final = 15
END_S: Final = 2.0


async def run_operator(options: Options) -> int:
    """Run until a signal or a fault; the exit code."""
    config = load_config(options.kubeconfig, environ=options.environ)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    operator = Operator(options, config, stop)
    where = ", ".join(options.namespaces) or "all namespaces"
    logger.info("trimtab-operator %s, jobs in %s, %s", version("trimtab-operator"), where, config.server)
    try:
        await operator.run()
    except LeaseLostError as error:
        logger.error("%s: ending", error)
        return 1
    except PartEndedError as error:
        logger.error("ending: %s", error)
        return 1
    logger.info("stopped on request")
    return 0


class Operator:
    """One operator process."""

    def __init__(self, options: Options, config: ClusterConfig, stop: asyncio.Event) -> None:
        self._settings = options.settings
        self._stop = stop
        self._leads = False
        self._leader: Leader | None = None
        self._election: Election | None = None
        metrics = OperatorMetrics()
        self._frame = Frame(
            options=options,
            config=config,
            identity=_own_name(options.environ.get("POD_NAME", "")),
            metrics=metrics,
            health=HealthServer(metrics, ready=self._ready),
        )

    async def run(self) -> None:
        """Serve health, lead when it is this one's turn, end cleanly."""
        options, config, metrics = self._frame.options, self._frame.config, self._frame.metrics
        async with AsyncExitStack() as stack:
            port = await self._frame.health.start(options.health_port)
            stack.push_async_callback(self._frame.health.close)
            logger.info("serving /healthz, /readyz and /metrics on port %d", port)
            if not options.leader_elect:
                await self._lead(guard=lambda: None, hold=None)
                return
            client = Client(config, max_in_flight=2, observe=metrics.note_call)
            stack.push_async_callback(client.close)
            self._election = election = Election(
                client,
                namespace=self._settings.operator_namespace,
                name=LEASE,
                identity=self._frame.identity,
            )
            stack.push_async_callback(election.release)
            if not await self._unless_stopped(election.acquire()):
                return
            await self._lead(guard=election.check, hold=election.hold)

    def _ready(self) -> str:
        """Why it is not ready; empty: it is, leading or standing by."""
        if self._leads:
            return "leading, and starting" if self._leader is None else self._leader.not_ready
        stands_by = self._election is not None and self._election.holder
        return "" if stands_by else "the election has not begun"

    async def _lead(
        self, *, guard: Callable[[], None], hold: Callable[[], Coroutine[Any, Any, None]] | None
    ) -> None:
        """Start every part, and wait until one ends or a signal comes."""
        self._frame.metrics.leading.set(1)
        self._leads = True
        client = Client(self._frame.config, guard=guard, observe=self._frame.metrics.note_call)
        parts: dict[asyncio.Task[Any], str] = {}

        def start(name: str, part: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            task = asyncio.create_task(part, name=name)
            parts[task] = name
            return task

        try:
            if hold is not None:
                start("the election", hold())
            stopped = start("a signal", self._stop.wait())
            begin = start("the start", self._begin(client))
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            if done == {begin}:
                del parts[begin]
                self._leader = begin.result()
                self._leader.start(start)
                done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            if begin in done:
                begin.result()
            for task in done - {stopped, begin}:
                _raise_end(parts[task], task)
            if self._leader is not None:
                await self._leader.finish()
        finally:
            self._frame.metrics.leading.set(0)
            for task in parts:
                task.cancel()
            if self._leader is not None:
                await self._leader.close()
            await asyncio.wait(parts, timeout=END_S)
            await client.close()

    async def _begin(self, client: Client) -> Leader:
        """What comes before the first look at a job."""
        key = await master_key(
            client,
            folder=self._frame.options.identity_dir,
            namespace=self._settings.operator_namespace,
            secret=self._frame.options.identity_secret,
        )
        await self._crd_is_there(client)
        return Leader(self._frame, client, key)

    async def _crd_is_there(self, client: Client) -> None:
        """Wait for the kind here: kopf looks for it once, at its start."""
        tries = 0
        while True:
            try:
                async for _ in client.pages(JOBS, self._frame.namespaces[0], page_size=1):
                    break
            except NotFoundError:
                if tries % CRD_SAY_EVERY == 0:
                    logger.warning("waiting for the CRD %s.%s; the chart installs it", PLURAL, JOBS.group)
                tries += 1
            except KubeError as error:
                logger.warning("cannot list %s: %s", PLURAL, error)
            else:
                return
            await asyncio.sleep(CRD_LOOK_S)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do the work; False where a signal came first."""
        tasks = {asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())}
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        for task in done:
            task.result()
        return not self._stop.is_set()


def _raise_end(name: str, task: "asyncio.Task[Any]") -> None:
    """Say why a part that runs for ever has ended."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TrimtabError):
        raise error
    logger.error("%s has ended", name, exc_info=error)
    raise PartEndedError(f"{name} has ended") from error


def _own_name(pod_name: str) -> str:
    """Unique for each process, also of those that share a host name."""
    return f"{pod_name or socket.gethostname()}_{os.getpid()}-{uuid.uuid4().hex[:8]}"
