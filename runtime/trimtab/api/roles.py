"""`spec.roles`: the processes of a job, what they run on and how the rollout generates."""

from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.base import Bytes, ItemKeys, JsonObject, Model, OneOf, PathText
from trimtab.api.kubernetes import EnvVar, ResourceRequirements
from trimtab.api.model import ModelSpec

Nodes = Annotated[int, Field(ge=1, le=10_000)]
GpusPerNode = Annotated[int, Field(ge=0, le=64)]
Replicas = Annotated[int, Field(ge=1, le=10_000)]


class RoleSpec(Model):
    """What every role has."""

    image: PathText | None = None
    """Container image; None: the platform's for this role. Has no meaning locally."""
    resources: ResourceRequirements = Field(default_factory=ResourceRequirements)
    """CPU and memory per pod. GPUs follow from `gpusPerNode`. Has no meaning locally."""
    shared_memory: Annotated[Bytes, Field(ge=1_048_576, le=2**50)] | None = None
    """Size of /dev/shm in each pod, in bytes or a quantity such as 16Gi; it counts as the pod's memory. None:
    1Gi, and 16Gi with GPUs. Has no meaning locally."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=128), ItemKeys("name")] = ()
    """Environment variables of the role's processes. Empty by default."""
    pod_template: JsonObject | None = None
    """Pod template (metadata and spec) merged into the role's pods, containers by name; None: nothing to
    merge."""


class CoordinatorSpec(RoleSpec):
    """The one process that runs the dataflow. Needs no GPU."""


class ModelRoleSpec(RoleSpec):
    """What every role has that can hold a model."""

    model: ModelSpec | None = None
    """Where this role reads its model; None: `spec.model`."""


class ActorSpec(ModelRoleSpec):
    """The policy that is trained: one SPMD world over all its nodes."""

    nodes: Nodes = 1
    """Pods. 1 by default."""
    gpus_per_node: GpusPerNode = 0
    """GPUs, and so ranks, of each pod. 0 by default: one rank per pod, on the CPU."""

    @property
    def num_ranks(self) -> int:
        """Ranks of the world."""
        return self.nodes * max(1, self.gpus_per_node)


class CriticSpec(ActorSpec):
    """The value model. Only for algorithms that have one."""


class ReferenceSpec(Model):
    """The frozen reference model, which the actor holds."""

    model: ModelSpec | None = None
    """The model that the policy is pulled towards; None: `spec.model`, as it is at the start."""


class SamplingSpec(Model):
    """How tokens are drawn."""

    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Divides the logits; log-probs are those after it. 1 by default: what the loss assumes. 0 is greedy, for
    validation only."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of probability that is drawn from. 1 by default: all."""
    top_k: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Number of likeliest tokens that are drawn from. 0 by default: all."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Tokens less likely than this share of the likeliest are left out. 0 by default: none."""
    stop_token_ids: Annotated[
        tuple[Annotated[int, Field(ge=0, le=2**31 - 1)], ...], Field(max_length=64)
    ] = ()
    """Token ids that end a response, beside the model's own EOS ids. Empty by default."""


class VllmSpec(Model):
    """vLLM, for CPU and GPU."""

    tensor_parallel_size: Annotated[int, Field(ge=1, le=1024)] = 1
    """GPUs that share one copy of the model; with GPUs it equals `gpusPerNode`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "bfloat16"
    """Number format of the engine. bfloat16 by default, as training computes."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.85
    """Share of each GPU's memory that the engine takes. Has no meaning on a CPU."""
    kv_cache_bytes: Annotated[Bytes, Field(ge=1_048_576, le=2**50)] | None = None
    """Size of the KV cache per worker in bytes, or a quantity such as 2Gi. None: what `gpuMemoryUtilization`
    leaves on a GPU, 1Gi on a CPU."""
    max_concurrent_requests: Annotated[int, Field(ge=1, le=65_536)] = 256
    """Responses that one replica generates at once. 256 as vLLM has it."""
    max_model_tokens: Annotated[int, Field(ge=1, le=16_777_216)] | None = None
    """Longest sequence (prompt and response), in tokens; None: the longest that the job can have."""
    block_size: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Tokens per block of the KV cache; None: 32 on a CPU, so that short prompts share their prefix, else
    vLLM's."""
    enforce_eager: bool | None = None
    """Whether the model runs uncompiled; None: on a CPU yes (compiling takes minutes), on a GPU no."""
    engine_arguments: JsonObject = Field(default_factory=dict)
    """Further arguments of vLLM's engine, by vLLM's names. Empty by default."""


class HfSpec(Model):
    """transformers' `generate`, for debugging: deterministic, and slow."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the engine. float32 by default: made for comparing numbers."""
    max_concurrent_requests: Annotated[int, Field(ge=1, le=4096)] = 32
    """Responses that one replica generates at once. 32 by default."""


class EngineSpec(OneOf):
    """What generates the responses."""

    vllm: VllmSpec | None = None
    """vLLM."""
    hf: HfSpec | None = None
    """transformers' `generate`."""

    @property
    def max_concurrent_requests(self) -> int:
        """Responses that one replica generates at once."""
        engine = self.vllm or self.hf
        assert engine is not None
        return engine.max_concurrent_requests


class RolloutSpec(ModelRoleSpec):
    """The engines that generate responses; a replica is one engine."""

    replicas: Replicas = 1
    """Engines. 1 by default. May change while the job runs."""
    min_replicas: Replicas = 1
    """Engines without which training does not begin; with fewer it is Degraded, and goes on as long as one is
    there. 1 by default."""
    nodes: Nodes = 1
    """Pods per engine. 1 by default, and more is not supported yet."""
    gpus_per_node: GpusPerNode = 0
    """GPUs of each pod. 0 by default: the engine runs on the CPU."""
    engine: EngineSpec = Field(default_factory=lambda: EngineSpec(vllm=VllmSpec()))
    """What generates. vLLM by default."""
    sampling: SamplingSpec = Field(default_factory=SamplingSpec)
    """How tokens are drawn in training."""


class RewardRoleSpec(ModelRoleSpec):
    """The servers that run the reward functions."""

    replicas: Replicas = 1
    """Servers. 1 by default."""
    min_replicas: Replicas = 1
    """Servers without which training does not begin; with fewer it is Degraded, and goes on as long as one is
    there. 1 by default."""
    workers_per_replica: Annotated[int, Field(ge=1, le=1024)] = 2
    """Processes per server that run user functions, so that one that hangs or dies holds up no other. 2 by
    default."""
    gpus_per_node: GpusPerNode = 0
    """GPUs of each server. 0 by default: functions run on the CPU."""


class RolesSpec(Model):
    """The roles of a job; one left out has its defaults, or does not exist (critic, reference)."""

    coordinator: CoordinatorSpec = Field(default_factory=CoordinatorSpec)
    """The dataflow."""
    actor: ActorSpec = Field(default_factory=ActorSpec)
    """The policy that is trained."""
    critic: CriticSpec | None = None
    """The value model; None: none. Refused by algorithms that have none (grpo)."""
    reference: ReferenceSpec | None = None
    """The reference model; None: `spec.model`, where the algorithm has a KL term."""
    rollout: RolloutSpec = Field(default_factory=RolloutSpec)
    """The engines that generate."""
    reward: RewardRoleSpec = Field(default_factory=RewardRoleSpec)
    """The servers that score."""
