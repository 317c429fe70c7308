"""check_rewards: what a user gets to read before anything has started."""

import re
from pathlib import Path
from typing import Any

import pytest

from trimtab.api.rewards import RewardSpec
from trimtab.errors import UserError
from trimtab.rewards import check_rewards


def specs(*rewards: dict[str, Any]) -> list[RewardSpec]:
    return [RewardSpec.model_validate(reward) for reward in rewards]


def test_functions_that_can_be_used_pass(code_dir: Path) -> None:
    good = {"function": "user_rewards:good", "arguments": {"bonus": 1}}
    check_rewards(specs({"function": "exact_match"}, good), [Path("code")], code_dir.parent)


def test_every_problem_is_named_at_once(code_dir: Path) -> None:
    wrong = specs(
        {"function": "exact_match"},
        {"function": "exact_mach"},
        {"function": "user_rewards:good", "arguments": {"bonsu": 1}},
        {"function": "user_rewards:os"},
        {"function": "no_such_rewards:score"},
        {"function": "broken_rewards:score"},
    )
    with pytest.raises(UserError) as raised:
        check_rewards(wrong, [code_dir], code_dir.parent, path="spec.validation.rewards")
    text = str(raised.value)
    for pattern in (
        r"^spec\.validation\.rewards\[1\]\.function: .*did you mean 'exact_match'",
        r"^spec\.validation\.rewards\[2\]\.arguments: user_rewards:good cannot be called .*bonsu",
        r"^spec\.validation\.rewards\[3\]\.function: 'user_rewards:os' is a module, not a function",
        r"^spec\.validation\.rewards\[4\]\.function: .*no module 'no_such_rewards' \(looked in .*code",
        r"^spec\.validation\.rewards\[5\]\.function: cannot import 'broken_rewards:score'",
        r"KeyError: 'NO_SUCH_VARIABLE_HERE'",
    ):
        assert re.search(pattern, text, re.MULTILINE), (pattern, text)
    assert "rewards[0]" not in text


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("endless_rewards:score", "importing endless_rewards:score took longer than 2 s"),
        ("leaving_rewards:score", r"(?s)ended with code 5 while it imported leaving_rewards:score.*bye"),
    ],
)
def test_module_that_hangs_or_exits_is_a_clear_message(code_dir: Path, function: str, message: str) -> None:
    timeout_s = 2.0 if "endless" in function else 60.0
    with pytest.raises(UserError, match=message):
        check_rewards(specs({"function": function}), [code_dir], code_dir.parent, timeout_s=timeout_s)


def test_code_that_a_cluster_puts_on_the_python_path_is_found_or_looked_for_there(
    code_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(code_dir))
    check_rewards(specs({"function": "user_rewards:good", "arguments": {"bonus": 1}}), [], code_dir.parent)
    with pytest.raises(
        UserError, match=rf"no module 'no_such_rewards' \(looked in {re.escape(str(code_dir))},"
    ):
        check_rewards(specs({"function": "no_such_rewards:score"}), [], code_dir.parent)
