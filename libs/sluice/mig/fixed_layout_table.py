"""The transition table of a fixed layout: only existing instances that are free can be granted.

Across GPUs an existing instance comes before one that would have to be created: it can serve nothing else."""

from collections.abc import Iterable
from functools import lru_cache

from sluice.mig.layout import Instance, Layout
from sluice.mig.model import GpuModel, Placement
from sluice.mig.transition_table import PlacementChoice, State, StateFacts, TransitionTable, UnknownProfileError


class FixedLayoutTable(TransitionTable):
    """The states of one fixed layout of one model.

    A state is a bit mask of slices that cannot be granted. One more bit is set when the GPU holds anything, so that
    `empty` means a GPU without a user."""

    def __init__(self, model: GpuModel, layout: Layout) -> None:
        """For instances of profiles that the model has. Raises UnknownProfileError for any other."""
        super().__init__(model)
        self.layout = layout
        self._there = frozenset(layout)
        covered = 0
        for instance in layout:
            if model.profile(instance.profile) is None:
                raise UnknownProfileError(instance.profile, model.key)
            covered |= instance.mask
        self.empty = State(self._slices_mask & ~covered)
        self._in_use = 1 << model.memory_slices

    def has(self, profile: str) -> bool:
        return any(instance.profile == profile for instance in self.layout)

    def state(self, instances: Iterable[Instance], *, blocked: Iterable[Placement] = ()) -> State:
        """The state when these are taken: each takes along every instance it overlaps, of the layout or not."""
        taken = 0
        for mask in (*(instance.mask for instance in instances), *(span.mask for span in blocked)):
            taken |= mask
        state = int(self.empty) | (self._in_use if taken else 0)
        for instance in self.layout:
            if instance.mask & taken:
                state |= instance.mask
        return State(state)

    def with_one_more(self, state: State, instance: Instance) -> State | None:
        """The state when one more is taken; None when it does not exist or is taken already."""
        if instance not in self._there or state & instance.mask:
            return None
        return State(state | instance.mask | self._in_use)

    def release(self, state: State, instance: Instance) -> State:
        """The state without `instance`, exact for those of the layout. Raises ValueError if it was not taken."""
        if instance not in self._there or state & instance.mask != instance.mask:
            raise ValueError(f"{instance} is not taken in this layout")
        after = (state & self._slices_mask) ^ instance.mask
        return self.empty if after == self.empty else State(after | self._in_use)

    def _rank(self, state: State, profile_name: str) -> tuple[PlacementChoice, ...]:
        """The fullest layout first, then the highest start."""
        free = self.free_slices(state)
        found = [
            PlacementChoice(each.start, each.size, State(state | each.mask | self._in_use), (0, free, 0, -each.start))
            for each in self.layout
            if each.profile == profile_name and not state & each.mask
        ]
        return tuple(sorted(found, key=lambda choice: choice.rank))

    def _work_out(self, state: State) -> StateFacts:
        left = [each for each in self.layout if not state & each.mask]
        creatable = {
            profile.name: sum(each.profile == profile.name for each in left) for profile in self.model.profiles
        }
        return StateFacts(
            free_slices=self.free_slices(state),
            creatable=creatable,
            lacking={name: "slices" for name, count in creatable.items() if not count},
        )


@lru_cache(maxsize=4096)
def fixed_layout_table_of(model: GpuModel, layout: Layout) -> FixedLayoutTable:
    return FixedLayoutTable(model, layout)
