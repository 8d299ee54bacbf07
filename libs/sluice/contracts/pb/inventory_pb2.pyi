from sluice.contracts.pb import node_pb2 as _node_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SlotState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SLOT_STATE_UNSPECIFIED: _ClassVar[SlotState]
    SLOT_STATE_ORDERED: _ClassVar[SlotState]
    SLOT_STATE_IN_USE: _ClassVar[SlotState]
    SLOT_STATE_RETURNING: _ClassVar[SlotState]
    SLOT_STATE_QUARANTINED: _ClassVar[SlotState]
    SLOT_STATE_FOREIGN: _ClassVar[SlotState]
    SLOT_STATE_BROKEN: _ClassVar[SlotState]
    SLOT_STATE_OFFERED: _ClassVar[SlotState]
    SLOT_STATE_UNUSABLE: _ClassVar[SlotState]

class ReportKey(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPORT_KEY_UNSPECIFIED: _ClassVar[ReportKey]
    REPORT_KEY_NAMESPACE: _ClassVar[ReportKey]
    REPORT_KEY_MODEL: _ClassVar[ReportKey]
    REPORT_KEY_NODE: _ClassVar[ReportKey]
SLOT_STATE_UNSPECIFIED: SlotState
SLOT_STATE_ORDERED: SlotState
SLOT_STATE_IN_USE: SlotState
SLOT_STATE_RETURNING: SlotState
SLOT_STATE_QUARANTINED: SlotState
SLOT_STATE_FOREIGN: SlotState
SLOT_STATE_BROKEN: SlotState
SLOT_STATE_OFFERED: SlotState
SLOT_STATE_UNUSABLE: SlotState
REPORT_KEY_UNSPECIFIED: ReportKey
REPORT_KEY_NAMESPACE: ReportKey
REPORT_KEY_MODEL: ReportKey
REPORT_KEY_NODE: ReportKey

class ListGpusRequest(_message.Message):
    __slots__ = ("nodes", "page_size", "page_token")
    NODES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    page_size: int
    page_token: str
    def __init__(self, nodes: _Optional[_Iterable[str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListGpusResponse(_message.Message):
    __slots__ = ("gpus", "totals", "next_page_token")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.RepeatedCompositeFieldContainer[GpuSummary]
    totals: FleetTotals
    next_page_token: str
    def __init__(self, gpus: _Optional[_Iterable[_Union[GpuSummary, _Mapping]]] = ..., totals: _Optional[_Union[FleetTotals, _Mapping]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GpuSummary(_message.Message):
    __slots__ = ("uuid", "node", "index", "model", "mig_enabled", "healthy", "health_message", "memory_mib", "slices_total", "slices_in_use", "allocated_fraction", "created", "foreign", "quarantined", "creatable", "creatable_total", "stale", "observed_at")
    class CreatedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class CreatableEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    UUID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MIG_ENABLED_FIELD_NUMBER: _ClassVar[int]
    HEALTHY_FIELD_NUMBER: _ClassVar[int]
    HEALTH_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    SLICES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SLICES_IN_USE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    CREATABLE_FIELD_NUMBER: _ClassVar[int]
    CREATABLE_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_AT_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    node: str
    index: int
    model: str
    mig_enabled: bool
    healthy: bool
    health_message: str
    memory_mib: int
    slices_total: int
    slices_in_use: int
    allocated_fraction: float
    created: _containers.ScalarMap[str, int]
    foreign: int
    quarantined: int
    creatable: _containers.ScalarMap[str, int]
    creatable_total: int
    stale: bool
    observed_at: str
    def __init__(self, uuid: _Optional[str] = ..., node: _Optional[str] = ..., index: _Optional[int] = ..., model: _Optional[str] = ..., mig_enabled: _Optional[bool] = ..., healthy: _Optional[bool] = ..., health_message: _Optional[str] = ..., memory_mib: _Optional[int] = ..., slices_total: _Optional[int] = ..., slices_in_use: _Optional[int] = ..., allocated_fraction: _Optional[float] = ..., created: _Optional[_Mapping[str, int]] = ..., foreign: _Optional[int] = ..., quarantined: _Optional[int] = ..., creatable: _Optional[_Mapping[str, int]] = ..., creatable_total: _Optional[int] = ..., stale: _Optional[bool] = ..., observed_at: _Optional[str] = ...) -> None: ...

class FleetTotals(_message.Message):
    __slots__ = ("nodes", "nodes_stale", "gpus", "gpus_unhealthy", "slices_total", "slices_in_use", "created", "foreign", "quarantined", "creatable", "creatable_total")
    class CreatedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class CreatableEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODES_FIELD_NUMBER: _ClassVar[int]
    NODES_STALE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPUS_UNHEALTHY_FIELD_NUMBER: _ClassVar[int]
    SLICES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SLICES_IN_USE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    CREATABLE_FIELD_NUMBER: _ClassVar[int]
    CREATABLE_TOTAL_FIELD_NUMBER: _ClassVar[int]
    nodes: int
    nodes_stale: int
    gpus: int
    gpus_unhealthy: int
    slices_total: int
    slices_in_use: int
    created: _containers.ScalarMap[str, int]
    foreign: int
    quarantined: int
    creatable: _containers.ScalarMap[str, int]
    creatable_total: int
    def __init__(self, nodes: _Optional[int] = ..., nodes_stale: _Optional[int] = ..., gpus: _Optional[int] = ..., gpus_unhealthy: _Optional[int] = ..., slices_total: _Optional[int] = ..., slices_in_use: _Optional[int] = ..., created: _Optional[_Mapping[str, int]] = ..., foreign: _Optional[int] = ..., quarantined: _Optional[int] = ..., creatable: _Optional[_Mapping[str, int]] = ..., creatable_total: _Optional[int] = ...) -> None: ...

class GetAllocationMapRequest(_message.Message):
    __slots__ = ("nodes", "page_size", "page_token")
    NODES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    page_size: int
    page_token: str
    def __init__(self, nodes: _Optional[_Iterable[str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class GetAllocationMapResponse(_message.Message):
    __slots__ = ("gpus", "next_page_token")
    class GpusEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: GpuAllocation
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[GpuAllocation, _Mapping]] = ...) -> None: ...
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.MessageMap[str, GpuAllocation]
    next_page_token: str
    def __init__(self, gpus: _Optional[_Mapping[str, GpuAllocation]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GpuAllocation(_message.Message):
    __slots__ = ("node", "fraction_in_use", "slots", "observed_at", "stale")
    NODE_FIELD_NUMBER: _ClassVar[int]
    FRACTION_IN_USE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_AT_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    node: str
    fraction_in_use: float
    slots: _containers.RepeatedCompositeFieldContainer[Slot]
    observed_at: str
    stale: bool
    def __init__(self, node: _Optional[str] = ..., fraction_in_use: _Optional[float] = ..., slots: _Optional[_Iterable[_Union[Slot, _Mapping]]] = ..., observed_at: _Optional[str] = ..., stale: _Optional[bool] = ...) -> None: ...

class Slot(_message.Message):
    __slots__ = ("start", "size", "profile", "uuid", "state", "allocation", "request", "namespace", "name", "container", "share", "message")
    START_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    start: int
    size: int
    profile: str
    uuid: str
    state: SlotState
    allocation: str
    request: str
    namespace: str
    name: str
    container: str
    share: _node_pb2.Share
    message: str
    def __init__(self, start: _Optional[int] = ..., size: _Optional[int] = ..., profile: _Optional[str] = ..., uuid: _Optional[str] = ..., state: _Optional[_Union[SlotState, str]] = ..., allocation: _Optional[str] = ..., request: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., container: _Optional[str] = ..., share: _Optional[_Union[_node_pb2.Share, _Mapping]] = ..., message: _Optional[str] = ...) -> None: ...

class GetNodeRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class NodeInventory(_message.Message):
    __slots__ = ("snapshot", "stale", "stale_message", "removed", "observed_at", "incarnation")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    STALE_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_AT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    snapshot: _node_pb2.NodeSnapshot
    stale: bool
    stale_message: str
    removed: bool
    observed_at: str
    incarnation: str
    def __init__(self, snapshot: _Optional[_Union[_node_pb2.NodeSnapshot, _Mapping]] = ..., stale: _Optional[bool] = ..., stale_message: _Optional[str] = ..., removed: _Optional[bool] = ..., observed_at: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("node", "forgotten", "caught_up")
    NODE_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    node: NodeInventory
    forgotten: str
    caught_up: bool
    def __init__(self, node: _Optional[_Union[NodeInventory, _Mapping]] = ..., forgotten: _Optional[str] = ..., caught_up: _Optional[bool] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("from_unix", "until_unix", "by", "points")
    FROM_UNIX_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    from_unix: int
    until_unix: int
    by: ReportKey
    points: bool
    def __init__(self, from_unix: _Optional[int] = ..., until_unix: _Optional[int] = ..., by: _Optional[_Union[ReportKey, str]] = ..., points: _Optional[bool] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ("from_unix", "until_unix", "step_s", "rows")
    FROM_UNIX_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    from_unix: int
    until_unix: int
    step_s: int
    rows: _containers.RepeatedCompositeFieldContainer[ReportRow]
    def __init__(self, from_unix: _Optional[int] = ..., until_unix: _Optional[int] = ..., step_s: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[ReportRow, _Mapping]]] = ...) -> None: ...

class ReportRow(_message.Message):
    __slots__ = ("key", "gpu_hours", "memory_gib_hours", "pod_hours", "used_gpu_hours", "idle_gpu_hours", "capacity_gpu_hours", "waiting_pod_hours", "bound", "wait_p50_s", "wait_p95_s", "wait_max_s", "gpu_hours_by_model", "points")
    class GpuHoursByModelEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GIB_HOURS_FIELD_NUMBER: _ClassVar[int]
    POD_HOURS_FIELD_NUMBER: _ClassVar[int]
    USED_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    IDLE_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    WAITING_POD_HOURS_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    WAIT_P50_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_P95_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_MAX_S_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_BY_MODEL_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    key: str
    gpu_hours: float
    memory_gib_hours: float
    pod_hours: float
    used_gpu_hours: float
    idle_gpu_hours: float
    capacity_gpu_hours: float
    waiting_pod_hours: float
    bound: int
    wait_p50_s: float
    wait_p95_s: float
    wait_max_s: float
    gpu_hours_by_model: _containers.ScalarMap[str, float]
    points: _containers.RepeatedCompositeFieldContainer[ReportPoint]
    def __init__(self, key: _Optional[str] = ..., gpu_hours: _Optional[float] = ..., memory_gib_hours: _Optional[float] = ..., pod_hours: _Optional[float] = ..., used_gpu_hours: _Optional[float] = ..., idle_gpu_hours: _Optional[float] = ..., capacity_gpu_hours: _Optional[float] = ..., waiting_pod_hours: _Optional[float] = ..., bound: _Optional[int] = ..., wait_p50_s: _Optional[float] = ..., wait_p95_s: _Optional[float] = ..., wait_max_s: _Optional[float] = ..., gpu_hours_by_model: _Optional[_Mapping[str, float]] = ..., points: _Optional[_Iterable[_Union[ReportPoint, _Mapping]]] = ...) -> None: ...

class ReportPoint(_message.Message):
    __slots__ = ("start_unix", "allocated_gpus", "used_gpus", "capacity_gpus", "waiting_pods")
    START_UNIX_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_GPUS_FIELD_NUMBER: _ClassVar[int]
    USED_GPUS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_GPUS_FIELD_NUMBER: _ClassVar[int]
    WAITING_PODS_FIELD_NUMBER: _ClassVar[int]
    start_unix: int
    allocated_gpus: float
    used_gpus: float
    capacity_gpus: float
    waiting_pods: float
    def __init__(self, start_unix: _Optional[int] = ..., allocated_gpus: _Optional[float] = ..., used_gpus: _Optional[float] = ..., capacity_gpus: _Optional[float] = ..., waiting_pods: _Optional[float] = ...) -> None: ...
