"""Events and instructions of the inventory's core, besides the exchange that all cores share."""

import msgspec

from sluice.contracts.bus.events import BusEvent, BusInstruction, Ticked
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import NodeSnapshot


class PullSucceeded(msgspec.Struct, frozen=True):
    """The agent of `node` answered. Ends one `Pull`. The core decides whether the answer is usable."""

    node: NodeName
    snapshot: NodeSnapshot
    observed_at: str = ""  # UTC, for people


class PullFailed(msgspec.Struct, frozen=True):
    """The agent of `node` gave no readable answer. Ends one `Pull`."""

    node: NodeName
    message: str


Event = BusEvent | Ticked | PullSucceeded | PullFailed


class Pull(msgspec.Struct, frozen=True):
    """Ask the agent of `node` at `endpoint`. Ends, within a bounded time, in PullSucceeded or PullFailed."""

    node: NodeName
    endpoint: str
    certificate: str = ""  # that the agent must have (PEM); empty: one of our authorities'


Instruction = BusInstruction | Pull
