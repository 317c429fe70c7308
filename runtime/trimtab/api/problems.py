"""What is wrong with a job: a problem has a path in the file's names, the value, and what is allowed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.errors import UserError


@dataclass(frozen=True)
class Problem:
    """One mistake in a job."""

    path: str
    """Where, in the names of the file: `spec.rewards[0].weight`. Empty: the file as a whole."""
    value: Any
    """What stands there; None where nothing does."""
    message: str
    """What is wrong, and what is allowed."""
    line: int | None = None
    """Line of the file, from 1; None where it comes from no file."""

    def __str__(self) -> str:
        text = f"{self.path}: {self.message}" if self.path else self.message
        return text if self.line is None else f"line {self.line}: {text}"


class JobError(UserError):
    """A job that is not valid; holds every problem at once."""

    def __init__(self, problems: Sequence[Problem], *, source: str = "the job") -> None:
        self.problems: list[Problem] = list(problems)
        self.source = source
        count = len(self.problems)
        head = f"{source}: {count} problem{'' if count == 1 else 's'}"
        super().__init__("\n".join([head, *(f"  {problem}" for problem in self.problems)]))
