"""`spec.rewards`: the functions that score a response."""

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from trimtab.api.base import Format, JsonObject, Model, Seconds


def _function_name(fields: dict[str, Any]) -> Any:
    return str(fields["function"]).rpartition(":")[2]


BUILT_IN_REWARDS = (
    "exact_match",
    "numeric_match",
    "regex_match",
    "length",
    "format",
    "math_verify",
    "reasoning_gym",
)
"""What `function` may name beside an import path; a test compares it with `trimtab.rewards`."""

_IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]*"
_DOTTED = rf"{_IDENTIFIER}(\.{_IDENTIFIER})*"


class RewardSpec(Model):
    """One reward function; a response's score is the weighted sum over all of them."""

    function: Annotated[
        str,
        StringConstraints(
            min_length=1,
            max_length=256,
            pattern=rf"^([a-z][a-z0-9_]*|{_DOTTED}:{_DOTTED})$",
        ),
        Format("the name of a built-in function such as exact_match, or package.module:name"),
    ]
    """A built-in function (exact_match, numeric_match, regex_match, length, format, math_verify,
    reasoning_gym), or `package.module:name` of the user's own, from `spec.code`."""
    name: Annotated[
        str,
        StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"),
        Format("at most 63 letters, digits, `_`, `.` and `-`"),
    ] = Field(default_factory=_function_name)
    """Name in metrics and reports; unique in the list. By default the function's."""
    weight: Annotated[float, Field(ge=-1_000_000, le=1_000_000)] = 1.0
    """Factor of its value in the score. 1 by default; a negative weight punishes."""
    arguments: JsonObject = Field(default_factory=dict)
    """Keyword arguments of the function. Empty by default: the function's own defaults."""
    timeout_seconds: Seconds = 30.0
    """Seconds that one call may take; one that takes longer costs that sample. 30 by default."""


RewardList = Annotated[tuple[RewardSpec, ...], Field(min_length=1, max_length=32)]
