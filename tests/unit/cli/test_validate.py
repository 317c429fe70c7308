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
