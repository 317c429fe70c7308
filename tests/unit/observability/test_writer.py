import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.observability.records import read_lines
from trimtab.observability.warning import HealthWarning
from trimtab.observability.writer import MetricsWriter


def lines(path: Path) -> list[dict]:
    return list(read_lines(path))


def warning(rule: str = "reward-flat", step: int = 1) -> HealthWarning:
    return HealthWarning(rule, step, "critic/score/mean", 0.5, "flat.", "Try more.")


def test_write_each_step_is_on_disk_at_once(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(1, {"actor/entropy": 1.5}, time=100.0)
        assert lines(tmp_path / "metrics.jsonl") == [{"step": 1, "time": 100.0, "actor/entropy": 1.5}]
        writer.write(2, {"actor/entropy": 1.4}, time=101.0)
        assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_write_not_finite_becomes_null_and_one_warning(tmp_path: Path, value: float) -> None:
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(1, {"actor/grad_norm": value, "actor/lr": 1e-6}, time=1.0)
        writer.write(2, {"actor/grad_norm": value, "actor/lr": 1e-6}, time=2.0)
    assert [line["actor/grad_norm"] for line in lines(tmp_path / "metrics.jsonl")] == [None, None]
    (record,) = lines(tmp_path / "warnings.jsonl")
    assert (record["rule"], record["metric"], record["step"]) == ("non-finite", "actor/grad_norm", 1)
    text = (tmp_path / "metrics.jsonl").read_text()
    json.loads(text.splitlines()[0], parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_resume_removes_what_came_after_the_step(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        for step in (1, 2, 3):
            writer.write(step, {"x": step}, time=0.0)
            writer.sample(step, prompt="p", response="r", score=1.0, finish_reason="stop")
        writer.warn(warning(step=3))
    with MetricsWriter(tmp_path, tensorboard=False, last_step=1) as writer:
        assert not lines(tmp_path / "warnings.jsonl")
        writer.write(2, {"x": 20}, time=0.0)
        writer.warn(warning(step=2))
    assert [(line["step"], line["x"]) for line in lines(tmp_path / "metrics.jsonl")] == [(1, 1), (2, 20)]
    assert [line["step"] for line in lines(tmp_path / "samples.jsonl")] == [1]
    assert [line["step"] for line in lines(tmp_path / "warnings.jsonl")] == [2]


def test_reopen_keeps_lines_and_a_repeated_step_replaces_the_later_ones(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        for step in (1, 2, 3):
            writer.write(step, {"x": step}, time=0.0)
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(2, {"x": 20}, time=0.0)
    assert [(line["step"], line["x"]) for line in lines(tmp_path / "metrics.jsonl")] == [(1, 1), (2, 20)]


def test_broken_last_line_is_cut_off_on_reopening(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step":1,"time":0}\n{"step":2,"ti')
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1]
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(2, {}, time=0.0)
    assert [json.loads(text)["step"] for text in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        1,
        2,
    ]


def test_warn_repeated_is_written_once_also_after_reopening(tmp_path: Path) -> None:
    for _ in range(2):
        with MetricsWriter(tmp_path, tensorboard=False) as writer:
            writer.warn_all([warning(), warning(), warning("entropy-collapse")])
    assert [line["rule"] for line in lines(tmp_path / "warnings.jsonl")] == [
        "reward-flat",
        "entropy-collapse",
    ]


def test_sample_keeps_any_text_and_drops_a_score_that_is_not_finite(tmp_path: Path) -> None:
    text = 'quotes " newline \n line separator \u2028 lone surrogate \ud800 nul \x00'
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.sample(
            1, prompt=text, response=text, score=math.nan, finish_reason="length", rewards={"a": 1.0}
        )
    (record,) = lines(tmp_path / "samples.jsonl")
    assert record["prompt"] == record["response"] == text
    assert record["score"] is None and record["rewards"] == {"a": 1.0} and record["kind"] == "train"


def test_tensorboard_reads_the_scalars_and_forgets_steps_before_a_resume(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with MetricsWriter(tmp_path, tensorboard=True) as writer:
        for step in (1, 2, 3):
            writer.write(step, {"critic/score/mean": step / 10, "bad": math.nan}, time=float(step))
        writer.write(3, {"critic/score/mean": 7.0}, time=3.5)
    with MetricsWriter(tmp_path, tensorboard=True, last_step=2) as writer:
        writer.write(3, {"critic/score/mean": 9.0}, time=4.0)
    accumulator = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    assert accumulator.Tags()["scalars"] == ["critic/score/mean"]
    scalars = [(event.step, round(event.value, 6)) for event in accumulator.Scalars("critic/score/mean")]
    assert scalars == [(1, 0.1), (2, 0.2), (3, 9.0)]


def test_importing_and_writing_leaves_torch_out(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from trimtab.observability.writer import MetricsWriter\n"
        "import trimtab.observability.live, trimtab.observability.prometheus, trimtab.observability.report\n"
        "assert 'matplotlib' not in sys.modules and 'tensorboard' not in sys.modules\n"
        "w = MetricsWriter(Path(sys.argv[1]), tensorboard=True); w.write(1, {'a': 1.0}); w.close()\n"
        "assert not {'torch', 'vllm', 'transformers', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
