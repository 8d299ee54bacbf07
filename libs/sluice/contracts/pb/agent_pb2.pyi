from sluice.contracts.pb import node_pb2 as _node_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReleaseQuarantineRequest(_message.Message):
    __slots__ = ("node", "allocation", "ignore_holders")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    IGNORE_HOLDERS_FIELD_NUMBER: _ClassVar[int]
    node: str
    allocation: str
    ignore_holders: bool
    def __init__(self, node: _Optional[str] = ..., allocation: _Optional[str] = ..., ignore_holders: _Optional[bool] = ...) -> None: ...

class ReleaseQuarantineResponse(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class GetInventoryRequest(_message.Message):
    __slots__ = ("node", "known_run", "known_generation")
    NODE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_RUN_FIELD_NUMBER: _ClassVar[int]
    KNOWN_GENERATION_FIELD_NUMBER: _ClassVar[int]
    node: str
    known_run: str
    known_generation: int
    def __init__(self, node: _Optional[str] = ..., known_run: _Optional[str] = ..., known_generation: _Optional[int] = ...) -> None: ...

class GetHealthRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class GetHealthResponse(_message.Message):
    __slots__ = ("node", "boot_id", "agent_run", "generation", "ready", "message")
    NODE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_RUN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    node: str
    boot_id: str
    agent_run: str
    generation: int
    ready: bool
    message: str
    def __init__(self, node: _Optional[str] = ..., boot_id: _Optional[str] = ..., agent_run: _Optional[str] = ..., generation: _Optional[int] = ..., ready: _Optional[bool] = ..., message: _Optional[str] = ...) -> None: ...

class GetUsageRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class NodeUsage(_message.Message):
    __slots__ = ("node", "every_s", "slices")
    NODE_FIELD_NUMBER: _ClassVar[int]
    EVERY_S_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    node: str
    every_s: float
    slices: _containers.RepeatedCompositeFieldContainer[SliceUsage]
    def __init__(self, node: _Optional[str] = ..., every_s: _Optional[float] = ..., slices: _Optional[_Iterable[_Union[SliceUsage, _Mapping]]] = ...) -> None: ...

class SliceUsage(_message.Message):
    __slots__ = ("allocation", "request", "namespace", "name", "containers", "gpu", "device", "profile", "mode", "memory_mib", "memory_used_mib", "busy_percent", "sm_percent", "memory_busy_percent", "processes", "watched_s", "age_s", "idle_s")
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_MIB_FIELD_NUMBER: _ClassVar[int]
    BUSY_PERCENT_FIELD_NUMBER: _ClassVar[int]
    SM_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BUSY_PERCENT_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    WATCHED_S_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    allocation: str
    request: str
    namespace: str
    name: str
    containers: _containers.RepeatedScalarFieldContainer[str]
    gpu: str
    device: str
    profile: str
    mode: _node_pb2.Mode
    memory_mib: int
    memory_used_mib: int
    busy_percent: float
    sm_percent: float
    memory_busy_percent: float
    processes: int
    watched_s: float
    age_s: float
    idle_s: float
    def __init__(self, allocation: _Optional[str] = ..., request: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., containers: _Optional[_Iterable[str]] = ..., gpu: _Optional[str] = ..., device: _Optional[str] = ..., profile: _Optional[str] = ..., mode: _Optional[_Union[_node_pb2.Mode, str]] = ..., memory_mib: _Optional[int] = ..., memory_used_mib: _Optional[int] = ..., busy_percent: _Optional[float] = ..., sm_percent: _Optional[float] = ..., memory_busy_percent: _Optional[float] = ..., processes: _Optional[int] = ..., watched_s: _Optional[float] = ..., age_s: _Optional[float] = ..., idle_s: _Optional[float] = ...) -> None: ...
