from fedloom.protocol.v1 import signing_pb2 as _signing_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_KIND_UNSPECIFIED: _ClassVar[TaskKind]
    TASK_KIND_TRAIN: _ClassVar[TaskKind]
    TASK_KIND_EVALUATE: _ClassVar[TaskKind]
    TASK_KIND_MESSAGE: _ClassVar[TaskKind]

class Weighting(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WEIGHTING_UNSPECIFIED: _ClassVar[Weighting]
    WEIGHTING_EXAMPLES: _ClassVar[Weighting]
    WEIGHTING_CLIENT: _ClassVar[Weighting]
    WEIGHTING_UNIFORM: _ClassVar[Weighting]
TASK_KIND_UNSPECIFIED: TaskKind
TASK_KIND_TRAIN: TaskKind
TASK_KIND_EVALUATE: TaskKind
TASK_KIND_MESSAGE: TaskKind
WEIGHTING_UNSPECIFIED: Weighting
WEIGHTING_EXAMPLES: Weighting
WEIGHTING_CLIENT: Weighting
WEIGHTING_UNIFORM: Weighting

class Scalar(_message.Message):
    __slots__ = ("bool_value", "int_value", "double_value", "string_value")
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    bool_value: bool
    int_value: int
    double_value: float
    string_value: str
    def __init__(self, bool_value: _Optional[bool] = ..., int_value: _Optional[int] = ..., double_value: _Optional[float] = ..., string_value: _Optional[str] = ...) -> None: ...

class TaskKey(_message.Message):
    __slots__ = ("run", "round")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class ClientMessage(_message.Message):
    __slots__ = ("hello", "offer_reply", "task_failed", "progress", "device", "masking", "site")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OFFER_REPLY_FIELD_NUMBER: _ClassVar[int]
    TASK_FAILED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MASKING_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    offer_reply: OfferReply
    task_failed: TaskFailed
    progress: Progress
    device: DeviceReport
    masking: MaskingMessage
    site: SiteRuns
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., offer_reply: _Optional[_Union[OfferReply, _Mapping]] = ..., task_failed: _Optional[_Union[TaskFailed, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., device: _Optional[_Union[DeviceReport, _Mapping]] = ..., masking: _Optional[_Union[MaskingMessage, _Mapping]] = ..., site: _Optional[_Union[SiteRuns, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_versions", "client", "sdk_version", "labels", "nonce", "check_in", "model_bytes")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SDK_VERSION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    CHECK_IN_FIELD_NUMBER: _ClassVar[int]
    MODEL_BYTES_FIELD_NUMBER: _ClassVar[int]
    protocol_versions: _containers.RepeatedScalarFieldContainer[int]
    client: str
    sdk_version: str
    labels: _containers.ScalarMap[str, str]
    nonce: bytes
    check_in: bool
    model_bytes: int
    def __init__(self, protocol_versions: _Optional[_Iterable[int]] = ..., client: _Optional[str] = ..., sdk_version: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., nonce: _Optional[bytes] = ..., check_in: _Optional[bool] = ..., model_bytes: _Optional[int] = ...) -> None: ...

class OfferReply(_message.Message):
    __slots__ = ("task", "accepted", "reason", "again_s")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AGAIN_S_FIELD_NUMBER: _ClassVar[int]
    task: TaskKey
    accepted: bool
    reason: str
    again_s: float
    def __init__(self, task: _Optional[_Union[TaskKey, _Mapping]] = ..., accepted: _Optional[bool] = ..., reason: _Optional[str] = ..., again_s: _Optional[float] = ...) -> None: ...

class TaskFailed(_message.Message):
    __slots__ = ("task", "reason")
    TASK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    task: TaskKey
    reason: str
    def __init__(self, task: _Optional[_Union[TaskKey, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("task", "fraction", "loss")
    TASK_FIELD_NUMBER: _ClassVar[int]
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    task: TaskKey
    fraction: float
    loss: float
    def __init__(self, task: _Optional[_Union[TaskKey, _Mapping]] = ..., fraction: _Optional[float] = ..., loss: _Optional[float] = ...) -> None: ...

class DeviceReport(_message.Message):
    __slots__ = ("cpu", "memory", "temperature", "battery", "mains", "gpus")
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    BATTERY_FIELD_NUMBER: _ClassVar[int]
    MAINS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    cpu: float
    memory: Memory
    temperature: float
    battery: float
    mains: bool
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    def __init__(self, cpu: _Optional[float] = ..., memory: _Optional[_Union[Memory, _Mapping]] = ..., temperature: _Optional[float] = ..., battery: _Optional[float] = ..., mains: _Optional[bool] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ...) -> None: ...

class Memory(_message.Message):
    __slots__ = ("used_bytes", "total_bytes")
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    used_bytes: int
    total_bytes: int
    def __init__(self, used_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("name", "busy", "memory", "temperature")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    name: str
    busy: float
    memory: Memory
    temperature: float
    def __init__(self, name: _Optional[str] = ..., busy: _Optional[float] = ..., memory: _Optional[_Union[Memory, _Mapping]] = ..., temperature: _Optional[float] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("welcome", "offer", "withdraw", "signed_offer", "masking", "site", "goodbye", "traceparent", "model_follows")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    SIGNED_OFFER_FIELD_NUMBER: _ClassVar[int]
    MASKING_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    offer: Task
    withdraw: Withdraw
    signed_offer: SignedOffer
    masking: MaskingStep
    site: SiteVerdict
    goodbye: Goodbye
    traceparent: str
    model_follows: bool
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., offer: _Optional[_Union[Task, _Mapping]] = ..., withdraw: _Optional[_Union[Withdraw, _Mapping]] = ..., signed_offer: _Optional[_Union[SignedOffer, _Mapping]] = ..., masking: _Optional[_Union[MaskingStep, _Mapping]] = ..., site: _Optional[_Union[SiteVerdict, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., traceparent: _Optional[str] = ..., model_follows: _Optional[bool] = ...) -> None: ...

class SignedOffer(_message.Message):
    __slots__ = ("statement", "signature", "task")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    statement: bytes
    signature: _signing_pb2.Signature
    task: TaskKey
    def __init__(self, statement: _Optional[bytes] = ..., signature: _Optional[_Union[_signing_pb2.Signature, _Mapping]] = ..., task: _Optional[_Union[TaskKey, _Mapping]] = ...) -> None: ...

class OfferStatement(_message.Message):
    __slots__ = ("federation", "client", "task", "issued_us", "nonce")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ISSUED_US_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    federation: str
    client: str
    task: bytes
    issued_us: int
    nonce: bytes
    def __init__(self, federation: _Optional[str] = ..., client: _Optional[str] = ..., task: _Optional[bytes] = ..., issued_us: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol_version", "federation", "server_version", "unix_time", "device_every_s")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    UNIX_TIME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_EVERY_S_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    federation: str
    server_version: str
    unix_time: float
    device_every_s: float
    def __init__(self, protocol_version: _Optional[int] = ..., federation: _Optional[str] = ..., server_version: _Optional[str] = ..., unix_time: _Optional[float] = ..., device_every_s: _Optional[float] = ...) -> None: ...

class Withdraw(_message.Message):
    __slots__ = ("task", "reason")
    TASK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    task: TaskKey
    reason: str
    def __init__(self, task: _Optional[_Union[TaskKey, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("next_check_in_s",)
    NEXT_CHECK_IN_S_FIELD_NUMBER: _ClassVar[int]
    next_check_in_s: float
    def __init__(self, next_check_in_s: _Optional[float] = ...) -> None: ...

class MaskingMessage(_message.Message):
    __slots__ = ("task", "attempt", "ready", "shares", "complaint", "agreement", "reveal", "closing")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    COMPLAINT_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    REVEAL_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    task: TaskKey
    attempt: int
    ready: bytes
    shares: bytes
    complaint: bytes
    agreement: bytes
    reveal: bytes
    closing: bytes
    def __init__(self, task: _Optional[_Union[TaskKey, _Mapping]] = ..., attempt: _Optional[int] = ..., ready: _Optional[bytes] = ..., shares: _Optional[bytes] = ..., complaint: _Optional[bytes] = ..., agreement: _Optional[bytes] = ..., reveal: _Optional[bytes] = ..., closing: _Optional[bytes] = ...) -> None: ...

class MaskingStep(_message.Message):
    __slots__ = ("task", "attempt", "ready_list", "shares", "survivors", "signatures", "abandoned", "closed", "done")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    READY_LIST_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    task: TaskKey
    attempt: int
    ready_list: ModelRef
    shares: SharesForMember
    survivors: bytes
    signatures: Signatures
    abandoned: str
    closed: Signatures
    done: bool
    def __init__(self, task: _Optional[_Union[TaskKey, _Mapping]] = ..., attempt: _Optional[int] = ..., ready_list: _Optional[_Union[ModelRef, _Mapping]] = ..., shares: _Optional[_Union[SharesForMember, _Mapping]] = ..., survivors: _Optional[bytes] = ..., signatures: _Optional[_Union[Signatures, _Mapping]] = ..., abandoned: _Optional[str] = ..., closed: _Optional[_Union[Signatures, _Mapping]] = ..., done: _Optional[bool] = ...) -> None: ...

class ReadyList(_message.Message):
    __slots__ = ("adverts",)
    ADVERTS_FIELD_NUMBER: _ClassVar[int]
    adverts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, adverts: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SharesForMember(_message.Message):
    __slots__ = ("shared", "shares")
    class SharesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: bytes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...
    SHARED_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    shared: bytes
    shares: _containers.ScalarMap[int, bytes]
    def __init__(self, shared: _Optional[bytes] = ..., shares: _Optional[_Mapping[int, bytes]] = ...) -> None: ...

class Signatures(_message.Message):
    __slots__ = ("by_member",)
    class ByMemberEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: bytes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...
    BY_MEMBER_FIELD_NUMBER: _ClassVar[int]
    by_member: _containers.ScalarMap[int, bytes]
    def __init__(self, by_member: _Optional[_Mapping[int, bytes]] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("key", "kind", "model", "train", "rule", "evaluate", "weighting", "limits", "config", "deadline_s", "seed", "received", "memory_round", "compression", "differences", "personal", "privacy", "run_name", "adapters", "training_round", "masking", "site")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Scalar
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Scalar, _Mapping]] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TRAIN_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTING_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_ROUND_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    PERSONAL_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_FIELD_NUMBER: _ClassVar[int]
    RUN_NAME_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_ROUND_FIELD_NUMBER: _ClassVar[int]
    MASKING_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    key: TaskKey
    kind: TaskKind
    model: ModelRef
    train: TrainSettings
    rule: ClientRule
    evaluate: bool
    weighting: Weighting
    limits: UpdateLimits
    config: _containers.MessageMap[str, Scalar]
    deadline_s: float
    seed: int
    received: ModelRef
    memory_round: int
    compression: Compression
    differences: _containers.RepeatedCompositeFieldContainer[Difference]
    personal: Personal
    privacy: Privacy
    run_name: str
    adapters: Adapters
    training_round: int
    masking: Masking
    site: SiteTask
    def __init__(self, key: _Optional[_Union[TaskKey, _Mapping]] = ..., kind: _Optional[_Union[TaskKind, str]] = ..., model: _Optional[_Union[ModelRef, _Mapping]] = ..., train: _Optional[_Union[TrainSettings, _Mapping]] = ..., rule: _Optional[_Union[ClientRule, _Mapping]] = ..., evaluate: _Optional[bool] = ..., weighting: _Optional[_Union[Weighting, str]] = ..., limits: _Optional[_Union[UpdateLimits, _Mapping]] = ..., config: _Optional[_Mapping[str, Scalar]] = ..., deadline_s: _Optional[float] = ..., seed: _Optional[int] = ..., received: _Optional[_Union[ModelRef, _Mapping]] = ..., memory_round: _Optional[int] = ..., compression: _Optional[_Union[Compression, _Mapping]] = ..., differences: _Optional[_Iterable[_Union[Difference, _Mapping]]] = ..., personal: _Optional[_Union[Personal, _Mapping]] = ..., privacy: _Optional[_Union[Privacy, _Mapping]] = ..., run_name: _Optional[str] = ..., adapters: _Optional[_Union[Adapters, _Mapping]] = ..., training_round: _Optional[int] = ..., masking: _Optional[_Union[Masking, _Mapping]] = ..., site: _Optional[_Union[SiteTask, _Mapping]] = ...) -> None: ...

class SiteTask(_message.Message):
    __slots__ = ("spec", "devices", "path")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    spec: str
    devices: int
    path: str
    def __init__(self, spec: _Optional[str] = ..., devices: _Optional[int] = ..., path: _Optional[str] = ...) -> None: ...

class SiteRuns(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, runs: _Optional[_Iterable[str]] = ...) -> None: ...

class SiteVerdict(_message.Message):
    __slots__ = ("run", "counted", "over", "ended")
    RUN_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    run: str
    counted: int
    over: int
    ended: bool
    def __init__(self, run: _Optional[str] = ..., counted: _Optional[int] = ..., over: _Optional[int] = ..., ended: _Optional[bool] = ...) -> None: ...

class Masking(_message.Message):
    __slots__ = ("attempt", "sum_bits", "exponent", "group", "run_seed", "metrics", "max_examples", "session_s", "site")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SUM_BITS_FIELD_NUMBER: _ClassVar[int]
    EXPONENT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RUN_SEED_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    MAX_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    SESSION_S_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    sum_bits: int
    exponent: int
    group: int
    run_seed: int
    metrics: _containers.ScalarMap[str, float]
    max_examples: int
    session_s: float
    site: str
    def __init__(self, attempt: _Optional[int] = ..., sum_bits: _Optional[int] = ..., exponent: _Optional[int] = ..., group: _Optional[int] = ..., run_seed: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., max_examples: _Optional[int] = ..., session_s: _Optional[float] = ..., site: _Optional[str] = ...) -> None: ...

class Adapters(_message.Message):
    __slots__ = ("aggregate", "scale", "rest")
    AGGREGATE_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    aggregate: str
    scale: float
    rest: str
    def __init__(self, aggregate: _Optional[str] = ..., scale: _Optional[float] = ..., rest: _Optional[str] = ...) -> None: ...

class Difference(_message.Message):
    __slots__ = ("base", "difference")
    BASE_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    base: str
    difference: ModelRef
    def __init__(self, base: _Optional[str] = ..., difference: _Optional[_Union[ModelRef, _Mapping]] = ...) -> None: ...

class Personal(_message.Message):
    __slots__ = ("keep", "head_epochs", "name", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    KEEP_FIELD_NUMBER: _ClassVar[int]
    HEAD_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    keep: _containers.RepeatedScalarFieldContainer[str]
    head_epochs: int
    name: str
    settings: _containers.ScalarMap[str, float]
    def __init__(self, keep: _Optional[_Iterable[str]] = ..., head_epochs: _Optional[int] = ..., name: _Optional[str] = ..., settings: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Privacy(_message.Message):
    __slots__ = ("clip", "count_within", "noise_multiplier", "seeded")
    CLIP_FIELD_NUMBER: _ClassVar[int]
    COUNT_WITHIN_FIELD_NUMBER: _ClassVar[int]
    NOISE_MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    SEEDED_FIELD_NUMBER: _ClassVar[int]
    clip: float
    count_within: bool
    noise_multiplier: float
    seeded: bool
    def __init__(self, clip: _Optional[float] = ..., count_within: _Optional[bool] = ..., noise_multiplier: _Optional[float] = ..., seeded: _Optional[bool] = ...) -> None: ...

class Compression(_message.Message):
    __slots__ = ("codec", "settings", "error_feedback")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    CODEC_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    codec: str
    settings: _containers.ScalarMap[str, float]
    error_feedback: bool
    def __init__(self, codec: _Optional[str] = ..., settings: _Optional[_Mapping[str, float]] = ..., error_feedback: _Optional[bool] = ...) -> None: ...

class ModelRef(_message.Message):
    __slots__ = ("digest", "size_bytes")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    digest: str
    size_bytes: int
    def __init__(self, digest: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class TrainSettings(_message.Message):
    __slots__ = ("epochs", "steps", "batch_size", "learning_rate", "clip_norm", "only", "tensor_share", "widths", "patience", "time_budget_s")
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    TENSOR_SHARE_FIELD_NUMBER: _ClassVar[int]
    WIDTHS_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_BUDGET_S_FIELD_NUMBER: _ClassVar[int]
    epochs: int
    steps: int
    batch_size: int
    learning_rate: float
    clip_norm: float
    only: _containers.RepeatedScalarFieldContainer[str]
    tensor_share: float
    widths: _containers.RepeatedScalarFieldContainer[float]
    patience: int
    time_budget_s: float
    def __init__(self, epochs: _Optional[int] = ..., steps: _Optional[int] = ..., batch_size: _Optional[int] = ..., learning_rate: _Optional[float] = ..., clip_norm: _Optional[float] = ..., only: _Optional[_Iterable[str]] = ..., tensor_share: _Optional[float] = ..., widths: _Optional[_Iterable[float]] = ..., patience: _Optional[int] = ..., time_budget_s: _Optional[float] = ...) -> None: ...

class ClientRule(_message.Message):
    __slots__ = ("name", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: _containers.ScalarMap[str, float]
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Mapping[str, float]] = ...) -> None: ...

class UpdateLimits(_message.Message):
    __slots__ = ("max_abs", "max_weight", "max_bytes", "max_norm")
    MAX_ABS_FIELD_NUMBER: _ClassVar[int]
    MAX_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_NORM_FIELD_NUMBER: _ClassVar[int]
    max_abs: float
    max_weight: float
    max_bytes: int
    max_norm: float
    def __init__(self, max_abs: _Optional[float] = ..., max_weight: _Optional[float] = ..., max_bytes: _Optional[int] = ..., max_norm: _Optional[float] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DownloadRequest(_message.Message):
    __slots__ = ("digest", "offset")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    digest: str
    offset: int
    def __init__(self, digest: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class UpdateHeader(_message.Message):
    __slots__ = ("task", "client", "model_digest", "size_bytes", "crc32c", "weight", "parts", "training", "evaluation", "scalars", "compression", "masking_session", "site")
    class ScalarsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TASK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    MASKING_SESSION_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    task: TaskKey
    client: str
    model_digest: str
    size_bytes: int
    crc32c: int
    weight: float
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    training: Metrics
    evaluation: Metrics
    scalars: _containers.ScalarMap[str, float]
    compression: Compression
    masking_session: bytes
    site: SiteSum
    def __init__(self, task: _Optional[_Union[TaskKey, _Mapping]] = ..., client: _Optional[str] = ..., model_digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., crc32c: _Optional[int] = ..., weight: _Optional[float] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., training: _Optional[_Union[Metrics, _Mapping]] = ..., evaluation: _Optional[_Union[Metrics, _Mapping]] = ..., scalars: _Optional[_Mapping[str, float]] = ..., compression: _Optional[_Union[Compression, _Mapping]] = ..., masking_session: _Optional[bytes] = ..., site: _Optional[_Union[SiteSum, _Mapping]] = ...) -> None: ...

class SiteSum(_message.Message):
    __slots__ = ("devices", "exponent", "narrow", "tensors", "nonzero", "vanished", "training", "evaluation", "members", "updates")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    EXPONENT_FIELD_NUMBER: _ClassVar[int]
    NARROW_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    NONZERO_FIELD_NUMBER: _ClassVar[int]
    VANISHED_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    devices: int
    exponent: int
    narrow: bool
    tensors: _containers.RepeatedCompositeFieldContainer[SiteTensor]
    nonzero: int
    vanished: int
    training: SiteMetrics
    evaluation: SiteMetrics
    members: _containers.RepeatedCompositeFieldContainer[SiteMember]
    updates: int
    def __init__(self, devices: _Optional[int] = ..., exponent: _Optional[int] = ..., narrow: _Optional[bool] = ..., tensors: _Optional[_Iterable[_Union[SiteTensor, _Mapping]]] = ..., nonzero: _Optional[int] = ..., vanished: _Optional[int] = ..., training: _Optional[_Union[SiteMetrics, _Mapping]] = ..., evaluation: _Optional[_Union[SiteMetrics, _Mapping]] = ..., members: _Optional[_Iterable[_Union[SiteMember, _Mapping]]] = ..., updates: _Optional[int] = ...) -> None: ...

class SiteMember(_message.Message):
    __slots__ = ("name", "devices", "members")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    devices: int
    members: _containers.RepeatedCompositeFieldContainer[SiteMember]
    def __init__(self, name: _Optional[str] = ..., devices: _Optional[int] = ..., members: _Optional[_Iterable[_Union[SiteMember, _Mapping]]] = ...) -> None: ...

class SiteTensor(_message.Message):
    __slots__ = ("units", "bits", "low", "weights")
    UNITS_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    units: bytes
    bits: int
    low: int
    weights: SiteWeights
    def __init__(self, units: _Optional[bytes] = ..., bits: _Optional[int] = ..., low: _Optional[int] = ..., weights: _Optional[_Union[SiteWeights, _Mapping]] = ...) -> None: ...

class SiteWeights(_message.Message):
    __slots__ = ("bits", "low")
    BITS_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    bits: int
    low: int
    def __init__(self, bits: _Optional[int] = ..., low: _Optional[int] = ...) -> None: ...

class SiteMetrics(_message.Message):
    __slots__ = ("num_examples", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: SiteMetric
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[SiteMetric, _Mapping]] = ...) -> None: ...
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    num_examples: int
    values: _containers.MessageMap[str, SiteMetric]
    def __init__(self, num_examples: _Optional[int] = ..., values: _Optional[_Mapping[str, SiteMetric]] = ...) -> None: ...

class SiteMetric(_message.Message):
    __slots__ = ("products", "weights", "least", "most", "counts")
    PRODUCTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    products: _containers.RepeatedScalarFieldContainer[float]
    weights: _containers.RepeatedScalarFieldContainer[float]
    least: float
    most: float
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, products: _Optional[_Iterable[float]] = ..., weights: _Optional[_Iterable[float]] = ..., least: _Optional[float] = ..., most: _Optional[float] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class Metrics(_message.Message):
    __slots__ = ("num_examples", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    num_examples: int
    values: _containers.ScalarMap[str, float]
    def __init__(self, num_examples: _Optional[int] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("group", "tensor", "values", "full", "slice", "mask", "encoding")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    SLICE_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    group: str
    tensor: str
    values: str
    full: Full
    slice: Slice
    mask: Mask
    encoding: Encoding
    def __init__(self, group: _Optional[str] = ..., tensor: _Optional[str] = ..., values: _Optional[str] = ..., full: _Optional[_Union[Full, _Mapping]] = ..., slice: _Optional[_Union[Slice, _Mapping]] = ..., mask: _Optional[_Union[Mask, _Mapping]] = ..., encoding: _Optional[_Union[Encoding, _Mapping]] = ...) -> None: ...

class Encoding(_message.Message):
    __slots__ = ("arrays", "seed")
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    arrays: _containers.RepeatedScalarFieldContainer[str]
    seed: int
    def __init__(self, arrays: _Optional[_Iterable[str]] = ..., seed: _Optional[int] = ...) -> None: ...

class Full(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Slice(_message.Message):
    __slots__ = ("ranges",)
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("start", "stop")
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    start: int
    stop: int
    def __init__(self, start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class Mask(_message.Message):
    __slots__ = ("bits",)
    BITS_FIELD_NUMBER: _ClassVar[int]
    bits: str
    def __init__(self, bits: _Optional[str] = ...) -> None: ...

class UploadReply(_message.Message):
    __slots__ = ("proceed", "accepted")
    PROCEED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    proceed: Proceed
    accepted: Accepted
    def __init__(self, proceed: _Optional[_Union[Proceed, _Mapping]] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ...) -> None: ...

class Proceed(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("repeated",)
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    repeated: bool
    def __init__(self, repeated: _Optional[bool] = ...) -> None: ...

class PromotedRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class PromotedReply(_message.Message):
    __slots__ = ("statement", "signature")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    statement: bytes
    signature: _signing_pb2.Signature
    def __init__(self, statement: _Optional[bytes] = ..., signature: _Optional[_Union[_signing_pb2.Signature, _Mapping]] = ...) -> None: ...

class PromotedStatement(_message.Message):
    __slots__ = ("federation", "asked", "promotion", "promoted_us", "run", "round", "model")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    PROMOTION_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_US_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    federation: str
    asked: str
    promotion: int
    promoted_us: int
    run: str
    round: int
    model: ModelRef
    def __init__(self, federation: _Optional[str] = ..., asked: _Optional[str] = ..., promotion: _Optional[int] = ..., promoted_us: _Optional[int] = ..., run: _Optional[str] = ..., round: _Optional[int] = ..., model: _Optional[_Union[ModelRef, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
