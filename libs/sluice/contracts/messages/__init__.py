"""
Every message on the bus.

Each is self-contained (a reader that sees only the last one is right), frozen, and tagged with its type's name. Unknown
fields are ignored, so a newer writer may add some; fields with a default may be missing, so an older writer may omit
them. Units: MiB, percent, SMs, memory slices; times are for people only.
"""

import msgspec

from sluice.contracts.messages.answers import (
    Bound,
    ContainerDevices,
    EvictionBlocked,
    EvictionDone,
    EvictionOrdered,
    EvictionOver,
    Pending,
    Refused,
    Released,
    WaitOver,
    Waived,
)
from sluice.contracts.messages.base import Message
from sluice.contracts.messages.ledger import Booking, Closed, DeviceGrant, Grant, NodeClosed, NodeOpened, Revoke, Share
from sluice.contracts.messages.nodes import (
    AgentAddress,
    DaemonState,
    GpuCounts,
    GpuReport,
    InstanceReport,
    MpsDaemonReport,
    NodeChanged,
    NodeInventory,
    NodeRemoved,
    NodeSnapshot,
    PlacementReport,
    ProfileReport,
    SliceReport,
    SliceState,
)
from sluice.contracts.messages.operators import (
    BY_HAND,
    NO_AMOUNTS,
    Amounts,
    Cordoned,
    LeaseHeld,
    QuotaSet,
    QuotaUnset,
    Uncordoned,
)
from sluice.contracts.messages.pools import NodeTemplate, PoolDemand, TemplateGpus
from sluice.contracts.messages.requests import (
    ANY_DEVICE,
    EVERY_NAMESPACE,
    NO_LEEWAY,
    NO_NEEDS,
    AllocationRequested,
    Claim,
    DeviceFilter,
    Held,
    HostFacts,
    HostNeeds,
    HostPort,
    HostRoom,
    Leeway,
    Mode,
    NodeExpression,
    OtherPods,
    PodGroup,
    PodTerm,
    RequestRejected,
    RequestWithdrawn,
    ResourceClaimRef,
    Selector,
    SourceSynced,
    SpreadTerm,
    Substitute,
    Taint,
    Toleration,
    WithdrawCause,
)
from sluice.contracts.messages.slices import (
    DeviceState,
    SliceDegraded,
    SliceFailed,
    SliceGone,
    SliceQuarantined,
    SliceReady,
)

__all__ = [
    "ANY_DEVICE",
    "BY_HAND",
    "EVERY_NAMESPACE",
    "NO_AMOUNTS",
    "NO_LEEWAY",
    "NO_NEEDS",
    "AgentAddress",
    "AllocationRequested",
    "Amounts",
    "AnyMessage",
    "BindingMessage",
    "Booking",
    "Bound",
    "Claim",
    "Closed",
    "ContainerDevices",
    "Cordoned",
    "DaemonState",
    "DeviceFilter",
    "DeviceGrant",
    "DeviceState",
    "Envelope",
    "EvictionBlocked",
    "EvictionDone",
    "EvictionOrdered",
    "EvictionOver",
    "GpuCounts",
    "GpuReport",
    "Grant",
    "Held",
    "HostFacts",
    "HostNeeds",
    "HostPort",
    "HostRoom",
    "InstanceReport",
    "LeaseHeld",
    "LedgerEntry",
    "Leeway",
    "Message",
    "Mode",
    "MpsDaemonReport",
    "NodeChanged",
    "NodeClosed",
    "NodeExpression",
    "NodeInventory",
    "NodeOpened",
    "NodeRemoved",
    "NodeSnapshot",
    "NodeTemplate",
    "OtherPods",
    "Pending",
    "PlacementReport",
    "PodGroup",
    "PodTerm",
    "PoolDemand",
    "ProfileReport",
    "QuotaSet",
    "QuotaUnset",
    "Refused",
    "Released",
    "RequestMessage",
    "RequestRejected",
    "RequestWithdrawn",
    "ResourceClaimRef",
    "Revoke",
    "Selector",
    "Share",
    "SliceDegraded",
    "SliceFailed",
    "SliceGone",
    "SliceMessage",
    "SliceQuarantined",
    "SliceReady",
    "SliceReport",
    "SliceState",
    "SourceSynced",
    "SpreadTerm",
    "Substitute",
    "Taint",
    "TemplateGpus",
    "Toleration",
    "Uncordoned",
    "WaitOver",
    "Waived",
    "WithdrawCause",
]

AnyMessage = (
    AllocationRequested
    | RequestRejected
    | RequestWithdrawn
    | SourceSynced
    | HostFacts
    | NodeOpened
    | NodeClosed
    | Grant
    | Revoke
    | Closed
    | Bound
    | Refused
    | Released
    | Waived
    | Pending
    | WaitOver
    | EvictionOrdered
    | EvictionOver
    | EvictionDone
    | EvictionBlocked
    | SliceReady
    | SliceFailed
    | SliceDegraded
    | SliceQuarantined
    | SliceGone
    | NodeChanged
    | NodeRemoved
    | NodeInventory
    | QuotaSet
    | QuotaUnset
    | Cordoned
    | Uncordoned
    | LeaseHeld
    | PoolDemand
)

SliceMessage = SliceReady | SliceFailed | SliceDegraded | SliceQuarantined | SliceGone
LedgerEntry = Grant | Revoke | Closed
RequestMessage = AllocationRequested | RequestRejected | RequestWithdrawn
BindingMessage = Bound | Refused | Released


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """
    Fields around each message.

    `operation` names the guarded write over all its attempts, `id` one attempt. `time` is information only: no decision
    uses another host's clock.
    """

    id: str
    operation: str
    request: str
    """The request this is about; empty for messages about nodes and roles."""
    schema: int
    time: str
    message: AnyMessage
