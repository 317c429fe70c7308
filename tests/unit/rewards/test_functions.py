"""The built-in reward functions on small answers, and their arguments."""

from typing import Any

import pytest

from trimtab.errors import UserError
from trimtab.rewards.calls import RewardCall
from trimtab.rewards.functions import BUILTINS, find_number
from trimtab.rewards.worker import build_function


def score(function: str, response: str, fields: dict[str, Any] | None = None, **arguments: Any) -> Any:
    scorer = build_function(RewardCall(name=function, function=function, arguments=arguments), [])
    return scorer(prompt="", response=response, fields=fields or {})


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("the answer is 42.", 42.0),
        ("12-5=7", 7.0),
        ("5-3", 3.0),
        ("x=-3", -3.0),
        ("x = \u22123.5", -3.5),
        ("$1,234,567.89 in all", 1234567.89),
        ("between 3,4", 4.0),
        ("#### 18", 18.0),
        ("1e-3", 0.001),
        ("about .5", 0.5),
        ("version v2", None),
        ("none", None),
        ("1e999", None),
    ],
)
def test_find_number_takes_the_last(text: str, number: float | None) -> None:
    assert find_number(text) == number


@pytest.mark.parametrize(
    ("function", "response", "fields", "arguments", "value"),
    [
        ("exact_match", " 42\n", {"answer": "42"}, {}, 1.0),
        ("exact_match", "42", {"answer": 42}, {}, 1.0),
        ("exact_match", "The 42", {"answer": "42"}, {}, 0.0),
        ("exact_match", "PARIS", {"answer": ["paris", "Paris, France"]}, {"ignore_case": True}, 1.0),
        (
            "exact_match",
            "so <a>1</a> no <a>2</a>",
            {"gold": "2"},
            {"field": "gold", "extract": "<a>(.*?)</a>"},
            1.0,
        ),
        ("exact_match", "no tag", {"answer": "2"}, {"extract": "<a>(.*?)</a>"}, 0.0),
        ("numeric_match", "that makes 1,000 dollars", {"answer": "#### 1000"}, {}, 1.0),
        ("numeric_match", "3.1", {"answer": 3.0}, {}, 0.0),
        ("numeric_match", "3.1", {"answer": 3.0}, {"relative_tolerance": 0.1}, 1.0),
        ("numeric_match", "I do not know", {"answer": 3}, {}, 0.0),
        ("numeric_match", "= 7, or 8", {"answer": 7}, {"extract": "= [0-9]+"}, 1.0),
        ("regex_match", "yes\nno", {}, {"pattern": "YES.no", "ignore_case": True}, 1.0),
        ("regex_match", "yes no", {}, {"pattern": "yes", "whole": True}, 0.0),
        ("length", "one two three", {}, {"maximum": 3}, 1.0),
        ("length", "one two three four", {}, {"maximum": 3}, 0.0),
        ("length", "a b c d e", {}, {"maximum": 3, "slack": 4}, 0.5),
        ("length", "abc", {}, {"unit": "characters", "minimum": 5, "slack": 4}, 0.5),
        ("format", "<think>a</think>\n<answer>b</answer>\n", {}, {"tags": ["think", "answer"]}, 1.0),
        ("format", "<think>a</think> and <answer>b</answer>", {}, {"tags": ["think", "answer"]}, 0.0),
        (
            "format",
            "<think>a</think><think>a</think><answer>b</answer>",
            {},
            {"tags": ["think", "answer"]},
            0.0,
        ),
        ("format", "Answer: 4", {}, {"pattern": r"Answer: \d+"}, 1.0),
        ("math_verify", r"so it is $\boxed{\frac{1}{2}}$", {"answer": "0.5"}, {}, 1.0),
        ("math_verify", "the answer is $x^2+2x+1$", {"answer": "(x+1)^2"}, {}, 1.0),
        ("math_verify", "the answer is 3", {"answer": "4"}, {}, 0.0),
    ],
)
def test_builtin_values(
    function: str, response: str, fields: dict[str, Any], arguments: dict[str, Any], value: float
) -> None:
    assert score(function, response, fields, **arguments) == pytest.approx(value)


@pytest.mark.parametrize("task", ["basic_arithmetic", "leg_counting", "countdown", "sudoku", "word_ladder"])
def test_reasoning_gym_scores_its_own_answers_after_a_json_round_trip(task: str) -> None:
    import json

    from trimtab.data.sources import json_fields
    from trimtab.optional import import_optional

    gym = import_optional("reasoning_gym", field="test")
    entry = gym.create_dataset(task, size=3, seed=1)[2]
    fields = json.loads(json.dumps(json_fields(entry)))
    answer = gym.create_dataset(task, size=3, seed=1).score_answer(entry["answer"], entry)
    assert score("reasoning_gym", f"well, <answer> {entry['answer']} </answer>", fields) == answer
    assert score("reasoning_gym", "no idea", fields) < 1.0


@pytest.mark.parametrize(
    ("function", "fields", "message"),
    [
        ("exact_match", {"solution": "1"}, r"no field 'answer' \(it has: solution\)"),
        ("numeric_match", {"answer": "none"}, "has no number: 'none'"),
        ("reasoning_gym", {"answer": "1"}, "no field 'metadata'"),
    ],
)
def test_builtin_on_a_row_that_lacks_what_it_needs_raises(
    function: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises((LookupError, ValueError), match=message):
        score(function, "1", fields)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("exact_match", {"feild": "x"}, "exact_match: feild: Unexpected keyword argument"),
        ("exact_match", {"extract": "("}, r"extract: '\(' is not a regular expression"),
        (
            "numeric_match",
            {"absolute_tolerance": -1},
            "absolute_tolerance: Input should be greater than or equal to 0",
        ),
        ("regex_match", {}, "pattern: Missing required"),
        ("length", {}, "minimum or maximum must be given"),
        ("length", {"minimum": 3, "maximum": 2}, r"maximum \(2\) is below minimum \(3\)"),
        ("length", {"maximum": 3, "unit": "tokens"}, "unit: Input should be 'characters' or 'words'"),
        ("format", {}, "give either tags or pattern"),
        ("format", {"tags": ["<think>"]}, "without angle brackets"),
        ("exact_mach", {}, "did you mean 'exact_match'"),
        ("zzz", {}, f"built in are {', '.join(BUILTINS)}"),
    ],
)
def test_arguments_that_are_wrong_are_named(function: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        build_function(
            RewardCall(name="r", function=function, arguments=arguments, path="spec.rewards[2]"), []
        )
    assert str(raised.value).startswith("spec.rewards[2].")
