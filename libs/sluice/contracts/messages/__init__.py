"""Every message on the bus.

Each is self-contained, frozen, and tagged with its type's name. Unknown fields are ignored, so a newer writer may add
some; those with a default may be missing. Units: MiB, percent, SMs, memory slices; times are for people only."""

import msgspec

from sluice.contracts.messages.answers import *
from sluice.contracts.messages.base import Message as Message
from sluice.contracts.messages.ledger import *
from sluice.contracts.messages.nodes import *
from sluice.contracts.messages.operators import *
from sluice.contracts.messages.requests import *

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
    """Fields around each message.

    `operation` names the guarded write over all its attempts, `id` one attempt. `time` is information only: no decision
    uses another host's clock."""

    id: str
    operation: str
    request: str
    """The request this is about; empty for messages about nodes and roles."""
    schema: int
    time: str
    message: AnyMessage
