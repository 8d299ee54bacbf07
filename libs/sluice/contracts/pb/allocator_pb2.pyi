from sluice.contracts.pb import node_pb2 as _node_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_STATE_UNSPECIFIED: _ClassVar[RequestState]
    REQUEST_STATE_QUEUED: _ClassVar[RequestState]
    REQUEST_STATE_HELD: _ClassVar[RequestState]
    REQUEST_STATE_COMMITTING: _ClassVar[RequestState]
    REQUEST_STATE_GRANTED: _ClassVar[RequestState]
    REQUEST_STATE_BOUND: _ClassVar[RequestState]
    REQUEST_STATE_REFUSED: _ClassVar[RequestState]
    REQUEST_STATE_ENDING: _ClassVar[RequestState]
    REQUEST_STATE_RELEASED: _ClassVar[RequestState]
    REQUEST_STATE_REJECTED: _ClassVar[RequestState]
    REQUEST_STATE_SEEN: _ClassVar[RequestState]

class AdjustEffect(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADJUST_EFFECT_UNSPECIFIED: _ClassVar[AdjustEffect]
    ADJUST_EFFECT_UNCHANGED: _ClassVar[AdjustEffect]
    ADJUST_EFFECT_NOW: _ClassVar[AdjustEffect]
    ADJUST_EFFECT_NEXT_PROCESS_START: _ClassVar[AdjustEffect]

class AdjustRefusal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADJUST_REFUSAL_UNSPECIFIED: _ClassVar[AdjustRefusal]
    ADJUST_REFUSAL_INVALID_VALUE: _ClassVar[AdjustRefusal]
    ADJUST_REFUSAL_NOT_FOUND: _ClassVar[AdjustRefusal]
    ADJUST_REFUSAL_NOT_BOUND: _ClassVar[AdjustRefusal]
    ADJUST_REFUSAL_NOT_A_SHARE: _ClassVar[AdjustRefusal]
    ADJUST_REFUSAL_UNCHANGED: _ClassVar[AdjustRefusal]
    ADJUST_REFUSAL_CAPACITY_EXCEEDED: _ClassVar[AdjustRefusal]
    ADJUST_REFUSAL_QUOTA_EXCEEDED: _ClassVar[AdjustRefusal]
    ADJUST_REFUSAL_NOT_NOW: _ClassVar[AdjustRefusal]
REQUEST_STATE_UNSPECIFIED: RequestState
REQUEST_STATE_QUEUED: RequestState
REQUEST_STATE_HELD: RequestState
REQUEST_STATE_COMMITTING: RequestState
REQUEST_STATE_GRANTED: RequestState
REQUEST_STATE_BOUND: RequestState
REQUEST_STATE_REFUSED: RequestState
REQUEST_STATE_ENDING: RequestState
REQUEST_STATE_RELEASED: RequestState
REQUEST_STATE_REJECTED: RequestState
REQUEST_STATE_SEEN: RequestState
ADJUST_EFFECT_UNSPECIFIED: AdjustEffect
ADJUST_EFFECT_UNCHANGED: AdjustEffect
ADJUST_EFFECT_NOW: AdjustEffect
ADJUST_EFFECT_NEXT_PROCESS_START: AdjustEffect
ADJUST_REFUSAL_UNSPECIFIED: AdjustRefusal
ADJUST_REFUSAL_INVALID_VALUE: AdjustRefusal
ADJUST_REFUSAL_NOT_FOUND: AdjustRefusal
ADJUST_REFUSAL_NOT_BOUND: AdjustRefusal
ADJUST_REFUSAL_NOT_A_SHARE: AdjustRefusal
ADJUST_REFUSAL_UNCHANGED: AdjustRefusal
ADJUST_REFUSAL_CAPACITY_EXCEEDED: AdjustRefusal
ADJUST_REFUSAL_QUOTA_EXCEEDED: AdjustRefusal
ADJUST_REFUSAL_NOT_NOW: AdjustRefusal

class SimulateRequest(_message.Message):
    __slots__ = ("namespace", "name", "annotations", "containers", "host", "priority", "never_preempts", "labels", "same_gpu", "by_claim", "next")
    class AnnotationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NEVER_PREEMPTS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SAME_GPU_FIELD_NUMBER: _ClassVar[int]
    BY_CLAIM_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    annotations: _containers.ScalarMap[str, str]
    containers: _containers.RepeatedCompositeFieldContainer[ContainerAsk]
    host: HostNeeds
    priority: int
    never_preempts: bool
    labels: _containers.ScalarMap[str, str]
    same_gpu: _containers.RepeatedCompositeFieldContainer[OneGpu]
    by_claim: bool
    next: _containers.RepeatedCompositeFieldContainer[SimulateRequest]
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., annotations: _Optional[_Mapping[str, str]] = ..., containers: _Optional[_Iterable[_Union[ContainerAsk, _Mapping]]] = ..., host: _Optional[_Union[HostNeeds, _Mapping]] = ..., priority: _Optional[int] = ..., never_preempts: _Optional[bool] = ..., labels: _Optional[_Mapping[str, str]] = ..., same_gpu: _Optional[_Iterable[_Union[OneGpu, _Mapping]]] = ..., by_claim: _Optional[bool] = ..., next: _Optional[_Iterable[_Union[SimulateRequest, _Mapping]]] = ...) -> None: ...

