"""The Secret with a job's certificates and CURVE keys. Who makes its contents: `trimtab_operator.certs`."""

import base64
from collections.abc import Mapping

from trimtab_operator.builders.meta import Manifest, child, tls_name
from trimtab_operator.constants import COORDINATOR
from trimtab_operator.model.resolved import Resolved

_BOTH = ("ca.crt", "curve-server.pub", "curve-client.pub")
_COORDINATOR_KEYS = (*_BOTH, "coordinator.crt", "coordinator.key", "curve-server.key")
_WORKER_KEYS = (*_BOTH, "worker.crt", "worker.key", "curve-client.key")


def tls_secret(resolved: Resolved, data: Mapping[str, bytes]) -> Manifest:
    """The Secret; `data` are its files by name."""
    name = tls_name(resolved.resolved_job.job.name)
    return child(resolved, api_version="v1", kind="Secret", name=name) | {
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def mounted_keys(role: str) -> tuple[str, ...]:
    """Files of the Secret that a role's pods mount: their own, never those of the other side."""
    return _COORDINATOR_KEYS if role == COORDINATOR else _WORKER_KEYS
