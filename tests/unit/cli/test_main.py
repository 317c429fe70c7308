import importlib.util
from importlib.metadata import version

import pytest

from trimtab.cli.main import COMMANDS, build_parser, load_command, main
from trimtab.errors import DeadlineError, ExitCode


@pytest.mark.parametrize("name", COMMANDS)
def test_command_has_a_module(name):
    assert importlib.util.find_spec(f"trimtab.cli.{name}") is not None


@pytest.mark.parametrize("name", COMMANDS)
def test_command_offers_its_parser_and_run(name, capsys):
    assert callable(load_command(name).run)
    with pytest.raises(SystemExit) as stop:
        build_parser(name).parse_args([name, "--help"])
    assert stop.value.code == 0
    assert f"usage: trimtab {name}" in capsys.readouterr().out


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


def test_version_is_the_distribution_s(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"trimtab {version('trimtab')}\n"


def test_unknown_command_exits_2_and_lists_them(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["trian"])
    assert stop.value.code == 2
    assert "validate" in capsys.readouterr().err


def test_place_that_cannot_be_written_is_named_without_a_traceback(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "report.html"
    assert main(["report", str(tmp_path), "--output", str(output)]) == ExitCode.USER_ERROR
    assert capsys.readouterr().err == f"error: {tmp_path / 'file'}: File exists\n"


def test_error_of_ours_is_one_line_and_its_exit_code(monkeypatch, capsys):
    def fail(args):
        raise DeadlineError("rollout-0 did not register within 5 s")

    monkeypatch.setattr("trimtab.cli.validate.run", fail)
    assert main(["validate", "x"]) == ExitCode.INTERNAL
    assert capsys.readouterr().err == "error: rollout-0 did not register within 5 s\n"


def test_ctrl_c_exits_130(monkeypatch):
    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("trimtab.cli.validate.run", interrupt)
    assert main(["validate", "x"]) == 130
