"""Which of several operators acts: the one that holds the Lease.

    standing by --(the lease is free, released, or unchanged for its duration)--> leading
    leading --(RENEW_DEADLINE_S without a renewal, or another holder)--> LeaseLostError: the process ends
    leading --(release)--> standing by; another takes over at once

Time is this machine's clock alone, which also runs while the machine sleeps: whoever stands by counts from
when it saw the record change, never from the time that is written in it. The leader counts from before it
sent its last renewal that succeeded; so it stops at the latest RENEW_DEADLINE_S after that, and nobody
else begins before LEASE_DURATION_S after it. `check` is the guard of every write in between.

`acquire`, `hold` and `release` are called one after the other by one task. Every request has a deadline;
every error of the transport or the server is logged and tried again until the lease's own deadline.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from trimtab_operator.kube.client import Client
from trimtab_operator.kube.errors import ConflictError, JsonObject, KubeError, NotFoundError, NotLeadingError
from trimtab_operator.kube.resources import LEASES

logger = logging.getLogger(__name__)

LEASE_DURATION_S: Final = 15
"""Others take the lease when it has not changed for this long."""
RENEW_DEADLINE_S: Final = 10.0
"""The leader stops when it has not renewed the lease for this long."""
RENEW_S: Final = 2.0
"""Time between renewals, and between looks at another's lease."""
REQUEST_TIMEOUT_S: Final = 4.0


class LeaseLostError(KubeError):
    """Another may lead from now on: the process ends."""


def boot_clock() -> float:
    """Seconds that nobody sets, those of a sleeping machine included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Election:
    """One candidate."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self.identity = identity
        self._clock = clock
        self._lease: JsonObject = {}
        """As last read or written."""
        self._seen_at = 0.0
        """When it was first seen as it is."""
        self._until: float | None = None
        """Until when this process leads; None: it does not."""

    @property
    def holder(self) -> str:
        """Who leads, as far as is known; empty: nobody."""
        return str(self._lease.get("spec", {}).get("holderIdentity") or "")

    @property
    def leading(self) -> bool:
        """Whether this process leads at this moment."""
        return self._until is not None and self._clock() < self._until

    def check(self) -> None:
        """Raise NotLeadingError unless this process leads at this moment."""
        if not self.leading:
            raise NotLeadingError("this operator no longer knows that it leads")

    async def acquire(self) -> None:
        """Wait until this process leads."""
        known = ""
        while True:
            begun = self._clock()
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    if await self._try_to_take(begun):
                        logger.info("leading as %s", self.identity)
                        return
            except (KubeError, TimeoutError) as error:
                logger.warning("the lease %s/%s: %s", self._namespace, self._name, _words(error))
            if self.holder not in ("", known):
                known = self.holder
                logger.info("standing by: %s leads", known)
            await asyncio.sleep(RENEW_S * random.uniform(0.8, 1.2))  # noqa: S311 -- spreads candidates

    async def hold(self) -> None:
        """Renew until the lease is lost; LeaseLostError then says why."""
        why = "no renewal succeeded"
        while True:
            await asyncio.sleep(RENEW_S)
            assert self._until is not None
            begun = self._clock()
            left_s = self._until - begun
            if left_s <= 0:
                self._until = None
                raise LeaseLostError(f"lost the lease {self._namespace}/{self._name}: {why}")
            try:
                async with asyncio.timeout(min(REQUEST_TIMEOUT_S, left_s)):
                    if not await self._renew(begun):
                        self._until = None
                        raise LeaseLostError(f"{self.holder or 'somebody'} took the lease")
            except LeaseLostError:
                raise
            except (KubeError, TimeoutError) as error:
                why = _words(error)
                logger.warning("cannot renew the lease %s/%s: %s", self._namespace, self._name, why)

    async def release(self) -> None:
        """Let another lead at once. Harmless where this process does not lead; best effort otherwise."""
        if not self.leading:
            return
        self._until = None
        spec = self._lease["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._client.replace(LEASES, self._namespace, self._lease | {"spec": spec})
        except (KubeError, TimeoutError) as error:
            logger.warning("the lease was not released: %s; it runs out by itself", _words(error))
            return
        logger.info("released the lease")

    async def _try_to_take(self, begun: float) -> bool:
        try:
            self._note(await self._client.get(LEASES, self._namespace, self._name))
        except NotFoundError:
            fresh = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": self._spec(transitions=0),
            }
            self._lead(await self._client.create(LEASES, self._namespace, fresh), begun)
            return True
        spec = self._lease.get("spec", {})
        duration_s = float(spec.get("leaseDurationSeconds") or LEASE_DURATION_S)
        if self.holder not in ("", self.identity) and self._clock() - self._seen_at < duration_s:
            return False
        taken = self._lease | {"spec": self._spec(transitions=int(spec.get("leaseTransitions") or 0) + 1)}
        try:
            self._lead(await self._client.replace(LEASES, self._namespace, taken), begun)
        except ConflictError:
            return False
        return True

    async def _renew(self, begun: float) -> bool:
        """Whether the lease is still ours. A conflict is looked into: our own write may have got through."""
        renewed = self._lease | {"spec": self._lease["spec"] | {"renewTime": _now()}}
        try:
            self._lead(await self._client.replace(LEASES, self._namespace, renewed), begun)
        except (ConflictError, NotFoundError):
            try:
                self._note(await self._client.get(LEASES, self._namespace, self._name))
            except NotFoundError:
                return False
            return self.holder == self.identity
        return True

    def _lead(self, lease: JsonObject, begun: float) -> None:
        self._note(lease)
        self._until = begun + RENEW_DEADLINE_S

    def _note(self, lease: JsonObject) -> None:
        if lease.get("metadata", {}).get("resourceVersion") != self._lease.get("metadata", {}).get(
            "resourceVersion"
        ):
            self._seen_at = self._clock()
        self._lease = lease

    def _spec(self, *, transitions: int) -> JsonObject:
        now = _now()
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }


def _now() -> str:
    """For people to read; nobody reckons with it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
