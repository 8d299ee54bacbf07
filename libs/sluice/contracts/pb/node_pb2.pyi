from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_EXCLUSIVE: _ClassVar[Mode]
    MODE_MPS: _ClassVar[Mode]
    MODE_FRACTIONAL: _ClassVar[Mode]

class DaemonState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DAEMON_STATE_UNSPECIFIED: _ClassVar[DaemonState]
    DAEMON_STATE_STARTING: _ClassVar[DaemonState]
    DAEMON_STATE_READY: _ClassVar[DaemonState]
    DAEMON_STATE_FAULT: _ClassVar[DaemonState]
    DAEMON_STATE_DOWN: _ClassVar[DaemonState]
    DAEMON_STATE_STOPPING: _ClassVar[DaemonState]

class SliceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SLICE_STATE_UNSPECIFIED: _ClassVar[SliceState]
    SLICE_STATE_PLANNED: _ClassVar[SliceState]
    SLICE_STATE_MAKING: _ClassVar[SliceState]
    SLICE_STATE_READY: _ClassVar[SliceState]
    SLICE_STATE_FAILED: _ClassVar[SliceState]
    SLICE_STATE_DEGRADED: _ClassVar[SliceState]
    SLICE_STATE_UNMAKING: _ClassVar[SliceState]
    SLICE_STATE_QUARANTINED: _ClassVar[SliceState]
MODE_UNSPECIFIED: Mode
MODE_EXCLUSIVE: Mode
MODE_MPS: Mode
MODE_FRACTIONAL: Mode
DAEMON_STATE_UNSPECIFIED: DaemonState
DAEMON_STATE_STARTING: DaemonState
DAEMON_STATE_READY: DaemonState
DAEMON_STATE_FAULT: DaemonState
DAEMON_STATE_DOWN: DaemonState
DAEMON_STATE_STOPPING: DaemonState
SLICE_STATE_UNSPECIFIED: SliceState
SLICE_STATE_PLANNED: SliceState
SLICE_STATE_MAKING: SliceState
SLICE_STATE_READY: SliceState
SLICE_STATE_FAILED: SliceState
SLICE_STATE_DEGRADED: SliceState
SLICE_STATE_UNMAKING: SliceState
SLICE_STATE_QUARANTINED: SliceState

