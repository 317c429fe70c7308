"""The built-in reward functions.

Each `name(**arguments)` checks its arguments once and returns the function that scores responses; it
runs in a reward worker process. What a row lacks is raised, and costs that sample. docs/rewards.md
shows each with an example; `BUILTINS` at the end is the list that `spec.rewards` can name.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, validate_call

from trimtab.optional import import_optional

Fields = Mapping[str, Any]

NUMBER = re.compile(
    r"(?<![\w.])(?:(?<!\))[-+])?"  # a sign, unless it stands behind a number or bracket, as an operator
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+|(?=\.[0-9]))(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
)


class RewardFunction(Protocol):
    """Scores one response. `fields` is the row of the dataset, as JSON values."""

    def __call__(self, *, prompt: str, response: str, fields: Fields) -> Any:
        """A number, or named numbers that are summed; an awaitable of either."""
        ...


class Extractor:
    """The part of a response that counts: the last match of a regular expression, or all of it."""

    def __init__(self, pattern: str | None) -> None:
        self._pattern = None if pattern is None else compile_pattern(pattern, "extract", re.DOTALL)

    def __call__(self, response: str) -> str | None:
        """Group 1 of the last match (the whole match where there is no group); None without a match."""
        if self._pattern is None:
            return response
        matches = list(self._pattern.finditer(response))
        if not matches:
            return None
        return matches[-1][1 if self._pattern.groups else 0]


def compile_pattern(pattern: str, argument: str, flags: int = 0) -> re.Pattern[str]:
    """Compile, or say which argument is no regular expression."""
    try:
        return re.compile(pattern, flags)
    except re.error as error:
        raise ValueError(f"{argument}: {pattern!r} is not a regular expression: {error}") from None


def field_value(fields: Fields, name: str) -> Any:
    """The row's field; `LookupError` says what the row has instead."""
    if fields.get(name) is None:
        raise LookupError(f"the row has no field {name!r} (it has: {', '.join(fields) or 'none'})")
    return fields[name]


def find_number(text: str) -> float | None:
    """The last number in a text: 1,234.5, -3, .5, 1e-3."""
    value = None
    for match in NUMBER.finditer(text.replace("\u2212", "-")):
        value = float(match[0].replace(",", ""))
    return value if value is not None and math.isfinite(value) else None


@validate_call
def exact_match(
    *, field: str = "answer", extract: str | None = None, ignore_case: bool = False
) -> RewardFunction:
    """1 where the response, without surrounding white space, is the row's answer (or one of a list).

    `field`: the row's field with the answer. `extract`: regular expression; its last match in the
    response is compared instead. `ignore_case`: whether case is disregarded.
    """
    extractor = Extractor(extract)

    def normalize(text: Any) -> str:
        plain = str(text).strip()
        return plain.casefold() if ignore_case else plain

    def score(*, prompt: str, response: str, fields: Fields) -> float:
        answer = field_value(fields, field)
        found = extractor(response)
        accepted = answer if isinstance(answer, list) else [answer]
        return float(found is not None and normalize(found) in map(normalize, accepted))

    return score


@validate_call
def numeric_match(
    *,
    field: str = "answer",
    extract: str | None = None,
    absolute_tolerance: Annotated[float, Field(ge=0)] = 1e-6,
    relative_tolerance: Annotated[float, Field(ge=0)] = 0.0,
) -> RewardFunction:
    """1 where the last number in the response is the row's answer.

    `field`: the row's field with the answer, a number or text whose last number counts. `extract`:
    regular expression; the number is looked for in its last match. Equal means that the two differ by at
    most `absolute_tolerance` or `relative_tolerance` times the answer, whichever is larger.
    """
    extractor = Extractor(extract)

    def score(*, prompt: str, response: str, fields: Fields) -> float:
        answer = field_value(fields, field)
        wanted = float(answer) if isinstance(answer, int | float) else find_number(str(answer))
        if wanted is None:
            raise ValueError(f"the row's field {field!r} has no number: {answer!r}")
        found = find_number(extractor(response) or "")
        if found is None:
            return 0.0
        return float(abs(found - wanted) <= max(absolute_tolerance, relative_tolerance * abs(wanted)))

    return score


@validate_call
def regex_match(*, pattern: str, whole: bool = False, ignore_case: bool = False) -> RewardFunction:
    """1 where a regular expression matches.

    `pattern`: the expression; `.` matches line ends too. `whole`: whether it must match the whole
    response rather than a part. `ignore_case`: whether case is disregarded.
    """
    expression = compile_pattern(pattern, "pattern", re.DOTALL | (re.IGNORECASE if ignore_case else 0))

    def score(*, prompt: str, response: str, fields: Fields) -> float:
        return float((expression.fullmatch if whole else expression.search)(response) is not None)

    return score


