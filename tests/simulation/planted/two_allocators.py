"""A bug of two allocators that judge the same by what each has read, planted on purpose."""

from simulation.planted.bug import PlantedBug
from simulation.planted.protocol import unguarded

from sluice.contracts.outbox import Outbox

TWO_BINDS = PlantedBug(
    "two binds", "its slice, or a pod pinned to two nodes", ("bound once",), ((Outbox, "_send", unguarded("binding")),)
)
"""Two grants of one request are rare, and its source keeps what it was bound to first: a schedule plays it."""
