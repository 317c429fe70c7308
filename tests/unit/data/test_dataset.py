"""open_dataset: every source, prompts as text and as messages, the length filter, and mistakes by name."""

import json
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.data import Lease, PromptDataset
from trimtab.errors import UserError

Open = Callable[..., PromptDataset]


def write_jsonl(path: Path, rows: Sequence[Any]) -> dict[str, str]:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return {"path": path.name}


ROWS = [{"prompt": "1+1=", "answer": "2", "level": 1}, {"prompt": "20+3=", "answer": "23", "level": 2}]


def test_jsonl_text_goes_through_the_chat_template(tmp_path: Path, open_source: Open, tokenizer: Any) -> None:
    dataset = open_source(write_jsonl(tmp_path / "train.jsonl", ROWS))
    assert len(dataset) == 2
    assert dataset[0].prompt_text == "<bos><|user|>1+1=<|assistant|>"
    assert dataset[0].prompt_ids.dtype == np.int32
    assert dataset[0].prompt_ids.tolist() == tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+1="}], add_generation_prompt=True, return_dict=False
    )
    assert dataset[0].fields == ROWS[0]
    assert dataset.prompt_lengths().tolist() == [7, 8]


def test_jsonl_messages_and_system_prompt(tmp_path: Path, open_source: Open) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": "hi"}]},
        {"prompt": [{"role": "system", "content": "own"}, {"role": "user", "content": "hi"}]},
    ]
    dataset = open_source(write_jsonl(tmp_path / "a.jsonl", rows), systemPrompt="Be brief.")
    assert dataset[0].prompt_text == "<bos><|system|>Be brief.<|user|>hi<|assistant|>"
    assert dataset[1].prompt_text == "<bos><|system|>own<|user|>hi<|assistant|>"


def test_template_arguments_reach_the_template(tmp_path: Path, open_source: Open) -> None:
    from trimtab.testing.tiny_model import make_tokenizer

    thinking = make_tokenizer(chat_template="{% if think %}T{% endif %}{{ messages[0]['content'] }}")
    source = write_jsonl(tmp_path / "a.jsonl", ROWS)
    dataset = open_source(source, tokenizer=thinking, chatTemplateArguments={"think": True})
    assert dataset[0].prompt_text == "T1+1="


def test_plain_text_without_a_template_and_by_choice(
    tmp_path: Path, open_source: Open, tokenizer: Any, plain_tokenizer: Any
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ROWS)
    assert open_source(source, tokenizer=plain_tokenizer)[0].prompt_text == "1+1="
    assert (
        open_source(source, applyChatTemplate="never")[0].prompt_ids.tolist()
        == tokenizer("1+1=")["input_ids"]
    )


def test_sample_of_a_lease_carries_epoch_and_row(tmp_path: Path, open_source: Open) -> None:
    sample = open_source(write_jsonl(tmp_path / "a.jsonl", ROWS)).sample(Lease(3, 1))
    assert (sample.group_id, sample.fields["answer"]) == ("3/1", "23")


def test_overlong_prompts_are_left_out_and_counted(
    tmp_path: Path, open_source: Open, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [ROWS[1], ROWS[0], ROWS[1]])
    with caplog.at_level(logging.WARNING):
        dataset = open_source(source, maxPromptTokens=7)
    assert (len(dataset), dataset.num_filtered) == (1, 2)
    assert dataset[0].fields["answer"] == "2"
    assert "left out 2 of 3 prompts" in caplog.text


def test_parquet_and_saved_hugging_face_give_the_same_rows(tmp_path: Path, open_source: Open) -> None:
    import datasets
    import pyarrow
    from pyarrow import parquet

    rows = [
        {**row, "when": datetime(2026, 1, 2), "blob": b"x", "scores": [1.5, float("nan")]} for row in ROWS
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    saved = datasets.Dataset.from_list(rows)
    saved.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"test": saved}).save_to_disk(str(tmp_path / "splits"))
    for path in ("a.parquet", "saved", "splits"):
        dataset = open_source({"path": path})
        assert dataset[1].prompt_text == "<bos><|user|>20+3=<|assistant|>"
        assert dataset[1].fields == {**ROWS[1], "when": "2026-01-02T00:00:00", "scores": [1.5, None]}


