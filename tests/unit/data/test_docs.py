"""docs/data.md: its blocks run, and its rows are rows."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trimtab.data import PromptDataset

PAGE = Path(__file__).parents[3].joinpath("docs", "data.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_python_blocks_run() -> None:
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block, names)  # noqa: S102
    assert names["Squares"](4)[3] == {"prompt": "3 * 3 = ", "answer": 9}


def test_json_rows_are_read(tmp_path: Path, open_source: Callable[..., PromptDataset]) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(blocks("json")))
    dataset = open_source({"path": "rows.jsonl"})
    assert len(dataset) == len([json.loads(line) for line in blocks("json")[0].splitlines()])
    assert dataset[1].prompt_text == "<bos><|system|>Be brief.<|user|>What is 2+3?<|assistant|>"
