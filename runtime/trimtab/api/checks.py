"""Checks across the fields of a job: each takes a spec whose fields are right on their own.

Run by `JobSpec` when it is built, all of them at once; each yields problems, whose paths start at `spec`.
"""

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pydantic_core import PydanticCustomError

from trimtab.api.algorithm import REFUSED_ROLES
from trimtab.api.problems import Problem
from trimtab.api.rewards import BUILT_IN_REWARDS, RewardSpec
from trimtab.api.uris import UriError, folder_of

if TYPE_CHECKING:
    from trimtab.api.job import JobSpec

CROSS_FIELD = "trimtab_problems"
"""Type of the pydantic error whose context carries the problems."""


def _roles_of_algorithm(spec: "JobSpec") -> Iterator[Problem]:
    name = spec.algorithm.chosen
    for role in REFUSED_ROLES[name]:
        if getattr(spec.roles, role) is not None:
            yield Problem(f"spec.roles.{role}", None, f"{name} has no {role}: leave the role out")
    grpo = spec.algorithm.grpo
    if spec.roles.reference is not None and grpo is not None and grpo.kl.coefficient == 0:
        yield Problem(
            "spec.roles.reference",
            None,
            "nothing uses a reference: leave it out, or set algorithm.grpo.kl.coefficient above 0",
        )


def _kl(spec: "JobSpec") -> Iterator[Problem]:
    kl = None if spec.algorithm.grpo is None else spec.algorithm.grpo.kl
    if kl is not None and kl.coefficient > 0 and kl.estimator == "k1" and kl.placement == "loss":
        yield Problem(
            "spec.algorithm.grpo.kl.estimator",
            "k1",
            "in the loss has a gradient of mean 0, which holds nothing back: use k3, or placement: reward",
        )
    if kl is not None and kl.controller.adaptive is not None and kl.coefficient == 0:
        yield Problem(
            "spec.algorithm.grpo.kl.coefficient",
            0.0,
            "is 0, which the adaptive controller multiplies and never leaves: above 0, or a fixed controller",
        )


def _batches(spec: "JobSpec") -> Iterator[Problem]:
    training = spec.training
    if training.prompts_per_step % training.mini_batch_prompts:
        yield Problem(
            "spec.training.miniBatchPrompts",
            training.mini_batch_prompts,
            f"is {training.mini_batch_prompts}, which does not divide"
            f" promptsPerStep ({training.prompts_per_step})",
        )
    longest = spec.data.max_prompt_tokens + training.max_response_tokens
    if training.max_tokens_per_micro_batch < longest:
        yield Problem(
            "spec.training.maxTokensPerMicroBatch",
            training.max_tokens_per_micro_batch,
            f"is {training.max_tokens_per_micro_batch}, which does not hold the longest sequence: at least"
            f" {longest} (data.maxPromptTokens {spec.data.max_prompt_tokens}"
            f" + maxResponseTokens {training.max_response_tokens})",
        )


def _actor_world(spec: "JobSpec") -> Iterator[Problem]:
    shard, ranks = spec.training.shard_size, spec.roles.actor.num_ranks
    if shard is not None and ranks % shard:
        yield Problem(
            "spec.training.shardSize",
            shard,
            f"is {shard}, which does not divide the actor's {ranks} ranks (nodes times gpusPerNode)",
        )


def _replicas(spec: "JobSpec") -> Iterator[Problem]:
    for name, role in (("rollout", spec.roles.rollout), ("reward", spec.roles.reward)):
        if role.min_replicas > role.replicas:
            yield Problem(
                f"spec.roles.{name}.minReplicas",
                role.min_replicas,
                f"is {role.min_replicas}: at most replicas ({role.replicas})",
            )


