"""
Recognises grants that keep a place for a pod that is being moved, and the successors that may take them.

A Grant that comes after its own request's allocation is such a place: no further message or memory is needed, so
every reader of the ledger knows.
"""

from sluice.contracts.ids import request_named
from sluice.contracts.messages import DeviceGrant, Grant, Revoke
from sluice_allocator.core.moves.memory import KinKey


def is_move(grant: Grant) -> bool:
    """Whether a grant keeps a place for a pod that is being moved: it comes after its own request's allocation."""
    return grant.evict and comes_after_its_own(grant)


def comes_after_its_own(entry: Grant | Revoke) -> bool:
    """Whether an entry comes, or came, after its own request's allocation, and nothing else."""
    own = entry.booking.request
    return bool(entry.after) and all(request_named(each) == own for each in entry.after)


def kin_of(source: str, namespace: str, name: str) -> KinKey:
    """The key that a pod shares with its successor: source, namespace, and its name without the random part."""
    return source, namespace, name.rpartition("-")[0] or name


def why_moved(grant: Grant) -> str:
    """Why a pod is evicted for a place that is kept for it. The same as long as the grant stands."""
    booking = grant.booking
    given = ", ".join(dict.fromkeys(_named(each) for each in booking.devices))
    return f"it is moved: a place on {booking.node} is kept for its replacement ({given})"


def _named(device: DeviceGrant) -> str:
    return "a share" if device.share is not None else device.profile or "a whole GPU"
