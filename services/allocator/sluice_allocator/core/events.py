"""What the allocator's core hears and says, besides the exchange that all cores share."""

from dataclasses import dataclass

from sluice.contracts.bus.events import BusEvent, BusInstruction, Ticked
from sluice.contracts.ids import NodeName
from sluice_allocator.core.sizes.adjustments import Change, Outcome


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """This process works (`held`) or stands by. A hint, never the lock: every rule holds when it lies."""

    held: bool


@dataclass(frozen=True, slots=True)
class AgentEnsured:
    """The durable by which a node's agent reads its ledger is there."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class GoOn:
    """Nothing is new, but the core was `unfinished`: go on with what is still to be tried."""


@dataclass(frozen=True, slots=True)
class AdjustAsked:
    """Somebody wants shares to be larger or smaller -> AnswerAdjust with this number."""

    number: int
    change: Change


Event = BusEvent | Ticked | LeaseChanged | AgentEnsured | GoOn | AdjustAsked


@dataclass(frozen=True, slots=True)
class EnsureAgent:
    """Declare the durable of a node's agent: agents may not create consumers themselves."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class AnswerAdjust:
    """What came of an adjustment that was asked for: it is in the ledger, or why it is not."""

    number: int
    outcome: Outcome


Instruction = BusInstruction | EnsureAgent | AnswerAdjust
