"""Remembers for moves: which pods are movable, since when they stay where they are, and how many moves are allowed now.
Losing it costs time only: a pod seen for the first time counts as just moved, and a new process may move none for a
while."""

from collections import OrderedDict
from dataclasses import dataclass, field

from sluice.contracts.ids import AllocationId
from sluice_allocator.core.key_index import drop, put
from sluice_allocator.core.reservations.aging import ReservationContext
from sluice_allocator.core.sorted_keys import QueueKey
from sluice_allocator.core.state.grant_facts import KinKey


@dataclass(slots=True)
class Moves:
    """Movable pods, moves under way, and the budget for more."""

    stays_since: dict[AllocationId, float] = field(default_factory=dict)  # since when a movable pod was in its place
    returning: OrderedDict[AllocationId, None] = field(default_factory=OrderedDict)  # to be moved back, by turn
    standing: dict[AllocationId, KinKey] = field(default_factory=dict)  # places booked for pods that are being moved
    kept_for: dict[KinKey, dict[AllocationId, None]] = field(default_factory=dict)
    """The same by the pods that may take them over."""
    promises: OrderedDict[AllocationId, None] = field(default_factory=OrderedDict)  # places kept; in turn of looks
    phases: dict[AllocationId, tuple[str, float]] = field(default_factory=dict)  # of each move, and since when
    looked_at: QueueKey | None = None  # the last turn of the queue for which room was tried to be made
    may_move: float = 0.0  # the number of moves that may begin now
    _filled_at: float | None = None
    _per_arrival: float = 0.0

    def stays(self, allocation: AllocationId, now: float, *, returns: bool) -> None:
        """A movable pod has this place; `returns`: it wants a smaller one."""
        self.stays_since.setdefault(allocation, now)
        if returns:
            self.returning.setdefault(allocation, None)
        else:
            self.returning.pop(allocation, None)

    def stays_anew(self, allocation: AllocationId, now: float) -> None:
        """A move of it began and ended: if its pod is movable, it stays from now on."""
        if allocation in self.stays_since:
            self.stays_since[allocation] = now

    def leaves(self, allocation: AllocationId) -> None:
        self.stays_since.pop(allocation, None)
        self.returning.pop(allocation, None)

    def stand(self, allocation: AllocationId, kin: KinKey) -> None:
        self.standing[allocation] = kin
        put(self.kept_for, kin, allocation)

    def end(self, allocation: AllocationId) -> bool:
        """It no longer is. False when it was not before."""
        kin = self.standing.pop(allocation, None)
        self.phases.pop(allocation, None)
        if kin is not None:
            drop(self.kept_for, kin, allocation)
        return kin is not None

    def enter(self, allocation: AllocationId, phase: str, now: float) -> None:
        if self.phases.get(allocation, ("", now))[0] != phase:
            self.phases[allocation] = (phase, now)

    def phase_since(self, allocation: AllocationId, phase: str, now: float) -> float:
        """Since when a move is in this phase: from now on, if that is new."""
        known = self.phases.get(allocation)
        return known[1] if known is not None and known[0] == phase else now

    def fill(self, now: float, per_minute: int) -> None:
        """Time passed, so more may be moved: at most as many as in one minute. Starts with none."""
        if self._filled_at is not None:
            self.may_move = min(per_minute, self.may_move + (now - self._filled_at) * per_minute / 60)
        self._filled_at = now

    def arrived(self, arrivals_per_move: int, most: int) -> None:
        """A request arrived that needs a place: more may be moved to make room. Starts with none."""
        self._per_arrival = min(most, self._per_arrival + 1 / arrivals_per_move)

    @property
    def for_room(self) -> int:
        """The number of moves that may begin now to make room for others."""
        return int(self._per_arrival + 1e-9)

    def moved_for_room(self) -> None:
        self._per_arrival = max(0.0, self._per_arrival - 1)


@dataclass(eq=False)
class MoveContext(ReservationContext):
    """With what moves remember."""

    moves: Moves = field(default_factory=Moves)
