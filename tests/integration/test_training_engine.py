"""The training engine in real worlds of one and two processes over gloo, against transformers' own model."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.testing.tiny_model import make_tiny_model

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("training_ranks.py")
TIMEOUT_S = 200.0
Ranks = Callable[..., dict[str, Any]]


def run_ranks(world: int, model: Path, out: Path, *scenarios: str) -> dict[str, Any]:
    """Run scenarios in `world` processes; returns rank 0's results by scenario."""
    meeting = out / f"meeting-{uuid.uuid4().hex}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                str(SCRIPT),
                str(rank),
                str(world),
                str(meeting),
                str(model),
                str(out),
                *scenarios,
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    failed = [output[-2000:] for p, output in zip(processes, outputs, strict=True) if p.returncode != 0]
    assert not failed, "\n".join(failed)
    return {scenario: torch.load(out / f"{scenario}@{world}.pt") for scenario in scenarios}


@pytest.fixture(scope="module", params=[False, True], ids=["untied head", "tied head"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), tied=request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


def relative_difference(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> float:
    assert got.keys() == want.keys()
    difference = sum(float((got[n] - want[n]).double().square().sum()) for n in want)
    return float((difference / sum(float(want[n].double().square().sum()) for n in want)) ** 0.5)


def dense_gradients(model: Path) -> dict[str, torch.Tensor]:
    """The same loss through transformers' eager attention, one unpadded sequence at a time, full logits."""
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        from training_ranks import LOSS, recorded_batch
    finally:
        sys.path.pop(0)
    from transformers import AutoModelForCausalLM

    from trimtab.algorithms.losses import Denominators, PolicyLossInputs

    batch = recorded_batch()
    network = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager", dtype=torch.float32)
    counts = Denominators(float(batch.loss_mask.sum()), float(batch.num_sequences))
    for s in range(batch.num_sequences):
        one = batch.select([s])
        logits = network(torch.from_numpy(one.token_ids).long()[None]).logits[0, :-1] / 0.8
        log_softmax = torch.log_softmax(logits, -1)
        mask = torch.from_numpy(one.loss_mask)[1:]
        targets = torch.from_numpy(one.token_ids).long()[1:]
        arrays = {n: torch.from_numpy(v)[1:][mask] for n, v in one.arrays().items() if v.dtype == "float32"}
        inputs = PolicyLossInputs(
            log_probs=log_softmax.gather(1, targets[:, None])[:, 0][mask],
            mask=torch.ones(int(mask.sum())),
            sequence_ids=torch.zeros(int(mask.sum()), dtype=torch.long),
            num_sequences=1,
            entropy=-(log_softmax.exp() * log_softmax).sum(-1)[mask],
            **arrays,
        )
        LOSS(inputs, counts)[0].backward()
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


def test_gradients_any_micro_batch_and_ranks_equal_the_dense_model(model: Path, tmp_path: Path) -> None:
    want = dense_gradients(model)
    one = run_ranks(1, model, tmp_path, "gradients:4096", "gradients:64")
    two = run_ranks(2, model, tmp_path, "gradients:4096", "gradients:40", "hybrid")
    for results in (one, two):
        for scenario, got in results.items():
            assert relative_difference(got, want) < 1e-5, scenario


def test_resume_any_ranks_continues_as_if_uninterrupted(model: Path, tmp_path: Path) -> None:
    one = run_ranks(1, model, tmp_path, "save:3", "train:0:8", "resume:1:8")
    # The same ranks: bit for bit.
    whole, resumed = one["train:0:8"], one["resume:1:8"]
    assert len(resumed["metrics"]) == 5
    assert resumed["metrics"] == whole["metrics"][3:]
    assert all(torch.equal(resumed["weights"][n], whole["weights"][n]) for n in whole["weights"])
    # Saved by two, read by two and by one; the losses of both are those of one rank all along.
    two = run_ranks(2, model, tmp_path, "save:3", "resume:2:8", "resume:1:8")
    back = run_ranks(1, model, tmp_path, "resume:2:8")
    for metrics in (two["resume:2:8"], two["resume:1:8"], back["resume:2:8"]):
        for got, want in zip(metrics["metrics"], whole["metrics"][3:], strict=True):
            assert got == pytest.approx(want, rel=1e-4, abs=1e-6)


def test_export_of_two_ranks_loads_in_transformers_with_the_same_weights(model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trained = run_ranks(2, model, tmp_path, "export")["export"]
    exported = tmp_path / "exported"
    loaded = AutoModelForCausalLM.from_pretrained(exported)
    assert type(loaded).__name__ == "LlamaForCausalLM"
    parameters = dict(loaded.named_parameters())
    assert parameters.keys() == trained.keys()
    assert all(torch.equal(parameters[n], trained[n]) for n in trained)
    assert AutoTokenizer.from_pretrained(exported).chat_template
    assert json.loads((exported / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    umask = os.umask(0)
    os.umask(umask)
    assert all(file.stat().st_mode & 0o777 == 0o666 & ~umask for file in exported.iterdir())