@validate_call
def length(
    *,
    unit: Literal["characters", "words"] = "words",
    minimum: Annotated[int, Field(ge=0)] = 0,
    maximum: Annotated[int, Field(ge=0)] | None = None,
    slack: Annotated[int, Field(ge=0)] = 0,
) -> RewardFunction:
    """1 where the response's length is within bounds, falling to 0 over `slack` beyond them.

    `unit`: characters or words. `minimum`, `maximum`: the bounds (no upper one by default). `slack`:
    length beyond a bound over which the value falls linearly; 0 is a hard edge.
    """
    if maximum is None and minimum == 0:
        raise ValueError("minimum or maximum must be given")
    if maximum is not None and maximum < minimum:
        raise ValueError(f"maximum ({maximum}) is below minimum ({minimum})")

    def score(*, prompt: str, response: str, fields: Fields) -> float:
        size = len(response) if unit == "characters" else len(response.split())
        beyond = max(minimum - size, 0 if maximum is None else size - maximum, 0)
        return max(0.0, 1.0 - beyond / slack) if slack else float(beyond == 0)

    return score


@validate_call
def format_tags(
    *, tags: Annotated[list[str], Field(min_length=1)] | None = None, pattern: str | None = None
) -> RewardFunction:
    """1 where the response has the wanted shape.

    Either `tags`: names of XML-like tags, each of which must appear exactly once, in this order, with
    nothing but white space between, before and after them; or `pattern`: a regular expression that the
    whole response must match.
    """
    if (tags is None) == (pattern is None):
        raise ValueError("give either tags or pattern")
    if tags is None:
        assert pattern is not None
        return regex_match(pattern=pattern, whole=True)
    for tag in tags:
        if not re.fullmatch(r"[\w-]+", tag):
            raise ValueError(f"tags: {tag!r} is not a tag's name; give it without angle brackets")
    shape = re.compile(r"\s*" + r"\s*".join(f"<{tag}>.*?</{tag}>" for tag in tags) + r"\s*", re.DOTALL)
    marks = [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]

    def score(*, prompt: str, response: str, fields: Fields) -> float:
        once = all(response.count(mark) == 1 for mark in marks)
        return float(once and shape.fullmatch(response) is not None)

    return score


@validate_call
def math_verify(*, field: str = "answer", extract: str | None = None) -> RewardFunction:
    r"""1 where the response's answer is mathematically equal to the row's (library math-verify).

    Finds the answer as LaTeX (`\boxed{...}` first) or as an expression. `field`: the row's field with the
    right answer. `extract`: regular expression; the answer is looked for in its last match.
    """
    library = import_optional("math_verify", field="math_verify")
    extractor = Extractor(extract)

    def score(*, prompt: str, response: str, fields: Fields) -> float:
        answer = str(field_value(fields, field))
        gold = library.parse(answer) or library.parse(f"${answer}$")
        if not gold:
            raise ValueError(f"the row's field {field!r} is not a mathematical expression: {answer!r}")
        found = extractor(response)
        return float(found is not None and library.verify(gold, library.parse(found)))

    return score


@validate_call
def reasoning_gym(*, answer_tag: str | None = "answer") -> RewardFunction:
    """The task's own scorer, for rows of a `reasoningGym` data source; between 0 and 1.

    `answer_tag`: the answer is what stands between the last such tags, where there are any, else the
    whole response; null for always the whole.
    """
    library = import_optional("reasoning_gym", field="reasoning_gym")
    extractor = Extractor(None if answer_tag is None else f"<{answer_tag}>(.*?)</{answer_tag}>")
    scorers: dict[str, Callable[..., float]] = {}

    def score(*, prompt: str, response: str, fields: Fields) -> float:
        task = field_value(field_value(fields, "metadata"), "source_dataset")
        if task not in scorers:
            scorers[task] = library.get_score_answer_fn(task)
        answer = extractor(response)
        return float(
            scorers[task](answer=(response if answer is None else answer).strip(), entry=dict(fields))
        )

    return score


BUILTINS: Mapping[str, Callable[..., RewardFunction]] = {
    "exact_match": exact_match,
    "numeric_match": numeric_match,
    "regex_match": regex_match,
    "length": length,
    "format": format_tags,
    "math_verify": math_verify,
    "reasoning_gym": reasoning_gym,
}
