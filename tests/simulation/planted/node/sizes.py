"""Bugs planted in how shares are made larger and smaller."""

from typing import Any

from simulation.planted.bug import PlantedBug, always

from sluice.contracts import resize as sizes
from sluice.contracts.messages import SliceReady
from sluice_allocator.core.context import SchedulerContext
from sluice_node_agent.core.journal_records import ResizeRecord
from sluice_node_agent.core.orders import reconcile
from sluice_node_agent.core.slices import resize


def _new_size_at_once(_original: Any, _self: Any, entry: Any) -> Any:
    """A share counts what was ordered last, whatever is still used."""
    return entry.booking


def _as_before_when_it_ails(_original: Any, grant: Any, slice_: Any) -> Any:
    """Only a slice that is ready is known to be as small as ordered."""
    return isinstance(slice_, SliceReady) and slice_.revision >= grant.revision and not slice_.shrinking


def _nobody_uses_it(_original: Any, _record: Any, _state: Any) -> Any:
    """A share is as small as ordered as soon as its server has the new limits."""
    return []


def _the_ticket_stays(original: Any, *args: Any) -> Any:
    """A share that is made smaller keeps its ticket."""
    begun = original(*args)
    return ResizeRecord(counts=begun.counts, renewed=True)


SIZE_BUGS = (
    PlantedBug(
        "new size counts at once",
        "memory that is still used is promised to a neighbour",
        ("I2",),
        ((SchedulerContext, "counted", _new_size_at_once),),
    ),
    PlantedBug(
        "failed resize counts as before",
        "no other share can be changed, and a namespace has less, for a size that is long given up",
        ("I2",),
        ((sizes, "is_resize_done", _as_before_when_it_ails),),
    ),
    PlantedBug(
        "old clients ignored at a resize",
        "memory that is still used is promised to a neighbour",
        ("I2",),
        ((resize, "_homes_used_more", _nobody_uses_it),),
    ),
    PlantedBug(
        "no client check at a resize",
        "memory that is still used is promised to a neighbour",
        ("I2",),
        ((resize, "_clients_by_now", always(())),),
    ),
    PlantedBug(
        "ticket kept at a resize",
        "a container starts again with more than it has",
        ("I2",),
        ((reconcile, "begin", _the_ticket_stays),),
    ),
    PlantedBug(
        "new size published at once",
        "a container's environment names more than its server gives",
        ("MPS",),
        ((resize, "is_served", always(True)),),
    ),
)
