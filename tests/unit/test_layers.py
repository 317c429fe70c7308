"""What must stay light stays light: checked in a fresh interpreter, as the operator and a shell see it."""

import json
import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "vllm", "transformers", "datasets", "grpc", "zmq")
PROBE = """
import importlib, json, sys, time
start = time.process_time()
importlib.import_module(sys.argv[1])
print(json.dumps({"cpu_s": time.process_time() - start, "loaded": sorted(sys.modules)}))
"""
MAX_IMPORT_CPU_S = 0.3


def probe(module: str) -> dict[str, object]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    command = [sys.executable, "-c", PROBE, module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    return json.loads(done.stdout)


@pytest.mark.parametrize("module", ["trimtab.api", "trimtab.cli.main", "trimtab_operator"])
def test_light_module_imports_no_heavy_library_and_is_quick(module: str):
    runs = [probe(module)]
    loaded = set(runs[0]["loaded"])
    assert not loaded.intersection(HEAVY)
    while min(run["cpu_s"] for run in runs) > MAX_IMPORT_CPU_S and len(runs) < 3:
        runs.append(probe(module))  # CPU time too rises on a machine that is busy with other things
    assert min(run["cpu_s"] for run in runs) < MAX_IMPORT_CPU_S


def test_operator_folder_does_not_shadow_the_standard_library():
    import operator

    assert operator.itemgetter(0)("ab") == "a"
