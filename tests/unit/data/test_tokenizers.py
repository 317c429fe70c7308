"""load_tokenizer on real directories."""

from pathlib import Path

import pytest

from trimtab.api.model import ModelSpec
from trimtab.data import load_tokenizer
from trimtab.errors import UserError


def test_load_tokenizer_relative_path_and_own_template(tiny_model_dir: Path) -> None:
    spec = ModelSpec.model_validate({"path": tiny_model_dir.name, "tokenizer": {"chatTemplate": "{{ 'x' }}"}})
    tokenizer = load_tokenizer(spec, tiny_model_dir.parent)
    assert tokenizer.decode(tokenizer("12+3")["input_ids"]) == "12+3"
    assert tokenizer.chat_template == "{{ 'x' }}"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"path": "absent/model"}, r"model\.path: cannot load a tokenizer from 'absent/model'"),
        ({"path": ".", "tokenizer": {"path": "absent"}}, r"model\.tokenizer\.path: .*'absent'"),
        ({"path": "empty"}, r"model\.path: cannot load a tokenizer from 'empty'"),
        ({"path": "cut"}, r"model\.path: cannot load a tokenizer from 'cut'"),
    ],
    ids=["no model", "no tokenizer", "folder without a tokenizer", "truncated file"],
)
def test_load_tokenizer_absent_is_a_user_error(tmp_path: Path, spec: dict[str, object], message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "tokenizer.json").write_text('{"version": "1.0", "model": ')
    with pytest.raises(UserError, match=message):
        load_tokenizer(ModelSpec.model_validate(spec), tmp_path)
