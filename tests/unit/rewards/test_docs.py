"""docs/rewards.md: every block is a valid reward list, and the functions of one's own score."""

import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from trimtab.api.rewards import RewardSpec
from trimtab.rewards import check_rewards
from trimtab.rewards.functions import BUILTINS

PAGE = Path(__file__).parents[3].joinpath("docs", "rewards.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_every_yaml_block_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "my_rewards.py").write_text("\n\n".join(blocks("python")))
    rewards = [entry for block in blocks("yaml") for entry in YAML(typ="safe").load(block)]
    assert {entry["function"] for entry in rewards} == {*BUILTINS, "my_rewards:score"}
    check_rewards([RewardSpec.model_validate(entry) for entry in rewards], [tmp_path], tmp_path)


def test_functions_of_ones_own_score_as_said() -> None:
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block, names)  # noqa: S102
    row = {"prompt": "", "response": "5", "fields": {"answer": "5"}}
    assert names["score"](**row) == 1.0
    assert asyncio.run(names["parts"](**row)) == {"correct": 1.0, "short": 1.0}


@pytest.mark.parametrize("name", list(BUILTINS))
def test_every_argument_is_documented(name: str) -> None:
    section = re.search(rf"^### {name}\n(.*?)(?=^##)", PAGE, re.DOTALL | re.MULTILINE)
    assert section is not None
    for argument in inspect.signature(BUILTINS[name]).parameters:
        assert f"`{argument}`" in section[1], argument
