"""Checkpoints: begin, commit, list, verify, prune. The coordinator calls it; torch-free.

What an actor writes inside a checkpoint is `trimtab.engines.training.state`.
"""

from trimtab.checkpoint.errors import CheckpointStorageError, StaleAttemptError, storage_errors
from trimtab.checkpoint.manifest import MANIFEST_NAME, InvalidCheckpointError, Manifest
from trimtab.checkpoint.store import (
    Checkpoint,
    abandon,
    begin,
    claim_attempt,
    commit,
    directory_of,
    fence,
    last_attempt,
    latest_valid,
    list_checkpoints,
    open_checkpoint,
    prune,
)

__all__ = [
    "MANIFEST_NAME",
    "Checkpoint",
    "CheckpointStorageError",
    "InvalidCheckpointError",
    "Manifest",
    "StaleAttemptError",
    "abandon",
    "begin",
    "claim_attempt",
    "commit",
    "directory_of",
    "fence",
    "last_attempt",
    "latest_valid",
    "list_checkpoints",
    "open_checkpoint",
    "prune",
    "storage_errors",
]