def _engine(spec: "JobSpec") -> Iterator[Problem]:
    rollout, vllm = spec.roles.rollout, spec.roles.rollout.engine.vllm
    gpus = rollout.gpus_per_node
    if vllm is None:
        if rollout.nodes > 1 or rollout.gpus_per_node > 1:
            yield Problem(
                "spec.roles.rollout.engine.hf",
                None,
                "runs on one node with at most one GPU: use replicas, or vllm",
            )
        return
    if rollout.nodes > 1:
        yield Problem(
            "spec.roles.rollout.nodes",
            rollout.nodes,
            f"is {rollout.nodes}: an engine of several pods is not supported yet; use 1, and more replicas",
        )
        return
    if gpus and vllm.tensor_parallel_size != gpus:
        yield Problem(
            "spec.roles.rollout.engine.vllm.tensorParallelSize",
            vllm.tensor_parallel_size,
            f"is {vllm.tensor_parallel_size}: an engine uses all GPUs of its replica, which are {gpus}"
            " (gpusPerNode); replicas adds engines",
        )
    longest = spec.data.max_prompt_tokens + _longest_response(spec)
    if vllm.max_model_tokens is not None and vllm.max_model_tokens < longest:
        yield Problem(
            "spec.roles.rollout.engine.vllm.maxModelTokens",
            vllm.max_model_tokens,
            f"is {vllm.max_model_tokens}, which does not hold the longest sequence: at least {longest}"
            " (data.maxPromptTokens plus the longest maxResponseTokens)",
        )


def _longest_response(spec: "JobSpec") -> int:
    validation = (spec.validation and spec.validation.max_response_tokens) or 0
    return max(spec.training.max_response_tokens, validation)


def _sampling(spec: "JobSpec") -> Iterator[Problem]:
    if spec.roles.rollout.sampling.temperature == 0:
        yield Problem(
            "spec.roles.rollout.sampling.temperature",
            0.0,
            "is 0: greedy responses of a group are all the same and have no log-probs to learn from;"
            " more than 0 (1.0 is usual)",
        )


def _reward_lists(spec: "JobSpec") -> Iterator[tuple[str, tuple[RewardSpec, ...]]]:
    yield "spec.rewards", spec.rewards
    if spec.validation is not None and spec.validation.rewards is not None:
        yield "spec.validation.rewards", spec.validation.rewards


def _reward_functions(spec: "JobSpec") -> Iterator[Problem]:
    for path, rewards in _reward_lists(spec):
        for index, reward in enumerate(rewards):
            if ":" in reward.function or reward.function in BUILT_IN_REWARDS:
                continue
            near = get_close_matches(reward.function, BUILT_IN_REWARDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"built in are {', '.join(BUILT_IN_REWARDS)}"
            yield Problem(
                f"{path}[{index}].function",
                reward.function,
                f"there is no built-in function {reward.function}: {hint}"
                " (a function of your own is written package.module:name)",
            )


def _reward_names(spec: "JobSpec") -> Iterator[Problem]:
    for path, rewards in _reward_lists(spec):
        seen: set[str] = set()
        for index, reward in enumerate(rewards):
            if reward.name in seen:
                yield Problem(
                    f"{path}[{index}].name",
                    reward.name,
                    f"{reward.name!r} appears twice: give each reward a name",
                )
            seen.add(reward.name)


def _volumes(spec: "JobSpec") -> Iterator[Problem]:
    names = {volume.name for volume in spec.volumes}
    used = [
        (f"spec.volumeMounts[{index}].name", mount.name) for index, mount in enumerate(spec.volume_mounts)
    ]
    if spec.code is not None and spec.code.volume is not None:
        used.append(("spec.code.volume.name", spec.code.volume.name))
    if spec.storage is not None and spec.storage.volume is not None:
        used.append(("spec.storage.volume.name", spec.storage.volume.name))
    allowed = ", ".join(sorted(names)) or "spec.volumes is empty"
    for path, name in used:
        if name not in names:
            yield Problem(path, name, f"{name!r} is no volume: {allowed}")


def _checkpoint_uri(spec: "JobSpec") -> Iterator[Problem]:
    uri = spec.checkpoint.uri
    if uri is None:
        return
    try:
        folder_of(uri)
    except UriError as error:
        yield Problem("spec.checkpoint.uri", uri, str(error))


CHECKS: tuple[Callable[["JobSpec"], Iterator[Problem]], ...] = (
    _roles_of_algorithm,
    _kl,
    _batches,
    _actor_world,
    _replicas,
    _engine,
    _sampling,
    _reward_functions,
    _reward_names,
    _volumes,
    _checkpoint_uri,
)


def raise_problems(spec: "JobSpec") -> None:
    """Raise one pydantic error that carries every problem found, or return."""
    problems = [problem for check in CHECKS for problem in check(spec)]
    if problems:
        raise PydanticCustomError(
            CROSS_FIELD, "{text}", {"text": "; ".join(map(str, problems)), "problems": tuple(problems)}
        )
