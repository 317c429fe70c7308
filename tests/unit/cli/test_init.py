import pytest

from trimtab.api import load_job
from trimtab.cli.init import load_presets
from trimtab.cli.main import main
from trimtab.rewards.functions import BUILTINS


@pytest.mark.parametrize("name", load_presets())
def test_preset_is_a_valid_job_of_its_name(name, tmp_path, capsys):
    assert main(["init", "--preset", name]) == 0
    path = tmp_path / "job.yaml"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    job = load_job(path)
    assert job.name == name
    for reward in job.spec.rewards:
        BUILTINS[reward.function](**reward.arguments)  # refuses arguments that it does not take


def test_presets_are_the_common_cases():
    assert set(load_presets()) == {"grpo-small", "grpo-debug", "grpo-gpu", "grpo-8gpu", "grpo-multinode"}


def test_list_says_what_each_is_for(capsys):
    assert main(["init", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(load_presets())
    assert all(line.split("  ", 1)[1].strip().endswith(".") for line in lines)


def test_unknown_preset_names_those_that_exist(capsys):
    assert main(["init", "--preset", "ppo"]) == 64
    assert "--preset ppo: there is no such preset; one of grpo-8gpu" in capsys.readouterr().err
