"""Bugs of two allocators that judge the same by what each has read, planted on purpose."""

from typing import Any

from simulation.planted.bug import PlantedBug
from simulation.planted.protocol import unguarded

from sluice.contracts.outbox import Outbox
from sluice_allocator.core import allocator
from sluice_allocator.core.node import reconcile


def _granted_again_at_once(_original: Any) -> Any:
    def note_taken_back(_ctx: Any, _message: Any) -> None:
        """What another allocator revokes is free at once."""

    return note_taken_back


def _opened_again_at_once(_original: Any) -> Any:
    """A node that is open for somebody else than its agent is opened."""
    return lambda _ctx, _node, _life: False


OPENED_AGAIN = PlantedBug(
    "adopted again at once",
    "the node, most of the time, and the bus: two allocators that disagree open it in turn",
    ("I11",),
    ((reconcile, "_leave_to_other", _opened_again_at_once),),
)
"""Too rare by chance for the dose: it has a schedule of its own in `test_two_allocators`."""
TWO_BINDS = PlantedBug(
    "two binds", "its slice, or a pod pinned to two nodes", ("bound once",), ((Outbox, "_send", unguarded("binding")),)
)
"""The same: two grants of one request are rare, and its source keeps what it was bound to first."""
GRANTED_AGAIN = PlantedBug(
    "granted again at once",
    "the bus, and every GPU of the fleet, to a pod that is gone",
    ("I11",),
    ((allocator, "note_taken_back", _granted_again_at_once),),
)
"""Too rare by chance for the dose: it has a schedule of its own in `test_two_allocators`."""