def test_parquet_messages_of_unequal_keys(tmp_path: Path, open_source: Open) -> None:
    import pyarrow
    from pyarrow import parquet

    messages = [{"role": "system", "content": "s", "name": "n"}, {"role": "user", "content": "hi"}]
    parquet.write_table(pyarrow.Table.from_pylist([{"prompt": messages}]), tmp_path / "a.parquet")
    assert open_source({"path": "a.parquet"})[0].prompt_text == "<bos><|system|>s<|user|>hi<|assistant|>"


def test_folder_of_jsonl_files_is_read_in_the_order_of_names(tmp_path: Path, open_source: Open) -> None:
    (tmp_path / "rows").mkdir()
    write_jsonl(tmp_path / "rows" / "b.jsonl", ROWS[1:])
    write_jsonl(tmp_path / "rows" / "a.jsonl", ROWS[:1])
    dataset = open_source({"path": "rows", "format": "jsonl"})
    assert [dataset[i].fields["answer"] for i in range(2)] == ["2", "23"]


def test_hub_loader_reads_a_local_folder_by_split(
    tmp_path: Path, open_source: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "repo").mkdir()
    write_jsonl(tmp_path / "repo" / "train.jsonl", ROWS)
    write_jsonl(tmp_path / "repo" / "test.jsonl", ROWS[:1])
    source = {"huggingFace": {"name": str(tmp_path / "repo"), "split": "test"}}
    assert len(open_source(source)) == 1
    assert len(open_source({"path": "repo", "split": "train"})) == 2
    with pytest.raises(UserError, match=r"data\.train\.huggingFace.*nope"):
        open_source({"huggingFace": {"name": str(tmp_path / "repo"), "split": "nope"}})


def test_reasoning_gym_is_the_same_for_the_same_seed(open_source: Open) -> None:
    source = {"reasoningGym": {"task": "basic_arithmetic", "size": 5, "seed": 3, "config": {"max_terms": 2}}}
    first, second = open_source(source), open_source(source)
    assert len(first) == 5
    assert [first[i].prompt_text for i in range(5)] == [second[i].prompt_text for i in range(5)]
    assert first[0].fields["metadata"]["source_dataset"] == "basic_arithmetic"
    assert json.loads(json.dumps(first[0].fields)) == first[0].fields


def test_python_class_from_the_users_code(tmp_path: Path, open_source: Open) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "squares_data.py").write_text(
        "class Squares:\n"
        "    def __init__(self, size): self.size = size\n"
        "    def __len__(self): return self.size\n"
        "    def __getitem__(self, i): return {'prompt': f'{i}*{i}=', 'answer': i * i}\n"
    )
    dataset = open_source({"python": {"className": "squares_data:Squares", "arguments": {"size": 4}}})
    assert dataset[3].fields["answer"] == 9
    with pytest.raises(UserError, match=r"data\.train\.python\.className.*missing 1 required.*size"):
        open_source({"python": {"className": "squares_data:Squares"}})
    with pytest.raises(UserError, match="has no 'Cubes'; it has: Squares"):
        open_source({"python": {"className": "squares_data:Cubes"}})


