import json

import pytest

from trimtab.api.model import ModelSpec
from trimtab.engines.rollout.model_files import (
    ModelFacts,
    max_sequence_tokens,
    read_model_facts,
    resolve_model_path,
)
from trimtab.errors import UserError


def test_eos_ids_of_config_generation_config_and_tokenizer_are_all_taken(tiny_model_dir, tmp_path):
    config = json.loads((tiny_model_dir / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": 2}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    facts = read_model_facts(str(tmp_path), ModelSpec(path=str(tmp_path)), extra_eos=[9, None])
    assert facts.eos_token_ids == (2, 7, 9)
    assert facts.vocab_size == 128


def test_relative_path_starts_from_the_jobs_folder(tiny_model_dir):
    spec = ModelSpec(path=tiny_model_dir.name)
    assert resolve_model_path(spec, tiny_model_dir.parent) == str(tiny_model_dir)


def test_hub_id_stays_as_it_is(tmp_path):
    assert resolve_model_path(ModelSpec(path="some/model"), tmp_path) == "some/model"


@pytest.mark.parametrize("path", ["./missing", "/missing/model", "a/b/c"])
def test_missing_folder_names_field_and_value(tmp_path, path):
    with pytest.raises(UserError, match=rf"spec\.model\.path: the folder '{path}' does not exist"):
        resolve_model_path(ModelSpec(path=path), tmp_path)


def test_folder_without_a_model_says_what_it_must_be(tmp_path):
    (tmp_path / "m").mkdir()
    with pytest.raises(UserError, match=r"'m' has no config\.json"):
        resolve_model_path(ModelSpec(path="m"), tmp_path)


def test_unknown_hub_id_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="'no-such/model' cannot be loaded as a model"):
        read_model_facts("no-such/model", ModelSpec(path="no-such/model"))


def test_sequence_longer_than_the_model_names_the_fields():
    facts = ModelFacts("m", (2,), 128, 512)
    assert max_sequence_tokens(facts, 512, field="f") == 512
    with pytest.raises(
        UserError, match=r"f: 513 tokens .* positions for 512; lower spec\.data\.maxPromptTokens"
    ):
        max_sequence_tokens(facts, 513, field="f")
