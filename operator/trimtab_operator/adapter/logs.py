"""The operator's log: one JSON object a line on standard error, with the job and the role it is about.

Whoever works on a job enters `about(job)`; every line that is logged inside, by whatever module, names it.
A line may name a role itself: `logger.info(..., extra={"role": "rollout"})`.
"""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, TextIO

LEVELS: Final = ("debug", "info", "warning", "error")
_job: ContextVar[str] = ContextVar("job", default="")


@contextlib.contextmanager
def about(job: str) -> Iterator[None]:
    """Lines logged inside are about this job (`namespace/name`)."""
    token = _job.set(job)
    try:
        yield
    finally:
        _job.reset(token)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "job": getattr(record, "job", "") or _job.get(),
            "role": getattr(record, "role", ""),
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def set_up_logs(level: str, stream: TextIO | None = None) -> None:
    """Send every logger of the process there; kopf says what is wrong, and no more."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("kopf", "aiohttp.access", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It warns that it takes no signals in a thread, which is why it is given one.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
