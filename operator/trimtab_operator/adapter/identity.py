"""The master key that every job's certificates and keys are derived from.

It is a file of a mounted Secret. The first leader of an installation finds none, and creates that Secret; a
later one finds the file. The operator never reads the Secret through the API, as it has no right to: where
another operator has just created it, the kubelet brings it within a minute or two.
"""

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from trimtab.errors import UserError
from trimtab_operator.certs import MASTER_KEY_FILE, MasterKey
from trimtab_operator.constants import LABEL_MANAGED_BY, MANAGED_BY
from trimtab_operator.kube.client import Client
from trimtab_operator.kube.errors import AlreadyExistsError
from trimtab_operator.kube.resources import SECRETS

logger = logging.getLogger(__name__)

MOUNTED_WITHIN_S: Final = 180.0
LOOK_S: Final = 2.0


async def master_key(
    client: Client,
    *,
    folder: Path,
    namespace: str,
    secret: str,
    within_s: float = MOUNTED_WITHIN_S,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> MasterKey:
    """The key in the folder, or a new one, now in the Secret. UserError: the two do not go together."""
    key = MasterKey.load(folder)
    if key is not None:
        return key
    fresh = MasterKey.generate()
    manifest = {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "metadata": {"name": secret, "namespace": namespace, "labels": {LABEL_MANAGED_BY: MANAGED_BY}},
        "immutable": True,
        "data": {MASTER_KEY_FILE: base64.b64encode(fresh.secret).decode("ascii")},
    }
    try:
        await client.create(SECRETS, namespace, manifest)
    except AlreadyExistsError:
        logger.info("waiting for the Secret %s/%s to appear in %s", namespace, secret, folder)
    else:
        logger.info("made the Secret %s/%s", namespace, secret)
        return fresh
    waited_s = 0.0
    while waited_s < within_s:
        key = MasterKey.load(folder)
        if key is not None:
            return key
        await sleep(LOOK_S)
        waited_s += LOOK_S
    raise UserError(
        f"the Secret {namespace}/{secret} is there, but {folder / MASTER_KEY_FILE} is not: mount it there "
        "(the chart does), or give its folder with --identity-dir"
    )
