"""Who may call what on the coordinator, by the name in the caller's certificate. Used by `ControlServer`.

| certificate | may |
|---|---|
| worker | register and hold a session (`Coordinator.Session`) |
| operator, coordinator | ask and command the job (`JobControl.*`) |

The coordinator's is also that of the command line inside its pod (`kubectl exec`).

On a laptop there are no certificates: whoever reaches the loopback interface may call everything.
"""

import logging
from typing import Any

import grpc

from trimtab.comm.tls import COORDINATOR, OPERATOR, WORKER

logger = logging.getLogger(__name__)


class Peers:
    """Checks each call before anything is done about it."""

    def __init__(self, *, secured: bool) -> None:
        self._secured = secured

    async def require_worker(self, context: Any) -> None:
        """Let workers alone go on."""
        await self._require(context, (WORKER,), "Coordinator.Session")

    async def require_control(self, context: Any, call: str) -> None:
        """Let those alone go on who may command the job."""
        await self._require(context, (OPERATOR, COORDINATOR), f"JobControl.{call}")

    async def _require(self, context: Any, allowed: tuple[str, ...], call: str) -> None:
        if not self._secured:
            return
        found = context.auth_context().get("x509_common_name") or [b""]
        name = found[0].decode("utf-8", "replace")
        if name in allowed:
            return
        logger.warning("refused %s to %s with the certificate of %r", call, context.peer(), name)
        message = f"a certificate of {name!r} may not call {call}; allowed: {', '.join(allowed)}"
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, message)
