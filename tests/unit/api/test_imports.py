import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys, time
start = time.process_time()
import {module}
seconds = time.process_time() - start
heavy = [name for name in ("torch", "vllm", "transformers", "numpy", "grpc") if name in sys.modules]
print(json.dumps([seconds, heavy]))
"""
ATTEMPTS = 5


@pytest.mark.parametrize("module", ["trimtab.api", "trimtab.cli.main"])
def test_import_is_fast_and_brings_no_heavy_package(module, tmp_path):
    # Compiled files in a folder of their own: the first import compiles, the others are what users have.
    # Processor time, so that other tests on the same cores do not count.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    seconds = []
    for _ in range(ATTEMPTS):
        out = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(module=module)],
            env=env,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        taken, heavy = json.loads(out)
        assert heavy == []
        seconds.append(taken)
    assert min(seconds) < 0.3
