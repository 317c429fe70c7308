from pathlib import Path

import pytest

from trimtab.cli.main import main
from trimtab.observability.writer import MetricsWriter


def test_report_prints_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(1, {"critic/score/mean": 0.5}, time=1.0)
    output = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--output", str(output)]) == 0
    assert capsys.readouterr().out.strip() == str(output)
    assert output.exists()


def test_report_of_no_run_is_the_users_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 64
    assert "not a run directory" in capsys.readouterr().err
