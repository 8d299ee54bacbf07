"""The events and instructions of the allocator's core, besides those that all cores share."""

import msgspec

from sluice.contracts.bus.events import BusEvent, BusInstruction, Ticked
from sluice.contracts.ids import NodeName
from sluice_allocator.core.resize.pending import Change, Outcome


class LeaseChanged(msgspec.Struct, frozen=True):
    """This process is active (`held`) or on standby. A hint, never the lock: every rule holds when it is wrong."""

    held: bool


class AgentEnsured(msgspec.Struct, frozen=True):
    """A node's agent has its durable consumer of the ledger; or, unless `made`, it could not be created just now."""

    node: NodeName
    made: bool = True


class Continue(msgspec.Struct, frozen=True):
    """Nothing is new, but the core was `unfinished`: continue."""


class AdjustAsked(msgspec.Struct, frozen=True):
    """A request to resize shares -> AnswerAdjust with this number."""

    number: int
    change: Change


Event = BusEvent | Ticked | LeaseChanged | AgentEnsured | Continue | AdjustAsked


class EnsureAgent(msgspec.Struct, frozen=True):
    """Create the durable consumer of a node's agent, which agents may not do themselves."""

    node: NodeName


class AnswerAdjust(msgspec.Struct, frozen=True):
    """The outcome of a resize: it is in the ledger, or why it is not."""

    number: int
    outcome: Outcome


Instruction = BusInstruction | EnsureAgent | AnswerAdjust
