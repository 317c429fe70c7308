"""Where checkpoints lie and which of them count. Called by the coordinator and by `trimtab export`.

Layout: <uri>/step-00000010/{actor/..., coordinator.json, manifest.json}, <uri>/attempt.json (whose folder it
is) and <uri>/attempt-00000003 (a number that a launcher has taken).

The order of a save, which is what keeps a half one from ever counting:
    claim_attempt(uri, above)      once, when a launcher starts: its number, which no other start gets
    fence(uri, attempt)            once, when the coordinator starts: older attempts may no longer commit
    path = begin(uri, step, ...)   a clean directory
    every actor rank saves into path/actor
    commit(path, ...)              coordinator.json, then the manifest: now it exists
    prune(uri, keep, ...)          this training's oldest; of each, the manifest goes first
"""

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.api.uris import UriError, folder_of
from trimtab.checkpoint.errors import StaleAttemptError, storage_errors
from trimtab.checkpoint.manifest import (
    MANIFEST_NAME,
    InvalidCheckpointError,
    Manifest,
    fsync_directory,
    write_atomically,
)
from trimtab.errors import UserError

ACTOR_DIRECTORY = "actor"
ACTOR_RECORD = "actor.json"
COORDINATOR_STATE = "coordinator.json"
_FENCE = "attempt.json"
_STEP = re.compile(r"^step-(\d{8,})$")
_CLAIM = re.compile(r"^attempt-(\d{8,})$")


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint whose files were checked against its manifest."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """Training steps that it contains."""
        return self.manifest.step

    @property
    def actor_path(self) -> Path:
        """What an actor's `InitActor.checkpoint_path` names."""
        return self.path / ACTOR_DIRECTORY

    def coordinator_state(self) -> dict[str, Any]:
        """What the coordinator gave to `commit`."""
        state: dict[str, Any] = json.loads((self.path / COORDINATOR_STATE).read_text())
        return state


def directory_of(uri: str) -> Path:
    """The directory of a checkpoint URI: a path or file:///path."""
    try:
        return Path(folder_of(uri))
    except UriError as error:
        raise UserError(f"checkpoint.uri: {error}") from error


