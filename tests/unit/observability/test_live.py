import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios

from rich.console import Console

from trimtab.observability.live import LiveView, sparkline
from trimtab.v1 import job_control_pb2 as pb

METRICS = {"critic/score/mean": 0.5, "kl/actual": 0.00123, "actor/entropy": 1.9, "perf/throughput": 12345.0}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def job_status(step: int, activity: str = "generating (41 of 64 responses)", **fields) -> pb.JobStatus:
    fields = {"phase": "Running", "total_steps": 40, "seconds_left": 84.0, "metrics": METRICS, **fields}
    status = pb.JobStatus(name="arithmetic", attempt=1, step=step, activity=activity, **fields)
    status.roles.add(role="rollout", desired=2, ready=1, restarts=1)
    return status


def plain() -> tuple[LiveView, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    return LiveView(40, "arithmetic", console=Console(file=out, width=80), clock=clock), out, clock


def panel(status: pb.JobStatus, *, width: int = 80) -> str:
    view, _, _ = plain()
    view.update(status)
    out = io.StringIO()
    Console(file=out, width=width).print(view)
    return out.getvalue()


def test_plain_one_line_for_each_step_however_often_a_status_arrives() -> None:
    view, out, _ = plain()
    for step in (1, 1, 1, 2, 2):
        view.update(job_status(step))
    lines = [line for line in out.getvalue().splitlines() if line.startswith("step")]
    assert lines[0] == "step 1/40  reward 0.5  KL 0.00123  entropy 1.9  tokens/s 12.3k  left 1:24"
    assert [line.split("  ")[0] for line in lines] == ["step 1/40", "step 2/40"]


def test_plain_steps_taken_again_after_a_fallback_appear_again() -> None:
    view, out, _ = plain()
    for step in (1, 2, 3, 0, 2, 3):
        view.update(job_status(step))
    assert re.findall(r"step (\d)/40", out.getvalue()) == ["1", "2", "3", "3"]


def test_plain_activity_changes_appear_at_most_every_ten_seconds() -> None:
    view, out, clock = plain()
    for second in range(25):
        clock.now = float(second)
        view.update(job_status(0, f"generating ({second} of 64 responses)"))
    assert re.findall(r"\((\d+) of", out.getvalue()) == ["0", "10", "20"]


def test_plain_warning_is_printed_once_and_markup_in_it_is_text() -> None:
    view, out, _ = plain()
    for warnings in (["[bold]flat[/bold]"], [], ["[bold]flat[/bold]"], ["other"]):
        view.update(job_status(1, warnings=warnings))
    assert out.getvalue().count("warning: [bold]flat[/bold]") == 1
    assert out.getvalue().count("warning: other") == 1


def test_close_prints_the_summary_once() -> None:
    view, out, _ = plain()
    view.close({"result": "Complete", "steps": 40})
    view.close()
    assert out.getvalue() == "result  Complete\nsteps   40\n"


def test_panel_fits_eighty_columns_and_names_what_matters() -> None:
    long = "step 8: KL to the reference is 0.3 nats, 6.0 times its target 0.05. " * 3
    text = panel(job_status(12, "waiting for " + "rollout-1 " * 20, warnings=[long], checkpoint_path="/x"))
    assert all(len(line) == 80 for line in text.splitlines())
    for part in (
        "arithmetic · Running",
        "step 12/40",
        "30%",
        "left 1:24",
        "12.3k",
        "rollout 1/2 (1 restarted)",
    ):
        assert part in text
    assert len(text.splitlines()) == 11


def test_panel_before_the_first_step_has_no_figures() -> None:
    text = panel(job_status(0, "loading the model", metrics={}, seconds_left=-1, total_steps=0))
    assert "step 0/40" in text and "left –" in text and "loading the model" in text


def test_sparkline_spans_the_values() -> None:
    assert sparkline([1, 2, 3]) == "▁▅█"
    assert sparkline([2, 2]) == "▁▁"
    assert sparkline([1]) == ""


def test_terminal_draws_the_panel_in_place_and_restores_the_cursor() -> None:
    code = (
        "from trimtab.observability.live import LiveView; from trimtab.v1 import job_control_pb2 as pb\n"
        "view = LiveView(3, 'arithmetic')\n"
        "for step in (1, 2, 3):\n"
        "    view.update(pb.JobStatus(name='arithmetic', phase='Running', step=step, total_steps=3,\n"
        "                             metrics={'critic/score/mean': step / 4}))\n"
        "view.log_line('a line above')\n"
        "view.close({'result': 'Complete'})\n"
    )
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "NO_COLOR", "CI"):
        environment.pop(name, None)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    written = b""
    try:
        while block := os.read(master, 65536):
            written += block
    except OSError:  # the child closed its end
        pass
    os.close(master)
    assert child.wait(timeout=30) == 0, written
    text = written.decode()
    assert "step 3/3" in text and "a line above" in text and "Complete" in text
    assert text.index("\x1b[?25l") < text.rindex("\x1b[?25h")
    assert "\x1b[1A" in text