def test_python_class_whose_module_fails_shows_the_users_traceback(tmp_path: Path, open_source: Open) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "broken_data.py").write_text("import os\nvalue = 1 / 0\n")
    with pytest.raises(UserError, match=r"(?s)broken_data\.py.*line 2.*ZeroDivisionError"):
        open_source({"python": {"className": "broken_data:Data"}})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a"}\n{"prompt": \n', r"a\.jsonl:2: not JSON: .* at column"),
        (b'{"prompt": "a"}\n\n["a"]\n', r"a\.jsonl:3: each line must be a JSON object"),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}\n', r"a\.jsonl:2: not UTF-8 \(byte 0xff at column 13\)"),
        (
            b'{"question": "a", "answer": 1}\n',
            r"a\.jsonl:1: no field 'prompt' \(the row has: question, answer\).*data\.promptField",
        ),
        (b'{"prompt": 7}\n', r"a\.jsonl:1: a prompt must be text or a list of messages .*int: 7"),
        (b'{"prompt": [{"role": "user"}]}\n', r"a\.jsonl:1: a prompt must be text or a list of messages"),
        (b"", r"data\.train: the dataset is empty"),
        (b'{"prompt": "long enough"}\n', r"all 1 prompts are longer than spec\.data\.maxPromptTokens \(6\)"),
    ],
    ids=[
        "bad JSON",
        "not an object",
        "not UTF-8",
        "no prompt",
        "number",
        "no content",
        "empty file",
        "all too long",
    ],
)
def test_mistakes_in_the_rows_name_file_and_line(
    tmp_path: Path, open_source: Open, content: bytes, message: str
) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=message) as raised:
        open_source({"path": "a.jsonl"}, maxPromptTokens=6)
    assert str(raised.value).startswith("spec.data.train")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"path": "absent.jsonl"}, r"data\.train\.path: 'absent\.jsonl' does not exist"),
        ({"path": "notes.txt"}, r"data\.train\.path: cannot tell the format.*data\.train\.format"),
        ({"path": "notes.txt", "format": "parquet"}, r"notes\.txt: not readable as Parquet"),
        ({"path": ".", "format": "jsonl"}, r"a folder without a file named"),
        (
            {"reasoningGym": {"task": "basic_aritmetic"}},
            r"reasoningGym\.task: .*did you mean basic_arithmetic",
        ),
        (
            {"reasoningGym": {"task": "basic_arithmetic", "config": {"nope": 1}}},
            r"reasoningGym\.config: .*nope",
        ),
        (
            {"huggingFace": {"name": "nobody/nothing"}},
            r"data\.train\.huggingFace: cannot load the dataset 'nobody/nothing'",
        ),
        (
            {"python": {"className": "no_such_module:Data"}},
            r"there is no module 'no_such_module' \(looked in .*code",
        ),
    ],
    ids=[
        "no file",
        "unknown ending",
        "not Parquet",
        "empty folder",
        "unknown task",
        "bad task option",
        "no hub",
        "no module",
    ],
)
def test_mistakes_in_the_source_are_named(
    tmp_path: Path, open_source: Open, source: dict[str, Any], message: str
) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match=message):
        open_source(source)


def test_overlong_as_error_names_the_row(tmp_path: Path, open_source: Open) -> None:
    with pytest.raises(
        UserError, match=r"a\.jsonl:2: the prompt has 8 tokens, more than spec\.data\.maxPromptTokens \(7\)"
    ):
        open_source(write_jsonl(tmp_path / "a.jsonl", ROWS), maxPromptTokens=7, overlongPrompts="error")


def test_messages_without_a_template_are_refused(
    tmp_path: Path, open_source: Open, plain_tokenizer: Any
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"prompt": [{"role": "user", "content": "hi"}]}])
    with pytest.raises(UserError, match=r"a\.jsonl:1: .*the tokenizer has no chat template.*chatTemplate"):
        open_source(source, tokenizer=plain_tokenizer)
    with pytest.raises(UserError, match=r"applyChatTemplate is 'never'"):
        open_source(source, applyChatTemplate="never")


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"applyChatTemplate": "always"}, "data.applyChatTemplate"),
        ({"systemPrompt": "x"}, "data.systemPrompt"),
        ({"chatTemplateArguments": {"x": 1}}, "data.chatTemplateArguments"),
    ],
    ids=["always", "system prompt", "arguments"],
)
def test_settings_that_need_a_template_are_refused_without_one(
    tmp_path: Path, open_source: Open, plain_tokenizer: Any, data: dict[str, Any], field: str
) -> None:
    with pytest.raises(UserError, match=field):
        open_source(write_jsonl(tmp_path / "a.jsonl", ROWS), tokenizer=plain_tokenizer, **data)


def test_template_that_refuses_roles_is_the_users_mistake(tmp_path: Path, open_source: Open) -> None:
    from trimtab.testing.tiny_model import make_tokenizer

    strict = make_tokenizer(chat_template="{{ raise_exception('no system role here') }}")
    with pytest.raises(
        UserError, match=r"a\.jsonl:1: the chat template refused.*roles: user.*no system role"
    ):
        open_source(write_jsonl(tmp_path / "a.jsonl", ROWS), tokenizer=strict)
