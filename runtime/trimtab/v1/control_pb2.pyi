from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerId(_message.Message):
    __slots__ = ("role", "replica", "node", "rank", "incarnation")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    role: str
    replica: int
    node: int
    rank: int
    incarnation: int
    def __init__(self, role: _Optional[str] = ..., replica: _Optional[int] = ..., node: _Optional[int] = ..., rank: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("protocol_version", "worker", "attempt", "training_identity", "host", "store_port", "world_size", "capacity", "applied_step", "weight_version", "metrics_port")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TRAINING_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    APPLIED_STEP_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    METRICS_PORT_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    worker: WorkerId
    attempt: int
    training_identity: str
    host: str
    store_port: int
    world_size: int
    capacity: int
    applied_step: int
    weight_version: int
    metrics_port: int
    def __init__(self, protocol_version: _Optional[int] = ..., worker: _Optional[_Union[WorkerId, _Mapping]] = ..., attempt: _Optional[int] = ..., training_identity: _Optional[str] = ..., host: _Optional[str] = ..., store_port: _Optional[int] = ..., world_size: _Optional[int] = ..., capacity: _Optional[int] = ..., applied_step: _Optional[int] = ..., weight_version: _Optional[int] = ..., metrics_port: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("coordinator_instance", "experience_address", "heartbeat_interval_s")
    COORDINATOR_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    EXPERIENCE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    coordinator_instance: str
    experience_address: str
    heartbeat_interval_s: float
    def __init__(self, coordinator_instance: _Optional[str] = ..., experience_address: _Optional[str] = ..., heartbeat_interval_s: _Optional[float] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("applied_step", "weight_version", "activity", "gauges", "leaving")
    class GaugesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    APPLIED_STEP_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    GAUGES_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    applied_step: int
    weight_version: int
    activity: str
    gauges: _containers.ScalarMap[str, float]
    leaving: str
    def __init__(self, applied_step: _Optional[int] = ..., weight_version: _Optional[int] = ..., activity: _Optional[str] = ..., gauges: _Optional[_Mapping[str, float]] = ..., leaving: _Optional[str] = ...) -> None: ...

class TensorMeta(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class WeightManifest(_message.Message):
    __slots__ = ("tensors", "kind", "bucket_bytes")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BUCKET_BYTES_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorMeta]
    kind: str
    bucket_bytes: int
    def __init__(self, tensors: _Optional[_Iterable[_Union[TensorMeta, _Mapping]]] = ..., kind: _Optional[str] = ..., bucket_bytes: _Optional[int] = ...) -> None: ...

class InitActor(_message.Message):
    __slots__ = ("world_size", "rank", "store_host", "store_port", "group_name", "checkpoint_path", "timeout_s", "total_steps")
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    GROUP_NAME_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    world_size: int
    rank: int
    store_host: str
    store_port: int
    group_name: str
    checkpoint_path: str
    timeout_s: float
    total_steps: int
    def __init__(self, world_size: _Optional[int] = ..., rank: _Optional[int] = ..., store_host: _Optional[str] = ..., store_port: _Optional[int] = ..., group_name: _Optional[str] = ..., checkpoint_path: _Optional[str] = ..., timeout_s: _Optional[float] = ..., total_steps: _Optional[int] = ...) -> None: ...

class ActorReady(_message.Message):
    __slots__ = ("applied_step", "manifest", "num_parameters")
    APPLIED_STEP_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    NUM_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    applied_step: int
    manifest: WeightManifest
    num_parameters: int
    def __init__(self, applied_step: _Optional[int] = ..., manifest: _Optional[_Union[WeightManifest, _Mapping]] = ..., num_parameters: _Optional[int] = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class LogProbs(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class SaveCheckpoint(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class Export(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class JoinWeightGroup(_message.Message):
    __slots__ = ("group", "backend", "store_host", "store_port", "world_size", "first_rank", "timeout_s")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    FIRST_RANK_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    group: str
    backend: str
    store_host: str
    store_port: int
    world_size: int
    first_rank: int
    timeout_s: float
    def __init__(self, group: _Optional[str] = ..., backend: _Optional[str] = ..., store_host: _Optional[str] = ..., store_port: _Optional[int] = ..., world_size: _Optional[int] = ..., first_rank: _Optional[int] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class LeaveWeightGroup(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class TransferWeights(_message.Message):
    __slots__ = ("group", "version", "manifest", "timeout_s")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    group: str
    version: int
    manifest: WeightManifest
    timeout_s: float
    def __init__(self, group: _Optional[str] = ..., version: _Optional[int] = ..., manifest: _Optional[_Union[WeightManifest, _Mapping]] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class AbortGeneration(_message.Message):
    __slots__ = ("episode_ids",)
    EPISODE_IDS_FIELD_NUMBER: _ClassVar[int]
    episode_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, episode_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("key", "timeout_s", "init_actor", "update", "log_probs", "save_checkpoint", "export", "join_weight_group", "leave_weight_group", "transfer_weights", "abort_generation")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    INIT_ACTOR_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    SAVE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FIELD_NUMBER: _ClassVar[int]
    JOIN_WEIGHT_GROUP_FIELD_NUMBER: _ClassVar[int]
    LEAVE_WEIGHT_GROUP_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ABORT_GENERATION_FIELD_NUMBER: _ClassVar[int]
    key: str
    timeout_s: float
    init_actor: InitActor
    update: Update
    log_probs: LogProbs
    save_checkpoint: SaveCheckpoint
    export: Export
    join_weight_group: JoinWeightGroup
    leave_weight_group: LeaveWeightGroup
    transfer_weights: TransferWeights
    abort_generation: AbortGeneration
    def __init__(self, key: _Optional[str] = ..., timeout_s: _Optional[float] = ..., init_actor: _Optional[_Union[InitActor, _Mapping]] = ..., update: _Optional[_Union[Update, _Mapping]] = ..., log_probs: _Optional[_Union[LogProbs, _Mapping]] = ..., save_checkpoint: _Optional[_Union[SaveCheckpoint, _Mapping]] = ..., export: _Optional[_Union[Export, _Mapping]] = ..., join_weight_group: _Optional[_Union[JoinWeightGroup, _Mapping]] = ..., leave_weight_group: _Optional[_Union[LeaveWeightGroup, _Mapping]] = ..., transfer_weights: _Optional[_Union[TransferWeights, _Mapping]] = ..., abort_generation: _Optional[_Union[AbortGeneration, _Mapping]] = ...) -> None: ...

class CommandResult(_message.Message):
    __slots__ = ("key", "ok", "error", "error_kind", "metrics", "actor_ready")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_KIND_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    ACTOR_READY_FIELD_NUMBER: _ClassVar[int]
    key: str
    ok: bool
    error: str
    error_kind: str
    metrics: _containers.ScalarMap[str, float]
    actor_ready: ActorReady
    def __init__(self, key: _Optional[str] = ..., ok: _Optional[bool] = ..., error: _Optional[str] = ..., error_kind: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ..., actor_ready: _Optional[_Union[ActorReady, _Mapping]] = ...) -> None: ...

class Shutdown(_message.Message):
    __slots__ = ("reason", "exit_code")
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    exit_code: int
    def __init__(self, reason: _Optional[str] = ..., exit_code: _Optional[int] = ...) -> None: ...

class WorkerFailed(_message.Message):
    __slots__ = ("message", "error_kind")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_KIND_FIELD_NUMBER: _ClassVar[int]
    message: str
    error_kind: str
    def __init__(self, message: _Optional[str] = ..., error_kind: _Optional[str] = ...) -> None: ...

class WorkerMessage(_message.Message):
    __slots__ = ("register", "heartbeat", "result", "failed")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    register: Register
    heartbeat: Heartbeat
    result: CommandResult
    failed: WorkerFailed
    def __init__(self, register: _Optional[_Union[Register, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., result: _Optional[_Union[CommandResult, _Mapping]] = ..., failed: _Optional[_Union[WorkerFailed, _Mapping]] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("welcome", "refused", "command", "shutdown")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    refused: Refused
    command: Command
    shutdown: Shutdown
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., command: _Optional[_Union[Command, _Mapping]] = ..., shutdown: _Optional[_Union[Shutdown, _Mapping]] = ...) -> None: ...
