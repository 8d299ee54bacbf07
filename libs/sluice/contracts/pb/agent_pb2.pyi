from sluice.contracts.pb import node_pb2 as _node_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

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
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

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