class OneGpu(_message.Message):
    __slots__ = ("containers",)
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    containers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, containers: _Optional[_Iterable[str]] = ...) -> None: ...

class ContainerAsk(_message.Message):
    __slots__ = ("name", "limits", "requests", "run_as_user", "driver_capabilities")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class RequestsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    RUN_AS_USER_FIELD_NUMBER: _ClassVar[int]
    DRIVER_CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    name: str
    limits: _containers.ScalarMap[str, str]
    requests: _containers.ScalarMap[str, str]
    run_as_user: int
    driver_capabilities: str
    def __init__(self, name: _Optional[str] = ..., limits: _Optional[_Mapping[str, str]] = ..., requests: _Optional[_Mapping[str, str]] = ..., run_as_user: _Optional[int] = ..., driver_capabilities: _Optional[str] = ...) -> None: ...

class HostNeeds(_message.Message):
    __slots__ = ("room", "node_name", "node_selector", "affinity", "tolerations", "beside", "apart", "spread", "ports")
    class NodeSelectorEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ROOM_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    AFFINITY_FIELD_NUMBER: _ClassVar[int]
    TOLERATIONS_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    APART_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    room: _node_pb2.HostRoom
    node_name: str
    node_selector: _containers.ScalarMap[str, str]
    affinity: _containers.RepeatedCompositeFieldContainer[NodeTerm]
    tolerations: _containers.RepeatedCompositeFieldContainer[Toleration]
    beside: _containers.RepeatedCompositeFieldContainer[PodTerm]
    apart: _containers.RepeatedCompositeFieldContainer[PodTerm]
    spread: _containers.RepeatedCompositeFieldContainer[SpreadTerm]
    ports: _containers.RepeatedCompositeFieldContainer[HostPort]
    def __init__(self, room: _Optional[_Union[_node_pb2.HostRoom, _Mapping]] = ..., node_name: _Optional[str] = ..., node_selector: _Optional[_Mapping[str, str]] = ..., affinity: _Optional[_Iterable[_Union[NodeTerm, _Mapping]]] = ..., tolerations: _Optional[_Iterable[_Union[Toleration, _Mapping]]] = ..., beside: _Optional[_Iterable[_Union[PodTerm, _Mapping]]] = ..., apart: _Optional[_Iterable[_Union[PodTerm, _Mapping]]] = ..., spread: _Optional[_Iterable[_Union[SpreadTerm, _Mapping]]] = ..., ports: _Optional[_Iterable[_Union[HostPort, _Mapping]]] = ...) -> None: ...

class PodTerm(_message.Message):
    __slots__ = ("topology_key", "selector", "namespaces")
    TOPOLOGY_KEY_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    topology_key: str
    selector: _containers.RepeatedCompositeFieldContainer[NodeExpression]
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topology_key: _Optional[str] = ..., selector: _Optional[_Iterable[_Union[NodeExpression, _Mapping]]] = ..., namespaces: _Optional[_Iterable[str]] = ...) -> None: ...

class SpreadTerm(_message.Message):
    __slots__ = ("topology_key", "max_skew", "selector", "min_domains", "ignores_affinity", "honors_taints")
    TOPOLOGY_KEY_FIELD_NUMBER: _ClassVar[int]
    MAX_SKEW_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    MIN_DOMAINS_FIELD_NUMBER: _ClassVar[int]
    IGNORES_AFFINITY_FIELD_NUMBER: _ClassVar[int]
    HONORS_TAINTS_FIELD_NUMBER: _ClassVar[int]
    topology_key: str
    max_skew: int
    selector: _containers.RepeatedCompositeFieldContainer[NodeExpression]
    min_domains: int
    ignores_affinity: bool
    honors_taints: bool
    def __init__(self, topology_key: _Optional[str] = ..., max_skew: _Optional[int] = ..., selector: _Optional[_Iterable[_Union[NodeExpression, _Mapping]]] = ..., min_domains: _Optional[int] = ..., ignores_affinity: _Optional[bool] = ..., honors_taints: _Optional[bool] = ...) -> None: ...

