from trimtab.v1 import control_pb2 as _control_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Condition(_message.Message):
    __slots__ = ("type", "status", "reason", "message")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    type: str
    status: str
    reason: str
    message: str
    def __init__(self, type: _Optional[str] = ..., status: _Optional[str] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class RoleStatus(_message.Message):
    __slots__ = ("role", "desired", "ready", "restarts", "min_desired")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    MIN_DESIRED_FIELD_NUMBER: _ClassVar[int]
    role: str
    desired: int
    ready: int
    restarts: int
    min_desired: int
    def __init__(self, role: _Optional[str] = ..., desired: _Optional[int] = ..., ready: _Optional[int] = ..., restarts: _Optional[int] = ..., min_desired: _Optional[int] = ...) -> None: ...

class RestartRequest(_message.Message):
    __slots__ = ("worker", "reason")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    worker: _control_pb2.WorkerId
    reason: str
    def __init__(self, worker: _Optional[_Union[_control_pb2.WorkerId, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("name", "attempt", "training_identity", "phase", "activity", "step", "total_steps", "epoch", "seconds_left", "metrics", "conditions", "roles", "restart_requests", "checkpoint_path", "checkpoint_step", "warnings", "reason", "message", "not_finite", "missing", "mark")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TRAINING_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    RESTART_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NOT_FINITE_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    name: str
    attempt: int
    training_identity: str
    phase: str
    activity: str
    step: int
    total_steps: int
    epoch: float
    seconds_left: float
    metrics: _containers.ScalarMap[str, float]
    conditions: _containers.RepeatedCompositeFieldContainer[Condition]
    roles: _containers.RepeatedCompositeFieldContainer[RoleStatus]
    restart_requests: _containers.RepeatedCompositeFieldContainer[RestartRequest]
    checkpoint_path: str
    checkpoint_step: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    message: str
    not_finite: _containers.RepeatedScalarFieldContainer[str]
    missing: _containers.RepeatedScalarFieldContainer[str]
    mark: str
    def __init__(self, name: _Optional[str] = ..., attempt: _Optional[int] = ..., training_identity: _Optional[str] = ..., phase: _Optional[str] = ..., activity: _Optional[str] = ..., step: _Optional[int] = ..., total_steps: _Optional[int] = ..., epoch: _Optional[float] = ..., seconds_left: _Optional[float] = ..., metrics: _Optional[_Mapping[str, float]] = ..., conditions: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ..., roles: _Optional[_Iterable[_Union[RoleStatus, _Mapping]]] = ..., restart_requests: _Optional[_Iterable[_Union[RestartRequest, _Mapping]]] = ..., checkpoint_path: _Optional[str] = ..., checkpoint_step: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., not_finite: _Optional[_Iterable[str]] = ..., missing: _Optional[_Iterable[str]] = ..., mark: _Optional[str] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("mark", "wait_s", "numbers_s")
    MARK_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_S_FIELD_NUMBER: _ClassVar[int]
    mark: str
    wait_s: float
    numbers_s: float
    def __init__(self, mark: _Optional[str] = ..., wait_s: _Optional[float] = ..., numbers_s: _Optional[float] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ("timeout_s",)
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    timeout_s: float
    def __init__(self, timeout_s: _Optional[float] = ...) -> None: ...

class CheckpointResponse(_message.Message):
    __slots__ = ("path", "step")
    PATH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    path: str
    step: int
    def __init__(self, path: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class UpdateRolloutRequest(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "max_response_tokens")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MAX_RESPONSE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    max_response_tokens: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., max_response_tokens: _Optional[int] = ...) -> None: ...

class UpdateRolloutResponse(_message.Message):
    __slots__ = ("effective_step",)
    EFFECTIVE_STEP_FIELD_NUMBER: _ClassVar[int]
    effective_step: int
    def __init__(self, effective_step: _Optional[int] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("reason", "grace_s")
    REASON_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    reason: str
    grace_s: float
    def __init__(self, reason: _Optional[str] = ..., grace_s: _Optional[float] = ...) -> None: ...

class StopResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResizeRequest(_message.Message):
    __slots__ = ("rollout_replicas", "min_rollout_replicas", "reward_replicas", "min_reward_replicas")
    ROLLOUT_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MIN_ROLLOUT_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    REWARD_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MIN_REWARD_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    rollout_replicas: int
    min_rollout_replicas: int
    reward_replicas: int
    min_reward_replicas: int
    def __init__(self, rollout_replicas: _Optional[int] = ..., min_rollout_replicas: _Optional[int] = ..., reward_replicas: _Optional[int] = ..., min_reward_replicas: _Optional[int] = ...) -> None: ...

class ResizeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
