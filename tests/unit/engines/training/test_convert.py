"""`trimtab export` of a run whose model brings code of its own, from a folder that another job shares."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trimtab import checkpoint
from trimtab.api import ResolvedJob, parse_job
from trimtab.cli.main import main
from trimtab.engines.training import FsdpTrainingEngine, TrainingSettings
from trimtab.engines.training.convert import find_checkpoint, find_job
from trimtab.errors import UserError
from trimtab.testing.tiny_model import make_tiny_model

OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own-llama"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that transformers loads only with its own code."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    made = make_tiny_model(tmp_path / "model")
    (made / "modeling_own.py").write_text(OWN_CODE)
    config = json.loads((made / "config.json").read_text())
    config["model_type"] = "own-llama"
    config["architectures"] = ["OwnForCausalLM"]
    config["auto_map"] = {
        "AutoConfig": "modeling_own.OwnConfig",
        "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
    }
    (made / "config.json").write_text(json.dumps(config))
    return made


@pytest.fixture
def run_dir(model: Path, tmp_path: Path) -> Path:
    """A run with a checkpoint of step 2, beside a later one of another training."""
    spec = {
        "model": {"path": str(model), "trustRemoteCode": True},
        "data": {"train": {"path": "p.jsonl"}, "maxPromptTokens": 16},
        "algorithm": {"grpo": {"groupSize": 4}},
        "training": {"steps": 2, "promptsPerStep": 1, "maxResponseTokens": 16, "maxTokensPerMicroBatch": 64},
        "rewards": [{"function": "length"}],
        "checkpoint": {"uri": str(tmp_path / "shared")},
    }
    body = {"apiVersion": "trimtab.dev/v1alpha1", "kind": "RLTrainingJob", "metadata": {"name": "e"}}
    run = tmp_path / "run"
    run.mkdir()
    job = ResolvedJob.resolve(parse_job({**body, "spec": spec}), attempt=1, base_dir=tmp_path, run_dir=run)
    job.save(run / "resolved.json")
    uri = str(tmp_path / "shared")
    engine = FsdpTrainingEngine(TrainingSettings.from_job(job), device=torch.device("cpu"))
    for step, identity in ((2, job.training_identity), (100, "another")):
        path = checkpoint.begin(uri, step, identity=identity, attempt=1)
        engine.save(path / "actor")
        checkpoint.commit(path, step=step, identity=identity, attempt=1, coordinator_state={})
    return run


def test_export_of_a_run_takes_its_own_newest_checkpoint_and_its_models_code(
    run_dir: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM

    assert main(["export", str(run_dir), "--output", str(tmp_path / "exported")]) == 0
    assert "step 2 of" in capsys.readouterr().out
    got = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", trust_remote_code=True)
    want = AutoModelForCausalLM.from_pretrained(model, trust_remote_code=True)
    assert type(got).__name__ == "OwnForCausalLM"
    for (name, parameter), (_, original) in zip(got.named_parameters(), want.named_parameters(), strict=True):
        assert torch.equal(parameter, original), name


def test_checkpoint_that_is_named_is_taken_whoever_wrote_it(run_dir: Path, tmp_path: Path) -> None:
    named = tmp_path / "shared" / "step-00000100"
    assert find_job(named) is None
    assert find_checkpoint(named).step == 100
    assert find_checkpoint(tmp_path / "shared").step == 100


def test_run_without_a_checkpoint_of_its_own_names_the_others(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "shared" / "step-00000002" / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"step-00000100: it belongs to training another"):
        find_checkpoint(run_dir)


def test_job_of_a_run_is_found_from_its_checkpoints_too(run_dir: Path) -> None:
    inside = run_dir / "checkpoints" / "step-00000001"
    inside.mkdir(parents=True)
    for path in (run_dir, inside.parent, inside):
        job = find_job(path)
        assert job is not None
        assert job.job.name == "e"
