"""What the allocator's core hears and says, besides the exchange that all cores share."""

from dataclasses import dataclass

from sluice.contracts.exchange import ExchangeEvent, ExchangeInstruction, Ticked
from sluice.contracts.ids import NodeName


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


Event = ExchangeEvent | Ticked | LeaseChanged | AgentEnsured | GoOn


@dataclass(frozen=True, slots=True)
class EnsureAgent:
    """Declare the durable of a node's agent: agents may not create consumers themselves."""

    node: NodeName


Instruction = ExchangeInstruction | EnsureAgent