def claim_attempt(uri: str, *, above: int = 0) -> int:
    """Take a number for a start of a job: above this one and above all that were ever taken or used there.

    Two starts at the same instant get two numbers. The later one to reach `fence` with the higher number
    keeps the directory.
    """
    root = directory_of(uri)
    attempt = max(above, last_attempt(uri)) + 1
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                os.close(os.open(_claim(root, attempt), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            except FileExistsError:
                attempt += 1
                continue
            fsync_directory(root)
            return attempt


def fence(uri: str, attempt: int) -> None:
    """Claim the directory for this start of the job; raises `StaleAttemptError` if a later one has it."""
    root = directory_of(uri)
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        _refuse_older(root, attempt)
        write_atomically(root / _FENCE, json.dumps({"attempt": attempt}))
        for number in _claims(root):
            if number < attempt:
                _claim(root, number).unlink(missing_ok=True)


def last_attempt(uri: str) -> int:
    """The highest attempt that was claimed, has fenced the directory or committed to it; 0 where none has."""
    root = directory_of(uri)
    with storage_errors(root):
        newest = max([_fenced(root), *_claims(root)])
    return max(newest, _committed(root))


def begin(uri: str, step: int, *, identity: str, attempt: int) -> Path:
    """A clean directory for this step; what an interrupted or undone save left there is removed.

    Raises `UserError` rather than remove a checkpoint of another training, and `StaleAttemptError` rather
    than one of a later attempt.
    """
    path = directory_of(uri) / f"step-{step:08d}"
    with storage_errors(path):
        _refuse_older(path.parent, attempt)
    if (path / MANIFEST_NAME).exists() and (found := _identity(path)) not in (None, identity):
        raise UserError(
            f"checkpoint.uri: {path} belongs to training {found}, this job is {identity}; "
            "give this job a checkpoint.uri of its own"
        )
    with storage_errors(path):
        _remove(path)
        (path / ACTOR_DIRECTORY).mkdir(parents=True)
    return path


def commit(
    path: Path, *, step: int, identity: str, attempt: int, coordinator_state: dict[str, Any]
) -> Checkpoint:
    """Make the checkpoint exist. On any failure what was begun is removed and the error passed on."""
    try:
        with storage_errors(path):
            _refuse_older(path.parent, attempt)
            write_atomically(path / COORDINATOR_STATE, json.dumps(coordinator_state))
            manifest = Manifest.describe(
                path,
                step=step,
                attempt=attempt,
                training_identity=identity,
                world_size=_recorded_world_size(path),
            )
            manifest.write(path)
            fsync_directory(path.parent)
    except StaleAttemptError:
        if not (path / MANIFEST_NAME).exists():  # else the later attempt has saved this step meanwhile
            abandon(path)
        raise
    except BaseException:
        abandon(path)
        raise
    return Checkpoint(path, manifest)


def abandon(path: Path) -> None:
    """Remove a checkpoint that was begun and will not be committed; safe to repeat."""
    with storage_errors(path):
        _remove(path)


def open_checkpoint(path: Path, identity: str | None = None) -> Checkpoint:
    """Check one checkpoint; raises `InvalidCheckpointError` without naming the directory."""
    manifest = Manifest.read(path)
    if identity is not None and manifest.training_identity != identity:
        raise InvalidCheckpointError(
            f"it belongs to training {manifest.training_identity}, this job is {identity}"
        )
    manifest.verify(path)
    return Checkpoint(path, manifest)


def list_checkpoints(uri: str) -> list[Path]:
    """Directories that have a manifest, oldest first; their contents are not checked."""
    return [path for path in _step_directories(directory_of(uri)) if (path / MANIFEST_NAME).exists()]


def latest_valid(
    uri: str, identity: str | None = None, *, since: int = 0
) -> tuple[Checkpoint | None, list[str]]:
    """The newest usable checkpoint, and one sentence for each newer directory that was refused.

    Those of a later attempt are newer, whatever their step, as in `prune`; one that does not say its attempt
    goes by its step. Those of attempts before `since` are not looked at.
    """
    readable: list[tuple[int, int, Path]] = []
    unreadable: list[tuple[int, str]] = []
    for path in _step_directories(directory_of(uri)):
        try:
            manifest = Manifest.read(path)
        except InvalidCheckpointError as error:
            unreadable.append((_step_of(path), f"{path}: {error}"))
        else:
            readable.append((manifest.attempt, _step_of(path), path))
    refused: list[str] = []
    found: Checkpoint | None = None
    for number, _, path in sorted(readable, reverse=True):
        if number < since:
            break
        try:
            found = open_checkpoint(path, identity)
            break
        except InvalidCheckpointError as error:
            refused.append(f"{path}: {error}")
    newest = -1 if found is None else found.step
    return found, [*(text for step, text in reversed(unreadable) if step > newest), *refused]


def prune(uri: str, keep: int, *, identity: str, committed: Path) -> list[Path]:
    """Remove all but the newest `keep` checkpoints of this training; returns what went.

    The newest is the one just `committed`, whatever its number; then later attempts come before earlier
    ones, and later steps before earlier ones. Checkpoints of other trainings, and those whose manifest
    cannot be read, are neither counted nor touched.
    """
    if keep < 1:
        raise UserError(f"checkpoint.keep: {keep} is not allowed; at least 1 must be kept")
    others: list[tuple[int, int, Path]] = []
    for path in list_checkpoints(uri):
        try:
            manifest = Manifest.read(path)
        except InvalidCheckpointError:
            continue  # `latest_valid` is who reports it
        if manifest.training_identity == identity and path.name != committed.name:
            others.append((manifest.attempt, manifest.step, path))
    num_doomed = max(0, len(others) - (keep - 1))
    doomed = [path for _, _, path in sorted(others)[:num_doomed]]
    for path in doomed:
        _remove(path)
    return doomed


def _identity(path: Path) -> str | None:
    try:
        return Manifest.read(path).training_identity
    except InvalidCheckpointError:
        return None


def _step_directories(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted((path for path in root.iterdir() if _STEP.match(path.name)), key=_step_of)


def _step_of(path: Path) -> int:
    match = _STEP.match(path.name)
    assert match is not None
    return int(match[1])


def _remove(path: Path) -> None:
    """Remove a checkpoint such that an interruption leaves something that does not count."""
    if not path.exists():
        return
    if (path / MANIFEST_NAME).exists():
        (path / MANIFEST_NAME).unlink()
        fsync_directory(path)
    shutil.rmtree(path)


def _committed(root: Path) -> int:
    newest = 0
    for path in list_checkpoints(str(root)):
        try:
            newest = max(newest, Manifest.read(path).attempt)
        except InvalidCheckpointError:
            continue  # `latest_valid` is who reports it
    return newest


def _claim(root: Path, attempt: int) -> Path:
    return root / f"attempt-{attempt:08d}"


def _claims(root: Path) -> list[int]:
    if not root.is_dir():
        return []
    return [int(match[1]) for path in root.iterdir() if (match := _CLAIM.match(path.name))]


def _fenced(root: Path) -> int:
    path = root / _FENCE
    return int(json.loads(path.read_text())["attempt"]) if path.exists() else 0


def _refuse_older(root: Path, attempt: int) -> None:
    newest = max(_fenced(root), _committed(root))
    if attempt < newest:
        raise StaleAttemptError(
            f"checkpoint.uri: {root} belongs to attempt {newest} of this job; "
            f"attempt {attempt} may not write there"
        )


def _recorded_world_size(path: Path) -> int:
    record = path / ACTOR_DIRECTORY / ACTOR_RECORD
    if not record.exists():
        return 0
    return int(json.loads(record.read_text())["world_size"])
