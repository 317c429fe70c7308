"""Checkpoints as the coordinator keeps them: when there is a new state, written once, answered to who asked.

Runs on the coordinator's loop. The actor's ranks write their parts, then the coordinator commits; what was
begun and not committed never counts (`trimtab.checkpoint`).
"""

import asyncio
import logging
import time
from pathlib import Path

from trimtab import checkpoint
from trimtab.api import ResolvedJob
from trimtab.errors import TrimtabError, UserError
from trimtab.roles.coordinator.actors import ActorUnit
from trimtab.roles.coordinator.control import Wishes
from trimtab.roles.coordinator.state import TrainingState
from trimtab.roles.coordinator.status import StatusBoard

log = logging.getLogger(__name__)


class CheckpointKeeper:
    """Writes and finds the job's checkpoints."""

    def __init__(self, job: ResolvedJob, actor: ActorUnit, board: StatusBoard, wishes: Wishes) -> None:
        self._job = job
        self._actor = actor
        self._board = board
        self._wishes = wishes
        self._spec = job.job.spec.checkpoint
        self.uri = str(self._spec.directory(Path(job.run_dir)))
        self._saved_step = -1
        self.last_save_s = 0.0
        """Of the last save; the next step's metrics show it."""

    def fence(self) -> None:
        """Take the folder for this attempt: an older one may no longer commit."""
        checkpoint.fence(self.uri, self._job.attempt)

    def due(self, step: int) -> bool:
        """Whether the spec or somebody wants the state of this step saved."""
        every = self._spec.every_steps
        wanted = bool(self._wishes.checkpoints) or (every is not None and step % every == 0)
        return step > 0 and wanted

    def find(self) -> checkpoint.Checkpoint | None:
        """The newest whole checkpoint that `spec.checkpoint.resume` allows; refused ones are named.

        Those of this very job are always taken: `never` speaks of earlier ones.
        """
        since = self._job.first_attempt if self._spec.resume == "never" else 0
        found, refused = checkpoint.latest_valid(self.uri, self._job.training_identity, since=since)
        for sentence in refused:
            log.warning("checkpoint refused: %s", sentence)
            self._board.warnings.append(f"checkpoint refused: {sentence}")
        if self._spec.resume == "required" and found is None:
            raise UserError(
                f"spec.checkpoint.resume is required, and there is no usable checkpoint in {self.uri}"
                + "".join(f"; refused: {sentence}" for sentence in refused)
            )
        if found is not None:
            self._note(str(found.path), found.step)
        return found

    async def save_if_new(self, state: TrainingState) -> None:
        """Save unless this step's state is saved, and answer who asked for a checkpoint.

        Before the first step there is nothing to save: who asked waits for its end.
        """
        if state.step == 0:
            return
        asked, self._wishes.checkpoints = self._wishes.checkpoints, []
        try:
            if state.step != self._saved_step:
                await self._save(state)
        except TrimtabError as error:
            for future in asked:
                if not future.done():
                    future.set_exception(TrimtabError(str(error)))
            raise
        for future in asked:
            if not future.done():
                future.set_result(self._board.checkpoint)

    async def _save(self, state: TrainingState) -> None:
        self._board.activity = "saving a checkpoint"
        started = time.monotonic()
        path = await asyncio.to_thread(
            checkpoint.begin,
            self.uri,
            state.step,
            identity=self._job.training_identity,
            attempt=self._job.attempt,
        )
        try:
            async with self._actor.lock:
                await self._actor.save(str(path / "actor"))
        except BaseException:
            checkpoint.abandon(path)
            raise
        await asyncio.to_thread(
            checkpoint.commit,
            path,
            step=state.step,
            identity=self._job.training_identity,
            attempt=self._job.attempt,
            coordinator_state=state.to_json(),
        )
        await asyncio.to_thread(
            checkpoint.prune,
            self.uri,
            self._spec.keep,
            identity=self._job.training_identity,
            committed=path,
        )
        self.last_save_s = time.monotonic() - started
        self._note(str(path), state.step)
        log.info("checkpoint of step %d in %.1f s: %s", state.step, self.last_save_s, path)

    def _note(self, path: str, step: int) -> None:
        self._saved_step = step
        self._board.checkpoint = (path, step)
