"""
Virtual time and the one queue of everything that is going to happen.

Two things due at the same moment happen in an order drawn from the seed. It must not know what the things are.
"""

import heapq
from collections.abc import Callable
from random import Random

Step = Callable[[], object]
STEPS_MAX = 300_000
"""More than ten times what any seed needs: beyond it something runs in a circle."""


class EndlessError(Exception):
    """The world does not come to rest."""


class Clockwork:
    """A seeded scheduler. `now` is in virtual seconds and never goes back."""

    def __init__(self, dice: Random) -> None:
        """Begin at 0 with nothing due."""
        self.now = 0.0
        self.steps = 0
        self._dice = dice
        self._due: list[tuple[float, float, int, Step]] = []
        self._number = 0

    def at(self, when: float, step: Step) -> None:
        """Do `step` at `when`, or now if that has passed."""
        self._number += 1
        heapq.heappush(self._due, (max(when, self.now), self._dice.random(), self._number, step))

    def after(self, delay_s: float, step: Step) -> None:
        """Do `step` in `delay_s`."""
        self.at(self.now + delay_s, step)

    def run_until(self, end: float) -> None:
        """Do everything due up to `end`. Raises EndlessError."""
        while self._due and self._due[0][0] <= end:
            self.now, _, _, step = heapq.heappop(self._due)
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise EndlessError(f"over {STEPS_MAX} steps at {self.now:.1f} s")
            step()
        self.now = max(self.now, end)
