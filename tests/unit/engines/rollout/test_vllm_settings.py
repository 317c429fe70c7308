"""What we tell vLLM, without starting it."""

import os

import pytest

from trimtab.api.roles import VllmSpec
from trimtab.engines.rollout import vllm_process
from trimtab.engines.rollout.model_files import ModelFacts
from trimtab.engines.rollout.vllm import VllmEngine
from trimtab.errors import UserError

_FACTS = ModelFacts("/m", (2,), 128, 512)
_KNOWN = {"max_num_batched_tokens", "model"}


def _arguments(*, on_gpu=False, **spec):
    return VllmEngine(VllmSpec(**spec), _FACTS, max_model_tokens=256, on_gpu=on_gpu)._engine_arguments(_KNOWN)


def test_arguments_on_cpu_are_eager_small_blocks_and_a_bounded_cache():
    arguments = _arguments()
    assert arguments["enforce_eager"] is True
    assert arguments["block_size"] == 32
    assert arguments["kv_cache_memory_bytes"] == 1 << 30


def test_arguments_on_gpu_leave_block_size_and_cache_to_vllm():
    arguments = _arguments(on_gpu=True, gpuMemoryUtilization=0.5)
    assert arguments["enforce_eager"] is False
    assert arguments["gpu_memory_utilization"] == 0.5
    assert "block_size" not in arguments
    assert "kv_cache_memory_bytes" not in arguments


def test_engine_arguments_win_over_ours():
    assert _arguments(engineArguments={"max_num_batched_tokens": 99})["max_num_batched_tokens"] == 99


def test_unknown_engine_argument_is_named():
    with pytest.raises(UserError, match=r"engineArguments: vLLM has no argument 'maxNumSeqs'"):
        _arguments(engineArguments={"maxNumSeqs": 3})


def test_environment_is_put_back(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    before = dict(os.environ)
    with vllm_process.engine_environment(on_gpu=False, tensor_parallel_size=1, fault_file=tmp_path / "fault"):
        assert os.environ["TRIMTAB_ENGINE_OWNER_PID"] == str(os.getpid())
        assert os.environ["OMP_NUM_THREADS"] == str(len(os.sched_getaffinity(0)))
        assert os.environ["VLLM_PLUGINS"] == "other,trimtab"
    assert dict(os.environ) == before


def test_environment_shares_the_cores_among_tensor_parallel_workers():
    environment = vllm_process._cpu_environment([0, 1, 2, 3], 4, 2)
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "0,2|1,3"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment


@pytest.mark.parametrize("preload", [[], ["libiomp5.so"]], ids=["gomp", "iomp"])
def test_environment_with_fewer_threads_than_cores_binds_none(monkeypatch, preload):
    monkeypatch.setattr(vllm_process, "_preload", lambda: preload)
    one = vllm_process._cpu_environment(list(range(64)), 2, 1)
    assert (one["VLLM_CPU_OMP_THREADS_BIND"], one["OMP_NUM_THREADS"]) == ("nobind", "2")
    assert not {"KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND"} & one.keys()
    two = vllm_process._cpu_environment(list(range(64)), 8, 2)
    assert (two["VLLM_CPU_OMP_THREADS_BIND"], two["OMP_NUM_THREADS"]) == ("nobind", "4")


@pytest.mark.parametrize(("told", "threads"), [("", 8), ("3", 3), ("64", 8), ("0", 8), ("4,2", 8)])
def test_engine_takes_the_threads_that_it_is_told_and_no_more_than_its_quota(monkeypatch, told, threads):
    monkeypatch.setattr(vllm_process, "num_usable_cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert vllm_process._num_threads() == threads


@pytest.mark.parametrize(("preload", "kept"), [([], True), (["libtcmalloc_minimal.so.4"], False)])
def test_environment_has_glibc_keep_memory_where_no_other_allocator_does(monkeypatch, preload, kept):
    monkeypatch.setattr(vllm_process, "_preload", lambda: preload)
    monkeypatch.setenv("MALLOC_TOP_PAD_", "4096")  # a user's own choice
    environment = vllm_process._cpu_environment([0, 1], 2, 1)
    assert ("MALLOC_MMAP_MAX_" in environment) is kept
    assert environment.get("MALLOC_TOP_PAD_") == ("4096" if kept else None)
