"""
What this process remembers for moving pods: which may be moved, since when they stay where they are, and how fast.

It keeps time and counts; it must not decide (`moving`, `defragmenting`). Losing it costs time only: whoever is seen
anew counts as just moved, and whoever starts anew may move nobody for a while.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from sluice.contracts.ids import AllocationId
from sluice_allocator.core.waiting.turns import Turn

KinKey = tuple[str, str, str]
"""Source, namespace, and what the names of pods have in common that one controller makes."""


@dataclass(slots=True)
class Moves:
    """Who may be moved, who is being moved, and what may be spent on it."""

    stays_since: dict[AllocationId, float] = field(default_factory=dict)
    """Since when this process knows of a pod that may be moved where it is, or that moving it was in vain."""
    returning: OrderedDict[AllocationId, None] = field(default_factory=OrderedDict)
    """Bound pods that are served by larger profiles and want to be moved back; looked at longest ago first."""
    standing: dict[AllocationId, KinKey] = field(default_factory=dict)
    """Places that are booked for pods that are being moved."""
    kept_for: dict[KinKey, dict[AllocationId, None]] = field(default_factory=dict)
    """The same by who may take them over."""
    promises: OrderedDict[AllocationId, None] = field(default_factory=OrderedDict)
    """Places that are booked and wait for others to end; looked at longest ago first."""
    phases: dict[AllocationId, tuple[str, float]] = field(default_factory=dict)
    """How far each move is, and since when."""
    looked_at: Turn | None = None
    """Up to which turn of the queue it was tried to make room."""
    may_move: float = 0.0
    """So many moves may be begun now."""
    _filled_at: float | None = None
    _per_arrival: float = 0.0

    def stays(self, allocation: AllocationId, now: float, *, returns: bool) -> None:
        """A pod that may be moved has this place; `returns`: it wants a smaller one."""
        self.stays_since.setdefault(allocation, now)
        if returns:
            self.returning.setdefault(allocation, None)
        else:
            self.returning.pop(allocation, None)

    def stays_anew(self, allocation: AllocationId, now: float) -> None:
        """Moving it has begun and ended: if it is a pod's that may be moved, it stays from now on."""
        if allocation in self.stays_since:
            self.stays_since[allocation] = now

    def leaves(self, allocation: AllocationId) -> None:
        """It has no pod that may be moved (any more)."""
        self.stays_since.pop(allocation, None)
        self.returning.pop(allocation, None)

    def stand(self, allocation: AllocationId, kin: KinKey) -> None:
        """A place is booked for a pod that is being moved."""
        self.standing[allocation] = kin
        self.kept_for.setdefault(kin, {})[allocation] = None

    def end(self, allocation: AllocationId) -> bool:
        """It is not any more. False when it was not before."""
        kin = self.standing.pop(allocation, None)
        self.phases.pop(allocation, None)
        if kin is None:
            return False
        del self.kept_for[kin][allocation]
        if not self.kept_for[kin]:
            del self.kept_for[kin]
        return True

    def phase_since(self, allocation: AllocationId, phase: str, now: float) -> float:
        """Since when a move is in this phase."""
        known = self.phases.get(allocation)
        if known is None or known[0] != phase:
            known = self.phases[allocation] = (phase, now)
        return known[1]

    def fill(self, now: float, per_minute: int) -> None:
        """Time has passed, so more may be moved: at most as many as in one minute. Begins with none."""
        if self._filled_at is not None:
            self.may_move = min(per_minute, self.may_move + (now - self._filled_at) * per_minute / 60)
        self._filled_at = now

    def arrived(self, arrivals_per_move: int, most: int) -> None:
        """A request came that looks for a place: so much more may be moved to make room. Begins with none."""
        self._per_arrival = min(most, self._per_arrival + 1 / arrivals_per_move)

    @property
    def for_room(self) -> int:
        """So many moves may be begun now to make room for others."""
        return int(self._per_arrival + 1e-9)

    def moved_for_room(self) -> None:
        """One was begun."""
        self._per_arrival = max(0.0, self._per_arrival - 1)
