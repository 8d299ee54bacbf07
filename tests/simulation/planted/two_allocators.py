"""Bugs of two allocators that judge the same by what each has read, planted on purpose."""

from simulation.planted.bug import PlantedBug, always
from simulation.planted.protocol import unguarded

from sluice.contracts.outbox import Outbox
from sluice_allocator.core import allocator
from sluice_allocator.core.node import reconcile

OPENED_AGAIN = PlantedBug(
    "adopted again at once",
    "the node, most of the time, and the bus: two allocators that disagree open it in turn",
    ("I11",),
    ((reconcile, "_leave_to_other", always(False)),),
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
    ((allocator, "note_taken_back", always(None)),),
)
"""Too rare by chance for the dose: it has a schedule of its own in `test_two_allocators`."""
