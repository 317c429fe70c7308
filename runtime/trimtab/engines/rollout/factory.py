"""Makes the rollout engine that a job asks for. Called by the rollout role and by benchmarks."""

from pathlib import Path

from trimtab.api import ResolvedJob
from trimtab.engines.rollout.model_files import (
    max_sequence_tokens,
    read_model_facts,
    resolve_model_path,
)
from trimtab.engines.rollout.protocol import RolloutEngine


def make_engine(job: ResolvedJob, *, seed_offset: int = 0, eos_token_id: int | None = None) -> RolloutEngine:
    """The engine of `spec.roles.rollout`, not started. UserError where the job cannot be served.

    `eos_token_id` is the tokenizer's own, where the model's files may name another; `seed_offset` keeps
    replicas apart where an engine draws on a seed of its own.
    """
    spec = job.job.spec
    role = spec.roles.rollout
    model = role.model or spec.model
    field = "spec.model.path" if role.model is None else "spec.roles.rollout.model.path"
    path = resolve_model_path(model, Path(job.base_dir), field=field)
    facts = read_model_facts(path, model, extra_eos=[eos_token_id])
    tokens = max_sequence_tokens(facts, longest_sequence(job), field="spec.training.maxResponseTokens")
    on_gpu = role.gpus_per_node > 0
    if role.engine.hf is not None:
        from trimtab.engines.rollout.hf import HfEngine

        return HfEngine(
            role.engine.hf,
            facts,
            max_model_tokens=tokens,
            on_gpu=on_gpu,
            trust_remote_code=model.trust_remote_code,
            revision=model.revision,
        )
    vllm = role.engine.vllm
    assert vllm is not None
    from trimtab.engines.rollout.vllm import VllmEngine

    return VllmEngine(
        vllm,
        facts,
        max_model_tokens=tokens,
        on_gpu=on_gpu,
        seed=(spec.seed + seed_offset) % 2**31,
        trust_remote_code=model.trust_remote_code,
        revision=model.revision,
    )


def longest_sequence(job: ResolvedJob) -> int:
    """Tokens of the longest prompt and response that the job can ask for, or the engine's own setting."""
    spec = job.job.spec
    vllm = spec.roles.rollout.engine.vllm
    if vllm is not None and vllm.max_model_tokens is not None:
        return vllm.max_model_tokens
    responses = [spec.training.max_response_tokens]
    if spec.validation is not None and spec.validation.max_response_tokens is not None:
        responses.append(spec.validation.max_response_tokens)
    return spec.data.max_prompt_tokens + max(responses)
