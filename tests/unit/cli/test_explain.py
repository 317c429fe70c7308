import pytest

from trimtab.api.fields import walk
from trimtab.cli.explain import explain
from trimtab.cli.main import main
from trimtab.errors import UserError


def text_of(path, **options):
    return "\n".join(explain(path, **options))


def test_field_shows_type_bounds_default_and_meaning():
    text = text_of("spec.algorithm.grpo.groupSize")
    assert "FIELD:    spec.algorithm.grpo.groupSize <integer>" in text
    assert "BOUNDS:   from 2 to 1024" in text
    assert "DEFAULT:  8" in text
    assert "Responses per prompt" in text
    assert "FIELDS:" not in text


def test_object_lists_its_fields():
    text = text_of("spec.training.optimizer")
    assert "learningRate <number>  above 0 and at most 1; default 1e-06" in text
    assert "schedule <object>" in text


def test_list_shows_the_fields_of_an_item():
    assert "function <string>" in text_of("spec.rewards")
    assert "Each item: One reward function" in text_of("spec.rewards")


def test_path_may_leave_out_spec():
    assert text_of("training.optimizer") == text_of("spec.training.optimizer")


def test_size_default_is_a_quantity():
    assert "DEFAULT:  64Mi" in text_of("spec.weightSync.bucketBytes")


def test_derived_default_says_so():
    assert "DEFAULT:  from other fields" in text_of("spec.training.miniBatchPrompts")


def test_root_recursive_has_every_field():
    text = text_of("", recursive=True)
    for path, _ in walk():
        assert f" {path.rsplit('.', 1)[-1]} <" in text


def test_every_path_can_be_explained():
    for name, _ in walk():
        path = name.replace("[]", "")
        assert f"FIELD:    {path} <" in text_of(path)


def test_unknown_path_suggests_the_nearest():
    with pytest.raises(
        UserError, match=r"no field spec\.trainng\.steps; did you mean spec\.training\.steps\?"
    ):
        text_of("spec.trainng.steps")


def test_unknown_path_on_the_command_line_exits_64(capsys):
    assert main(["explain", "spec.zzz"]) == 64
    captured = capsys.readouterr()
    assert captured.err.startswith("error: the job has no field spec.zzz")
    assert captured.out == ""
