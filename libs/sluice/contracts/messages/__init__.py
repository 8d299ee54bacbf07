"""
Every message on the bus.

Each is self-contained (a reader that sees only the last one is right), frozen, and tagged with its type's name. Unknown
fields are ignored, so a newer writer may add some; fields with a default may be missing, so an older writer may omit
them. Units: MiB, percent, SMs, memory slices; times are for people only.
"""

import msgspec

from sluice.contracts.messages.answers import Bound as Bound
from sluice.contracts.messages.answers import ContainerDevices as ContainerDevices
from sluice.contracts.messages.answers import EvictionBlocked as EvictionBlocked
from sluice.contracts.messages.answers import EvictionDone as EvictionDone
from sluice.contracts.messages.answers import EvictionOrdered as EvictionOrdered
from sluice.contracts.messages.answers import EvictionOver as EvictionOver
from sluice.contracts.messages.answers import Pending as Pending
from sluice.contracts.messages.answers import Refused as Refused
from sluice.contracts.messages.answers import Released as Released
from sluice.contracts.messages.answers import WaitOver as WaitOver
from sluice.contracts.messages.answers import Waived as Waived
from sluice.contracts.messages.base import Message as Message
from sluice.contracts.messages.ledger import Booking as Booking
from sluice.contracts.messages.ledger import Closed as Closed
from sluice.contracts.messages.ledger import DeviceGrant as DeviceGrant
from sluice.contracts.messages.ledger import Grant as Grant
from sluice.contracts.messages.ledger import NodeClosed as NodeClosed
from sluice.contracts.messages.ledger import NodeOpened as NodeOpened
from sluice.contracts.messages.ledger import Revoke as Revoke
from sluice.contracts.messages.ledger import Share as Share
from sluice.contracts.messages.nodes import AgentAddress as AgentAddress
from sluice.contracts.messages.nodes import DaemonState as DaemonState
from sluice.contracts.messages.nodes import DeviceState as DeviceState
from sluice.contracts.messages.nodes import GpuCounts as GpuCounts
from sluice.contracts.messages.nodes import GpuReport as GpuReport
from sluice.contracts.messages.nodes import InstanceReport as InstanceReport
from sluice.contracts.messages.nodes import MpsDaemonReport as MpsDaemonReport
from sluice.contracts.messages.nodes import NodeChanged as NodeChanged
from sluice.contracts.messages.nodes import NodeInventory as NodeInventory
from sluice.contracts.messages.nodes import NodeRemoved as NodeRemoved
from sluice.contracts.messages.nodes import NodeSnapshot as NodeSnapshot
from sluice.contracts.messages.nodes import PlacementReport as PlacementReport
from sluice.contracts.messages.nodes import ProfileReport as ProfileReport
from sluice.contracts.messages.nodes import SliceDegraded as SliceDegraded
from sluice.contracts.messages.nodes import SliceFailed as SliceFailed
from sluice.contracts.messages.nodes import SliceGone as SliceGone
from sluice.contracts.messages.nodes import SliceQuarantined as SliceQuarantined
from sluice.contracts.messages.nodes import SliceReady as SliceReady
from sluice.contracts.messages.nodes import SliceReport as SliceReport
from sluice.contracts.messages.nodes import SliceState as SliceState
from sluice.contracts.messages.operators import BY_HAND as BY_HAND
from sluice.contracts.messages.operators import NO_AMOUNTS as NO_AMOUNTS
from sluice.contracts.messages.operators import Amounts as Amounts
from sluice.contracts.messages.operators import Cordoned as Cordoned
from sluice.contracts.messages.operators import LeaseHeld as LeaseHeld
from sluice.contracts.messages.operators import NodeTemplate as NodeTemplate
from sluice.contracts.messages.operators import PoolDemand as PoolDemand
from sluice.contracts.messages.operators import QuotaSet as QuotaSet
from sluice.contracts.messages.operators import QuotaUnset as QuotaUnset
from sluice.contracts.messages.operators import TemplateGpus as TemplateGpus
from sluice.contracts.messages.operators import Uncordoned as Uncordoned
from sluice.contracts.messages.requests import ANY_DEVICE as ANY_DEVICE
from sluice.contracts.messages.requests import EVERY_NAMESPACE as EVERY_NAMESPACE
from sluice.contracts.messages.requests import NO_LEEWAY as NO_LEEWAY
from sluice.contracts.messages.requests import NO_NEEDS as NO_NEEDS
from sluice.contracts.messages.requests import AllocationRequested as AllocationRequested
from sluice.contracts.messages.requests import Claim as Claim
from sluice.contracts.messages.requests import DeviceFilter as DeviceFilter
from sluice.contracts.messages.requests import Held as Held
from sluice.contracts.messages.requests import HostFacts as HostFacts
from sluice.contracts.messages.requests import HostNeeds as HostNeeds
from sluice.contracts.messages.requests import HostPort as HostPort
from sluice.contracts.messages.requests import HostRoom as HostRoom
from sluice.contracts.messages.requests import Leeway as Leeway
from sluice.contracts.messages.requests import Mode as Mode
from sluice.contracts.messages.requests import NodeExpression as NodeExpression
from sluice.contracts.messages.requests import OtherPods as OtherPods
from sluice.contracts.messages.requests import PodGroup as PodGroup
from sluice.contracts.messages.requests import PodTerm as PodTerm
from sluice.contracts.messages.requests import RequestRejected as RequestRejected
from sluice.contracts.messages.requests import RequestWithdrawn as RequestWithdrawn
from sluice.contracts.messages.requests import ResourceClaimRef as ResourceClaimRef
from sluice.contracts.messages.requests import Selector as Selector
from sluice.contracts.messages.requests import SourceSynced as SourceSynced
from sluice.contracts.messages.requests import SpreadTerm as SpreadTerm
from sluice.contracts.messages.requests import Substitute as Substitute
from sluice.contracts.messages.requests import Taint as Taint
from sluice.contracts.messages.requests import Toleration as Toleration
from sluice.contracts.messages.requests import WithdrawCause as WithdrawCause

SliceMessage = SliceReady | SliceFailed | SliceDegraded | SliceQuarantined | SliceGone
LedgerEntry = Grant | Revoke | Closed
RequestMessage = AllocationRequested | RequestRejected | RequestWithdrawn
BindingMessage = Bound | Refused | Released
_OfSources = RequestMessage | SourceSynced | HostFacts
_OfAllocators = NodeOpened | NodeClosed | LedgerEntry | BindingMessage | Waived | Pending | WaitOver
_OfEvictions = EvictionOrdered | EvictionOver | EvictionDone | EvictionBlocked
_OfNodes = SliceMessage | NodeChanged | NodeRemoved | NodeInventory
_OfOperators = QuotaSet | QuotaUnset | Cordoned | Uncordoned | LeaseHeld | PoolDemand
AnyMessage = _OfSources | _OfAllocators | _OfEvictions | _OfNodes | _OfOperators


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
