"""
How a place says itself that it is kept for a pod that is being moved, and who may come for it. Decides nothing.

A Grant of a request that comes after what the same request has is such a place: no word of its own, and no memory, so
every reader of the ledger knows.
"""

from sluice.contracts.ids import request_named
from sluice.contracts.messages import DeviceGrant, Grant, Revoke
from sluice_allocator.core.moves.memory import KinKey


def is_move(grant: Grant) -> bool:
    """Whether a grant keeps a place for a pod that is being moved: it comes after what its own request has."""
    return grant.evict and comes_after_its_own(grant)


def comes_after_its_own(entry: Grant | Revoke) -> bool:
    """Whether an entry is, or was, to come after what its own request has, and nothing else."""
    own = entry.booking.request
    return bool(entry.after) and all(request_named(each) == own for each in entry.after)


def kin_of(source: str, namespace: str, name: str) -> KinKey:
    """
    By what a pod's successor is known: source, namespace, and its name without the part that a controller draws.

    Pods of one ReplicaSet or Job differ in the last part of their names, those of a StatefulSet or a folder keep them
    (https://kubernetes.io/docs/concepts/overview/working-with-objects/names/ and its pages of the controllers).
    """
    return source, namespace, name.rpartition("-")[0] or name


def why_moved(grant: Grant) -> str:
    """Why a pod is evicted for the sake of a place that is kept for it. The same as long as the grant stands."""
    booking = grant.booking
    given = ", ".join(dict.fromkeys(_named(each) for each in booking.devices))
    return f"it is moved: a place on {booking.node} is kept for its replacement ({given})"


def _named(device: DeviceGrant) -> str:
    return "a share" if device.share is not None else device.profile or "a whole GPU"
