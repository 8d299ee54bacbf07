"""
What tickets are called: names that are never used twice, may stand in a pod's annotation, and tell whose they are.

A kubelet mounts the directory that an annotation names, so a name is a-z, 0-9 and '-' only, and short. Allocations may
hold more than that, and may begin alike, so a digest stands for them: after a loss of the journal a ticket must be
found by its allocation, and never by another one's.
"""

from functools import lru_cache
from hashlib import sha256

from sluice.contracts.ids import AllocationId, RunId

_REMEMBERED = 1024
"""More than a node has slices: each step of a slice asks for the name that its ticket would have."""
_DIGITS = 24
"""Hexadecimal, 96 bits: nobody can make two allocations that share them."""


def ticket_name(allocation: AllocationId, run: RunId, number: int) -> str:
    """The name of the `number`-th ticket of this run of the agent. `run` is of a-z, 0-9 and '-'."""
    return f"{_begins(allocation)}{run}-{number}"


def is_ticket_of(ticket: str, allocation: AllocationId) -> bool:
    """Whether a ticket was made for this allocation, by whatever run."""
    return ticket.startswith(_begins(allocation))


@lru_cache(maxsize=_REMEMBERED)
def _begins(allocation: AllocationId) -> str:
    return f"{sha256(allocation.encode()).hexdigest()[:_DIGITS]}-"
