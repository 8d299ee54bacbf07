"""The whole context: what all share, and the state of each feature."""

from sluice_allocator.core.capacity.memory import CapacityContext
from sluice_allocator.core.moves.state import MoveContext
from sluice_allocator.core.resize.pending import ResizeContext


class SchedulerContext(CapacityContext, MoveContext, ResizeContext):
    """Each class extends what the ones below it do about a grant: `super()` goes from gangs over moves, reservations,
    resizes, preemption and quotas to `state.context.Context`."""
