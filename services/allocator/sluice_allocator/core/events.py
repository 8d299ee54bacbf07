"""The events and instructions of the allocator's core, besides those that all cores share."""

from dataclasses import dataclass

from sluice.contracts.bus.events import BusEvent, BusInstruction, Ticked
from sluice.contracts.ids import NodeName
from sluice_allocator.core.resize.pending import Change, Outcome


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """This process is active (`held`) or on standby. A hint, never the lock: every rule holds when it is wrong."""

    held: bool


@dataclass(frozen=True, slots=True)
class AgentEnsured:
    """A node's agent has its durable consumer of the ledger."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class Continue:
    """Nothing is new, but the core was `unfinished`: continue."""


@dataclass(frozen=True, slots=True)
class AdjustAsked:
    """A request to resize shares -> AnswerAdjust with this number."""

    number: int
    change: Change


Event = BusEvent | Ticked | LeaseChanged | AgentEnsured | Continue | AdjustAsked


@dataclass(frozen=True, slots=True)
class EnsureAgent:
    """Create the durable consumer of a node's agent, which agents may not do themselves."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class AnswerAdjust:
    """The outcome of a resize: it is in the ledger, or why it is not."""

    number: int
    outcome: Outcome


Instruction = BusInstruction | EnsureAgent | AnswerAdjust