class HostPort(_message.Message):
    __slots__ = ("port", "protocol", "ip")
    PORT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    port: int
    protocol: str
    ip: str
    def __init__(self, port: _Optional[int] = ..., protocol: _Optional[str] = ..., ip: _Optional[str] = ...) -> None: ...

class NodeTerm(_message.Message):
    __slots__ = ("expressions",)
    EXPRESSIONS_FIELD_NUMBER: _ClassVar[int]
    expressions: _containers.RepeatedCompositeFieldContainer[NodeExpression]
    def __init__(self, expressions: _Optional[_Iterable[_Union[NodeExpression, _Mapping]]] = ...) -> None: ...

class NodeExpression(_message.Message):
    __slots__ = ("key", "operator", "values")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    key: str
    operator: str
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, key: _Optional[str] = ..., operator: _Optional[str] = ..., values: _Optional[_Iterable[str]] = ...) -> None: ...

class Toleration(_message.Message):
    __slots__ = ("key", "operator", "value", "effect")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    key: str
    operator: str
    value: str
    effect: str
    def __init__(self, key: _Optional[str] = ..., operator: _Optional[str] = ..., value: _Optional[str] = ..., effect: _Optional[str] = ...) -> None: ...

class SimulateResponse(_message.Message):
    __slots__ = ("bound", "waits", "refused", "nothing", "decided_by", "waiting", "devices_max", "next")
    BOUND_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    NOTHING_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    DEVICES_MAX_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    bound: WouldBeBound
    waits: WouldWait
    refused: Refusal
    nothing: AsksNothing
    decided_by: str
    waiting: int
    devices_max: int
    next: _containers.RepeatedCompositeFieldContainer[SimulateResponse]
    def __init__(self, bound: _Optional[_Union[WouldBeBound, _Mapping]] = ..., waits: _Optional[_Union[WouldWait, _Mapping]] = ..., refused: _Optional[_Union[Refusal, _Mapping]] = ..., nothing: _Optional[_Union[AsksNothing, _Mapping]] = ..., decided_by: _Optional[str] = ..., waiting: _Optional[int] = ..., devices_max: _Optional[int] = ..., next: _Optional[_Iterable[_Union[SimulateResponse, _Mapping]]] = ...) -> None: ...

class AsksNothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WouldBeBound(_message.Message):
    __slots__ = ("node", "devices", "left", "others", "more", "evicts", "instead_of")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    EVICTS_FIELD_NUMBER: _ClassVar[int]
    INSTEAD_OF_FIELD_NUMBER: _ClassVar[int]
    node: str
    devices: _containers.RepeatedCompositeFieldContainer[PlacedDevice]
    left: _containers.RepeatedCompositeFieldContainer[LeftOver]
    others: _containers.RepeatedCompositeFieldContainer[Step]
    more: int
    evicts: _containers.RepeatedCompositeFieldContainer[EvictedPod]
    instead_of: str
    def __init__(self, node: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[PlacedDevice, _Mapping]]] = ..., left: _Optional[_Iterable[_Union[LeftOver, _Mapping]]] = ..., others: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., more: _Optional[int] = ..., evicts: _Optional[_Iterable[_Union[EvictedPod, _Mapping]]] = ..., instead_of: _Optional[str] = ...) -> None: ...

class EvictedPod(_message.Message):
    __slots__ = ("namespace", "name", "priority", "memory_mib")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    priority: int
    memory_mib: int
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., priority: _Optional[int] = ..., memory_mib: _Optional[int] = ...) -> None: ...

class PlacedDevice(_message.Message):
    __slots__ = ("container", "gpu", "model", "mode", "profile", "start", "size", "memory_mib", "sm_percent", "share")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    SM_PERCENT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    container: str
    gpu: str
    model: str
    mode: _node_pb2.Mode
    profile: str
    start: int
    size: int
    memory_mib: int
    sm_percent: int
    share: _node_pb2.Share
    def __init__(self, container: _Optional[str] = ..., gpu: _Optional[str] = ..., model: _Optional[str] = ..., mode: _Optional[_Union[_node_pb2.Mode, str]] = ..., profile: _Optional[str] = ..., start: _Optional[int] = ..., size: _Optional[int] = ..., memory_mib: _Optional[int] = ..., sm_percent: _Optional[int] = ..., share: _Optional[_Union[_node_pb2.Share, _Mapping]] = ...) -> None: ...