class NodeSnapshot(_message.Message):
    __slots__ = ("node", "boot_id", "agent_run", "generation", "driver_version", "gpus", "slices", "modes", "time_quota", "toolkit_version", "warnings", "kubelet_hands_over", "doubtful_tickets", "unchanged")
    NODE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_RUN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    MODES_FIELD_NUMBER: _ClassVar[int]
    TIME_QUOTA_FIELD_NUMBER: _ClassVar[int]
    TOOLKIT_VERSION_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    KUBELET_HANDS_OVER_FIELD_NUMBER: _ClassVar[int]
    DOUBTFUL_TICKETS_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    node: str
    boot_id: str
    agent_run: str
    generation: int
    driver_version: str
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    slices: _containers.RepeatedCompositeFieldContainer[SliceReport]
    modes: _containers.RepeatedScalarFieldContainer[Mode]
    time_quota: bool
    toolkit_version: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    kubelet_hands_over: bool
    doubtful_tickets: _containers.RepeatedScalarFieldContainer[str]
    unchanged: bool
    def __init__(self, node: _Optional[str] = ..., boot_id: _Optional[str] = ..., agent_run: _Optional[str] = ..., generation: _Optional[int] = ..., driver_version: _Optional[str] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., slices: _Optional[_Iterable[_Union[SliceReport, _Mapping]]] = ..., modes: _Optional[_Iterable[_Union[Mode, str]]] = ..., time_quota: _Optional[bool] = ..., toolkit_version: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ..., kubelet_hands_over: _Optional[bool] = ..., doubtful_tickets: _Optional[_Iterable[str]] = ..., unchanged: _Optional[bool] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("uuid", "index", "model", "memory_mib", "multiprocessors", "mig_enabled", "memory_slices", "compute_slices", "profiles", "instances", "creatable", "healthy", "health_message", "quarantined", "numa_node", "links", "mps_clients_max", "lost", "daemons", "fixed_layout")
    class CreatableEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LinksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    UUID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    MULTIPROCESSORS_FIELD_NUMBER: _ClassVar[int]
    MIG_ENABLED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_SLICES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SLICES_FIELD_NUMBER: _ClassVar[int]
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    CREATABLE_FIELD_NUMBER: _ClassVar[int]
    HEALTHY_FIELD_NUMBER: _ClassVar[int]
    HEALTH_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    MPS_CLIENTS_MAX_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    DAEMONS_FIELD_NUMBER: _ClassVar[int]
    FIXED_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    index: int
    model: str
    memory_mib: int
    multiprocessors: int
    mig_enabled: bool
    memory_slices: int
    compute_slices: int
    profiles: _containers.RepeatedCompositeFieldContainer[Profile]
    instances: _containers.RepeatedCompositeFieldContainer[Instance]
    creatable: _containers.ScalarMap[str, int]
    healthy: bool
    health_message: str
    quarantined: _containers.RepeatedCompositeFieldContainer[Placement]
    numa_node: int
    links: _containers.ScalarMap[str, int]
    mps_clients_max: int
    lost: bool
    daemons: _containers.RepeatedCompositeFieldContainer[MpsDaemon]
    fixed_layout: bool
    def __init__(self, uuid: _Optional[str] = ..., index: _Optional[int] = ..., model: _Optional[str] = ..., memory_mib: _Optional[int] = ..., multiprocessors: _Optional[int] = ..., mig_enabled: _Optional[bool] = ..., memory_slices: _Optional[int] = ..., compute_slices: _Optional[int] = ..., profiles: _Optional[_Iterable[_Union[Profile, _Mapping]]] = ..., instances: _Optional[_Iterable[_Union[Instance, _Mapping]]] = ..., creatable: _Optional[_Mapping[str, int]] = ..., healthy: _Optional[bool] = ..., health_message: _Optional[str] = ..., quarantined: _Optional[_Iterable[_Union[Placement, _Mapping]]] = ..., numa_node: _Optional[int] = ..., links: _Optional[_Mapping[str, int]] = ..., mps_clients_max: _Optional[int] = ..., lost: _Optional[bool] = ..., daemons: _Optional[_Iterable[_Union[MpsDaemon, _Mapping]]] = ..., fixed_layout: _Optional[bool] = ...) -> None: ...

class MpsDaemon(_message.Message):
    __slots__ = ("profile", "start", "size", "device", "namespace", "uid", "state", "pid", "clients", "message")
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    profile: str
    start: int
    size: int
    device: str
    namespace: str
    uid: int
    state: DaemonState
    pid: int
    clients: int
    message: str
    def __init__(self, profile: _Optional[str] = ..., start: _Optional[int] = ..., size: _Optional[int] = ..., device: _Optional[str] = ..., namespace: _Optional[str] = ..., uid: _Optional[int] = ..., state: _Optional[_Union[DaemonState, str]] = ..., pid: _Optional[int] = ..., clients: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("start", "size")
    START_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    start: int
    size: int
    def __init__(self, start: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Profile(_message.Message):
    __slots__ = ("name", "profile_id", "compute_slices", "memory_mib", "multiprocessors", "copy_engines", "decoders", "encoders", "jpegs", "ofas", "max_instances", "placements")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROFILE_ID_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SLICES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    MULTIPROCESSORS_FIELD_NUMBER: _ClassVar[int]
    COPY_ENGINES_FIELD_NUMBER: _ClassVar[int]
    DECODERS_FIELD_NUMBER: _ClassVar[int]
    ENCODERS_FIELD_NUMBER: _ClassVar[int]
    JPEGS_FIELD_NUMBER: _ClassVar[int]
    OFAS_FIELD_NUMBER: _ClassVar[int]
    MAX_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    profile_id: int
    compute_slices: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpegs: int
    ofas: int
    max_instances: int
    placements: _containers.RepeatedCompositeFieldContainer[Placement]
    def __init__(self, name: _Optional[str] = ..., profile_id: _Optional[int] = ..., compute_slices: _Optional[int] = ..., memory_mib: _Optional[int] = ..., multiprocessors: _Optional[int] = ..., copy_engines: _Optional[int] = ..., decoders: _Optional[int] = ..., encoders: _Optional[int] = ..., jpegs: _Optional[int] = ..., ofas: _Optional[int] = ..., max_instances: _Optional[int] = ..., placements: _Optional[_Iterable[_Union[Placement, _Mapping]]] = ...) -> None: ...

class Instance(_message.Message):
    __slots__ = ("gi_id", "profile", "start", "size", "uuid", "allocation", "unusable")
    GI_ID_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_FIELD_NUMBER: _ClassVar[int]
    gi_id: int
    profile: str
    start: int
    size: int
    uuid: str
    allocation: str
    unusable: str
    def __init__(self, gi_id: _Optional[int] = ..., profile: _Optional[str] = ..., start: _Optional[int] = ..., size: _Optional[int] = ..., uuid: _Optional[str] = ..., allocation: _Optional[str] = ..., unusable: _Optional[str] = ...) -> None: ...

class SliceReport(_message.Message):
    __slots__ = ("booking", "revision", "state", "revoked", "after", "evict", "counts", "idle_since")
    BOOKING_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    EVICT_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    IDLE_SINCE_FIELD_NUMBER: _ClassVar[int]
    booking: Booking
    revision: int
    state: SliceState
    revoked: bool
    after: _containers.RepeatedScalarFieldContainer[str]
    evict: bool
    counts: _containers.RepeatedCompositeFieldContainer[DeviceGrant]
    idle_since: int
    def __init__(self, booking: _Optional[_Union[Booking, _Mapping]] = ..., revision: _Optional[int] = ..., state: _Optional[_Union[SliceState, str]] = ..., revoked: _Optional[bool] = ..., after: _Optional[_Iterable[str]] = ..., evict: _Optional[bool] = ..., counts: _Optional[_Iterable[_Union[DeviceGrant, _Mapping]]] = ..., idle_since: _Optional[int] = ...) -> None: ...

class Booking(_message.Message):
    __slots__ = ("allocation", "request", "request_revision", "source", "owner", "namespace", "name", "node", "devices", "room", "instead_of", "resource_claims")
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_REVISION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    INSTEAD_OF_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    allocation: str
    request: str
    request_revision: int
    source: str
    owner: str
    namespace: str
    name: str
    node: str
    devices: _containers.RepeatedCompositeFieldContainer[DeviceGrant]
    room: HostRoom
    instead_of: str
    resource_claims: _containers.RepeatedCompositeFieldContainer[ResourceClaimRef]
    def __init__(self, allocation: _Optional[str] = ..., request: _Optional[str] = ..., request_revision: _Optional[int] = ..., source: _Optional[str] = ..., owner: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., node: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[DeviceGrant, _Mapping]]] = ..., room: _Optional[_Union[HostRoom, _Mapping]] = ..., instead_of: _Optional[str] = ..., resource_claims: _Optional[_Iterable[_Union[ResourceClaimRef, _Mapping]]] = ...) -> None: ...

class ResourceClaimRef(_message.Message):
    __slots__ = ("uid", "name", "requests", "shared")
    class RequestsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    UID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    uid: str
    name: str
    requests: _containers.ScalarMap[str, str]
    shared: bool
    def __init__(self, uid: _Optional[str] = ..., name: _Optional[str] = ..., requests: _Optional[_Mapping[str, str]] = ..., shared: _Optional[bool] = ...) -> None: ...

class HostRoom(_message.Message):
    __slots__ = ("cpu_milli", "memory_mib", "resources")
    class ResourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    cpu_milli: int
    memory_mib: int
    resources: _containers.ScalarMap[str, int]
    def __init__(self, cpu_milli: _Optional[int] = ..., memory_mib: _Optional[int] = ..., resources: _Optional[_Mapping[str, int]] = ...) -> None: ...

class DeviceGrant(_message.Message):
    __slots__ = ("container", "gpu", "profile", "start", "size", "share")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    container: str
    gpu: str
    profile: str
    start: int
    size: int
    share: Share
    def __init__(self, container: _Optional[str] = ..., gpu: _Optional[str] = ..., profile: _Optional[str] = ..., start: _Optional[int] = ..., size: _Optional[int] = ..., share: _Optional[_Union[Share, _Mapping]] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("mode", "uid", "memory_mib", "sm_partition", "quota_request_permille", "quota_limit_permille")
    MODE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    SM_PARTITION_FIELD_NUMBER: _ClassVar[int]
    QUOTA_REQUEST_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    QUOTA_LIMIT_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    mode: Mode
    uid: int
    memory_mib: int
    sm_partition: int
    quota_request_permille: int
    quota_limit_permille: int
    def __init__(self, mode: _Optional[_Union[Mode, str]] = ..., uid: _Optional[int] = ..., memory_mib: _Optional[int] = ..., sm_partition: _Optional[int] = ..., quota_request_permille: _Optional[int] = ..., quota_limit_permille: _Optional[int] = ...) -> None: ...
