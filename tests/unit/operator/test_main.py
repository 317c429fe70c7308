import json
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab_operator import main as module
from trimtab_operator.main import build_parser, main, read_options


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster is in reach."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "set_up_logs", lambda level: None)


def test_flags_and_settings_become_options(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"operatorNamespace": "here", "backoffS": 7, "newer": 1}))
    arguments = build_parser().parse_args(
        ["run", "--namespace", "a", "--namespace", "b", "--namespace", "a", "--settings", str(path)]
    )
    options = read_options(arguments, {})
    assert options.namespaces == ("a", "b")
    assert (options.settings.operator_namespace, options.settings.backoff_s) == ("here", 7)
    assert options.leader_elect


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is no JSON"),
        ('{"backoffS": -1, "roles": {"actor": {"image": 3}}}', "backoffS: Input should be greater"),
    ],
    ids=["missing", "no JSON", "a field"],
)
def test_settings_that_are_wrong_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, words: str
) -> None:
    path = tmp_path / "settings.json"
    if content is not None:
        path.write_text(content)
    assert main(["run", "--settings", str(path)]) == 64
    error = capsys.readouterr().err
    assert error.startswith(f"error: --settings {path}")
    assert words in error


def test_no_way_to_an_api_server_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == 64
    assert capsys.readouterr().err.startswith("error: no way to an API server")


@pytest.mark.parametrize("port", ["-1", "x", "65536"])
def test_port_that_is_none_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", f"--health-port={port}"])
    assert f"'{port}' is no port" in capsys.readouterr().err


def test_command_imports_neither_torch_nor_vllm_nor_transformers() -> None:
    code = "import sys, trimtab_operator.main; print({'torch', 'vllm', 'transformers'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "set()\n"