class LeftOver(_message.Message):
    __slots__ = ("gpu", "creatable_before", "creatable_after", "homes")
    class CreatableBeforeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class CreatableAfterEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    GPU_FIELD_NUMBER: _ClassVar[int]
    CREATABLE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    CREATABLE_AFTER_FIELD_NUMBER: _ClassVar[int]
    HOMES_FIELD_NUMBER: _ClassVar[int]
    gpu: str
    creatable_before: _containers.ScalarMap[str, int]
    creatable_after: _containers.ScalarMap[str, int]
    homes: _containers.RepeatedCompositeFieldContainer[HomeLeft]
    def __init__(self, gpu: _Optional[str] = ..., creatable_before: _Optional[_Mapping[str, int]] = ..., creatable_after: _Optional[_Mapping[str, int]] = ..., homes: _Optional[_Iterable[_Union[HomeLeft, _Mapping]]] = ...) -> None: ...

class HomeLeft(_message.Message):
    __slots__ = ("profile", "start", "size", "memory_mib", "memory_free_mib", "sm_percent", "sm_percent_free", "tenants", "tenants_max")
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FREE_MIB_FIELD_NUMBER: _ClassVar[int]
    SM_PERCENT_FIELD_NUMBER: _ClassVar[int]
    SM_PERCENT_FREE_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_MAX_FIELD_NUMBER: _ClassVar[int]
    profile: str
    start: int
    size: int
    memory_mib: int
    memory_free_mib: int
    sm_percent: int
    sm_percent_free: int
    tenants: int
    tenants_max: int
    def __init__(self, profile: _Optional[str] = ..., start: _Optional[int] = ..., size: _Optional[int] = ..., memory_mib: _Optional[int] = ..., memory_free_mib: _Optional[int] = ..., sm_percent: _Optional[int] = ..., sm_percent_free: _Optional[int] = ..., tenants: _Optional[int] = ..., tenants_max: _Optional[int] = ...) -> None: ...

class WouldWait(_message.Message):
    __slots__ = ("message", "steps", "more")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    message: str
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    more: int
    def __init__(self, message: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., more: _Optional[int] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("filter", "reasons")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    filter: str
    reasons: _containers.RepeatedCompositeFieldContainer[Reason]
    def __init__(self, filter: _Optional[str] = ..., reasons: _Optional[_Iterable[_Union[Reason, _Mapping]]] = ...) -> None: ...

class Reason(_message.Message):
    __slots__ = ("reason", "count", "of", "on", "known_as")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    ON_FIELD_NUMBER: _ClassVar[int]
    KNOWN_AS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    count: int
    of: str
    on: str
    known_as: str
    def __init__(self, reason: _Optional[str] = ..., count: _Optional[int] = ..., of: _Optional[str] = ..., on: _Optional[str] = ..., known_as: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "message", "field", "value", "allowed")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    field: str
    value: str
    allowed: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., value: _Optional[str] = ..., allowed: _Optional[str] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: str
    def __init__(self, request: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("request", "state", "message", "request_revision", "node", "allocation", "devices", "turn", "steps", "refused", "decided_by", "more", "proposal")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_REVISION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    request: str
    state: RequestState
    message: str
    request_revision: int
    node: str
    allocation: str
    devices: _containers.RepeatedCompositeFieldContainer[PlacedDevice]
    turn: Turn
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    refused: Refusal
    decided_by: str
    more: int
    proposal: MoveProposal
    def __init__(self, request: _Optional[str] = ..., state: _Optional[_Union[RequestState, str]] = ..., message: _Optional[str] = ..., request_revision: _Optional[int] = ..., node: _Optional[str] = ..., allocation: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[PlacedDevice, _Mapping]]] = ..., turn: _Optional[_Union[Turn, _Mapping]] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., refused: _Optional[_Union[Refusal, _Mapping]] = ..., decided_by: _Optional[str] = ..., more: _Optional[int] = ..., proposal: _Optional[_Union[MoveProposal, _Mapping]] = ...) -> None: ...

class MoveProposal(_message.Message):
    __slots__ = ("node", "devices", "moves", "gains_mib", "moves_mib", "is_done")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    GAINS_MIB_FIELD_NUMBER: _ClassVar[int]
    MOVES_MIB_FIELD_NUMBER: _ClassVar[int]
    IS_DONE_FIELD_NUMBER: _ClassVar[int]
    node: str
    devices: _containers.RepeatedCompositeFieldContainer[PlacedDevice]
    moves: _containers.RepeatedCompositeFieldContainer[MovedPod]
    gains_mib: int
    moves_mib: int
    is_done: bool
    def __init__(self, node: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[PlacedDevice, _Mapping]]] = ..., moves: _Optional[_Iterable[_Union[MovedPod, _Mapping]]] = ..., gains_mib: _Optional[int] = ..., moves_mib: _Optional[int] = ..., is_done: _Optional[bool] = ...) -> None: ...

