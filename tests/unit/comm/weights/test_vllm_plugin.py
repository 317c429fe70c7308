"""The parts of the entry point that need no vLLM; tests/integration covers the rest with a real one."""

import json
import logging
import signal
import subprocess
import sys

import pytest
import torch

from trimtab.comm.weights import vllm_plugin

_WATCHER = """
import sys, signal
from trimtab.comm.weights import vllm_plugin
vllm_plugin._end_with(int(sys.argv[1]))
print("watching", flush=True)
signal.pause()
"""


@pytest.fixture
def owner():
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait()


def test_process_ends_when_its_owner_is_killed(owner):
    watcher = subprocess.Popen([sys.executable, "-c", _WATCHER, str(owner.pid)], stdout=subprocess.PIPE)
    with watcher:
        assert watcher.stdout.readline() == b"watching\n"
        owner.kill()
        owner.wait()
        assert watcher.wait(timeout=10) == -signal.SIGKILL


def test_process_ends_at_once_when_its_owner_is_gone_already(owner):
    owner.kill()
    owner.wait()
    done = subprocess.run([sys.executable, "-c", _WATCHER, str(owner.pid)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        pytest.param(torch.OutOfMemoryError("CUDA out of memory"), "oom", id="device memory"),
        pytest.param(RuntimeError("DefaultCPUAllocator: can't allocate memory"), "oom", id="torch on a CPU"),
        pytest.param(MemoryError("no"), "oom", id="host memory"),
        pytest.param(ValueError("no"), "value", id="a value that vLLM refuses"),
        pytest.param(KeyError("no"), "internal", id="another"),
    ],
)
def test_first_logged_error_is_left_word_of_by_type(tmp_path, error, kind):
    logger = logging.getLogger(f"test.{kind}.{type(error).__name__}")
    logger.propagate = False
    logger.addHandler(vllm_plugin._FaultRecorder(tmp_path / "fault.json"))
    logger.error("without a traceback")
    assert not (tmp_path / "fault.json").exists()
    for raised in (error, RuntimeError("a consequence")):
        try:
            raise raised
        except (RuntimeError, MemoryError, ValueError, KeyError):
            logger.exception("fatal")
    fault = json.loads((tmp_path / "fault.json").read_text())
    assert fault["kind"] == kind
    assert fault["error"].startswith(type(error).__name__)
