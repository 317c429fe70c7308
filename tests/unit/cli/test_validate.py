import pytest

from trimtab.cli.init import load_presets
from trimtab.cli.main import main


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(load_presets()["grpo-small"], encoding="utf-8")
    return path


def test_valid_file_exits_0(job_file, capsys):
    assert main(["validate", str(job_file)]) == 0
    assert capsys.readouterr().out == f"{job_file}: valid (grpo-small)\n"


def test_wrong_file_exits_64_with_every_problem(job_file, capsys):
    text = job_file.read_text(encoding="utf-8")
    job_file.write_text(
        text.replace("steps: 20", "steps: 0").replace("seed: 0 ", "sead: 0 "), encoding="utf-8"
    )
    assert main(["validate", str(job_file)]) == 64
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0] == f"{job_file}: 2 problems"
    assert "spec.sead: unknown field; did you mean seed?" in captured.err
    assert "spec.training.steps: 0 is not allowed" in captured.err


def test_one_wrong_file_among_several_exits_64_and_checks_all(job_file, tmp_path, capsys):
    assert main(["validate", str(tmp_path / "missing.yaml"), str(job_file)]) == 64
    captured = capsys.readouterr()
    assert "there is no such file" in captured.err
    assert "valid (grpo-small)" in captured.out


def test_local_code_is_imported_and_a_missing_function_named(job_file, tmp_path, capsys):
    (tmp_path / "my_rewards.py").write_text("def score(**_):\n    return 1.0\n", encoding="utf-8")
    text = job_file.read_text(encoding="utf-8").replace(
        "function: reasoning_gym", "function: my_rewards:NAME"
    )
    text = text.replace("  model:\n", "  code: {path: .}\n  model:\n")
    job_file.write_text(text.replace("NAME", "score"), encoding="utf-8")
    assert main(["validate", str(job_file)]) == 0
    job_file.write_text(text.replace("NAME", "missing"), encoding="utf-8")
    assert main(["validate", str(job_file)]) == 64
    assert "'my_rewards' has no 'missing'; it has: score" in capsys.readouterr().err


def with_rewards(text: str, rewards: str, code: str = "") -> str:
    before, found, after = text.partition("  rewards:\n")
    assert found
    rest = after[after.index("  roles:") :]
    return (before + f"  rewards: {rewards}\n" + rest).replace("  model:\n", f"{code}  model:\n", 1)


def test_wrong_arguments_of_a_built_in_function_are_refused_without_code_of_one_s_own(job_file, capsys):
    text = job_file.read_text(encoding="utf-8")
    job_file.write_text(
        with_rewards(text, "[{function: length, arguments: {unit: bogus}}]"), encoding="utf-8"
    )
    assert main(["validate", str(job_file)]) == 64
    captured = capsys.readouterr()
    assert "spec.rewards[0].arguments: length: unit: Input should be 'characters' or 'words'" in captured.err
    assert captured.out == ""


def test_functions_whose_code_is_elsewhere_are_left_out_and_the_built_in_ones_checked(job_file, capsys):
    text = job_file.read_text(encoding="utf-8")
    code = "  code: {image: {path: /code}}\n"
    own = "{function: my_rewards:score}"
    job_file.write_text(with_rewards(text, f"[{own}]", code), encoding="utf-8")
    assert main(["validate", str(job_file)]) == 0
    wrong = f"[{own}, {{function: length, arguments: {{unit: bogus}}}}]"
    job_file.write_text(with_rewards(text, wrong, code), encoding="utf-8")
    assert main(["validate", str(job_file)]) == 64
    assert "spec.rewards[1].arguments: length: unit" in capsys.readouterr().err
