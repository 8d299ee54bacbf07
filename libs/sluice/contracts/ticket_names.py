"""
Names of tickets: never used twice, valid in a pod's annotation, and derived from their allocation.

A kubelet mounts the directory that an annotation names, so a name is short and of a-z, 0-9 and '-' only. Allocation ids
allow more characters and may share a prefix, so a digest stands for them: after a lost journal a ticket must be found
by its allocation, and never by another one's.
"""

from functools import lru_cache
from hashlib import sha256

from sluice.contracts.ids import AllocationId, RunId

_REMEMBERED = 1024
"""Cache size, more than a node has slices: each step of a slice computes its ticket's name."""
_DIGITS = 24
"""Hexadecimal, 96 bits: collisions cannot be constructed."""


def ticket_name(allocation: AllocationId, run: RunId, number: int) -> str:
    """The name of the `number`-th ticket of this run of the agent. `run` is of a-z, 0-9 and '-'."""
    return f"{_begins(allocation)}{run}-{number}"


def is_ticket_of(ticket: str, allocation: AllocationId) -> bool:
    """Whether a ticket was made for this allocation, by any run."""
    return ticket.startswith(_begins(allocation))


@lru_cache(maxsize=_REMEMBERED)
def _begins(allocation: AllocationId) -> str:
    return f"{sha256(allocation.encode()).hexdigest()[:_DIGITS]}-"
