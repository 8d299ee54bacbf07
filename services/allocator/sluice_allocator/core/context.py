"""The whole context: what all share, and the state of each feature."""

from dataclasses import dataclass

from sluice_allocator.core.capacity.demand import CapacityContext
from sluice_allocator.core.moves.state import MoveContext
from sluice_allocator.core.resize.pending import ResizeContext


@dataclass(eq=False)
class SchedulerContext(CapacityContext, MoveContext, ResizeContext):
    """`super()` goes from gangs over moves, reservations, resizes, preemption and quotas to `Context`."""
