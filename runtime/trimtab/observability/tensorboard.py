"""TensorBoard event files, written without torch.

Used by `writer`. TensorBoard's own writer queues events to a thread of its own and a flush waits for it,
so a step's scalars are on disk when `write` returns. The import takes about a second, hence on first use.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from trimtab.errors import UserError


class EventFiles:
    """Scalars of one run under `folder`; each start of a process adds a file."""

    def __init__(self, folder: Path, *, next_step: int) -> None:
        """Begin a file; TensorBoard forgets what older files hold at `next_step` and later."""
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise UserError(
                "spec.tracking.tensorboard: true, but the package 'tensorboard' is not installed: "
                "install trimtab[train], or set it to false"
            ) from error
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        self._start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._writer = EventFileWriter(str(folder))
        self.forget_from(next_step)

    def forget_from(self, step: int) -> None:
        """Have TensorBoard leave out what was written so far about `step` and later ones."""
        self._writer.add_event(self._event(wall_time=time.time(), step=step, session_log=self._start))
        self._writer.flush()

    def write(self, step: int, metrics: Mapping[str, float], *, wall_time: float) -> None:
        """Add a step's scalars; they are on disk when this returns."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        event = self._event(wall_time=wall_time, step=step, summary=self._summary(value=values))
        self._writer.add_event(event)
        self._writer.flush()

    def close(self) -> None:
        """End the writer's thread and close the file."""
        self._writer.close()