class MovedPod(_message.Message):
    __slots__ = ("namespace", "name", "from_node", "to_node", "memory_mib", "rested")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FROM_NODE_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    RESTED_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    from_node: str
    to_node: str
    memory_mib: int
    rested: bool
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., from_node: _Optional[str] = ..., to_node: _Optional[str] = ..., memory_mib: _Optional[int] = ..., rested: _Optional[bool] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("priority", "before", "waiting", "ahead")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    priority: int
    before: int
    waiting: int
    ahead: int
    def __init__(self, priority: _Optional[int] = ..., before: _Optional[int] = ..., waiting: _Optional[int] = ..., ahead: _Optional[int] = ...) -> None: ...

class AdjustRequest(_message.Message):
    __slots__ = ("request", "container", "memory_mib", "sm_partition", "quota_request_permille", "quota_limit_permille", "dry_run")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    SM_PARTITION_FIELD_NUMBER: _ClassVar[int]
    QUOTA_REQUEST_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    QUOTA_LIMIT_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    request: str
    container: str
    memory_mib: int
    sm_partition: int
    quota_request_permille: int
    quota_limit_permille: int
    dry_run: bool
    def __init__(self, request: _Optional[str] = ..., container: _Optional[str] = ..., memory_mib: _Optional[int] = ..., sm_partition: _Optional[int] = ..., quota_request_permille: _Optional[int] = ..., quota_limit_permille: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class AdjustResponse(_message.Message):
    __slots__ = ("adjusted", "refused", "decided_by")
    ADJUSTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    adjusted: Adjusted
    refused: AdjustRefused
    decided_by: str
    def __init__(self, adjusted: _Optional[_Union[Adjusted, _Mapping]] = ..., refused: _Optional[_Union[AdjustRefused, _Mapping]] = ..., decided_by: _Optional[str] = ...) -> None: ...

class Adjusted(_message.Message):
    __slots__ = ("allocation", "node", "container", "revision", "fields", "dry_run")
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    allocation: str
    node: str
    container: str
    revision: int
    fields: _containers.RepeatedCompositeFieldContainer[AdjustedField]
    dry_run: bool
    def __init__(self, allocation: _Optional[str] = ..., node: _Optional[str] = ..., container: _Optional[str] = ..., revision: _Optional[int] = ..., fields: _Optional[_Iterable[_Union[AdjustedField, _Mapping]]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class AdjustedField(_message.Message):
    __slots__ = ("field", "before", "after", "effect")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    field: str
    before: int
    after: int
    effect: AdjustEffect
    def __init__(self, field: _Optional[str] = ..., before: _Optional[int] = ..., after: _Optional[int] = ..., effect: _Optional[_Union[AdjustEffect, str]] = ...) -> None: ...

class AdjustRefused(_message.Message):
    __slots__ = ("reason", "message", "field", "most", "under_way")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    reason: AdjustRefusal
    message: str
    field: str
    most: _containers.RepeatedCompositeFieldContainer[FittingValue]
    under_way: bool
    def __init__(self, reason: _Optional[_Union[AdjustRefusal, str]] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., most: _Optional[_Iterable[_Union[FittingValue, _Mapping]]] = ..., under_way: _Optional[bool] = ...) -> None: ...

class FittingValue(_message.Message):
    __slots__ = ("field", "value")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    field: str
    value: int
    def __init__(self, field: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class ConsolidateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConsolidateResponse(_message.Message):
    __slots__ = ("nodes", "allocator_run")
    NODES_FIELD_NUMBER: _ClassVar[int]
    ALLOCATOR_RUN_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[EmptiedNode]
    allocator_run: str
    def __init__(self, nodes: _Optional[_Iterable[_Union[EmptiedNode, _Mapping]]] = ..., allocator_run: _Optional[str] = ...) -> None: ...

class EmptiedNode(_message.Message):
    __slots__ = ("node", "moves")
    NODE_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    node: str
    moves: _containers.RepeatedCompositeFieldContainer[MovedPod]
    def __init__(self, node: _Optional[str] = ..., moves: _Optional[_Iterable[_Union[MovedPod, _Mapping]]] = ...) -> None: ...
