"""Now, and when to look again: every deadline of a decision is asked for here, so that none is forgotten."""

from datetime import datetime, timedelta


class Clock:
    """The time of one decision. It stands still, in whole seconds as Kubernetes writes them."""

    def __init__(self, now: datetime) -> None:
        self._exact = now
        self.now = now.replace(microsecond=0)
        self._next: datetime | None = None

    def passed(self, at: datetime) -> bool:
        """Whether a time has come; where not, the job is looked at again then."""
        if self.now >= at:
            return True
        if self._next is None or at < self._next:
            self._next = at
        return False

    def been(self, seconds: float, since: datetime) -> bool:
        """Whether so many seconds have gone by since a time; where not, look again when they have."""
        return self.passed(since + timedelta(seconds=seconds))

    def soon(self, seconds: float) -> None:
        """Look again after this, whatever happens."""
        self.been(seconds, self.now)

    def after(self, seconds: float) -> datetime:
        """The time so many seconds from now."""
        return self.now + timedelta(seconds=seconds)

    @property
    def requeue_after_s(self) -> float | None:
        """Until the first time that was asked for and has not come; None: none was."""
        return None if self._next is None else max(0.0, (self._next - self._exact).total_seconds())
