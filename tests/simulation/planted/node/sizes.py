"""Bugs planted in how shares are made larger and smaller."""

from typing import Any

from simulation.planted.bug import Bugs, PlantedBug, always

from sluice.contracts import resize as sizes
from sluice.contracts.messages import SliceReady
from sluice_allocator.core.context import SchedulerContext
from sluice_node_agent.core.journal_records import ResizeRecord
from sluice_node_agent.core.orders import reconcile
from sluice_node_agent.core.slices import resize

SIZE_BUGS = Bugs()


@SIZE_BUGS.plant("new size counts at once", "I2", SchedulerContext, "counted")
def _new_size_at_once(_original: Any, _self: Any, entry: Any) -> Any:
    """A share counts what was ordered last, whatever is still used.
    Loses memory that is still used is promised to a neighbour."""
    return entry.booking


@SIZE_BUGS.plant("failed resize counts as before", "I2", sizes, "is_resize_done")
def _as_before_when_it_ails(_original: Any, grant: Any, slice_: Any) -> Any:
    """Only a slice that is ready is known to be as small as ordered.
    Loses no other share can be changed, and a namespace has less, for a size that is long given up."""
    return isinstance(slice_, SliceReady) and slice_.revision >= grant.revision and not slice_.shrinking


@SIZE_BUGS.plant("old clients ignored at a resize", "I2", resize, "_homes_used_more")
def _counts_as_unused(_original: Any, _record: Any, _state: Any) -> Any:
    """A share is as small as ordered as soon as its server has the new limits.
    Loses memory that is still used is promised to a neighbour."""
    return []


@SIZE_BUGS.plant("ticket kept at a resize", "I2", reconcile, "begin")
def _the_ticket_stays(original: Any, *args: Any) -> Any:
    """A share that is made smaller keeps its ticket. Loses a container starts again with more than it has."""
    begun = original(*args)
    return ResizeRecord(counts=begun.counts, renewed=True)


SIZE_BUGS += [
    PlantedBug(
        "no client check at a resize",
        "memory that is still used is promised to a neighbour",
        ("I2",),
        ((resize, "_clients_by_now", always(())),),
    ),
    PlantedBug(
        "containers ignored at a resize",
        "memory that a process uses which connects later, with what its container began with",
        ("I2",),
        ((resize, "may_run", always(False)),),
    ),
    PlantedBug(
        "new size published at once",
        "a container's environment names more than its server gives",
        ("MPS",),
        ((resize, "is_served", always(True)),),
    ),
]
