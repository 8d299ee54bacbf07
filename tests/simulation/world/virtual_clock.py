"""Virtual time and its one queue; what is due at the same moment happens in an order drawn from the seed."""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

Step = Callable[[], object]
STEPS_MAX = 300_000
"""More than ten times what any seed needs: beyond it something runs in a circle."""


class EndlessError(Exception):
    """The world does not come to rest."""


class VirtualClock:
    """A seeded scheduler. `now` is in virtual seconds and never goes back."""

    def __init__(self, dice: Random) -> None:
        """Begin at 0 with nothing due."""
        self.now = 0.0
        self.steps = 0
        self._roll = dice.random
        self._due: list[tuple[float, float, int, Step]] = []
        self._number = 0

    def at(self, when: float, step: Step) -> None:
        """Do `step` at `when`, or now if that has passed."""
        self._number += 1
        heappush(self._due, (max(when, self.now), self._roll(), self._number, step))

    def after(self, delay_s: float, step: Step) -> None:
        """Do `step` in `delay_s`."""
        self._number = number = self._number + 1
        heappush(self._due, (self.now + delay_s if delay_s > 0.0 else self.now, self._roll(), number, step))

    def run_until(self, end: float) -> None:
        """Do everything due up to `end`. Raises EndlessError."""
        due = self._due
        while due and due[0][0] <= end:
            if self.steps == STEPS_MAX:
                raise EndlessError(f"over {STEPS_MAX} steps at {self.now:.1f} s")
            self.steps += 1
            self.now, _, _, step = heappop(due)
            step()
        self.now = max(self.now, end)
