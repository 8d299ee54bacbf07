"""How badly the network treats every message: probabilities that hold until the faults stop, then calm."""

from dataclasses import dataclass
from random import Random
from typing import Literal

Fate = Literal["normal", "ack lost", "request lost", "late", "twice"]

ANSWER_TIMEOUT_S = 1.0
"""How long a shell waits for the answer to a write before it says UNKNOWN."""


@dataclass(frozen=True, slots=True)
class Weather:
    """Probabilities per message; `until` is when calm begins (virtual s)."""

    until: float
    ack_lost: float = 0.0
    request_lost: float = 0.0
    late: float = 0.0
    """No answer, and it lands after the retry was sent."""
    twice: float = 0.0
    """Delivered again some time later."""
    stall: float = 0.0
    """A reader's next batch takes seconds."""
    redelivered: float = 0.0
    """An agent receives an old entry of its ledger again (a durable may deliver again)."""
    pull_failed: float = 0.0
    slow_device: float = 0.0
    hasty_end: float = 0.0
    """A reading restarts for no reason (gap, missed heartbeat)."""
    longest_s: float = 5.0


class Sky:
    """The weather over one run, drawn from its seed."""

    def __init__(self, weather: Weather, dice: Random) -> None:
        self.weather = weather
        self._dice = dice
        self._roll = dice.random
        self._until = weather.until

    def fate(self, now: float) -> Fate:
        if now >= self.weather.until:
            return "normal"
        roll = self._dice.random()
        kinds: tuple[tuple[Fate, float], ...] = (
            ("ack lost", self.weather.ack_lost),
            ("request lost", self.weather.request_lost),
            ("late", self.weather.late),
            ("twice", self.weather.twice),
        )
        for fate, probability in kinds:
            if roll < probability:
                return fate
            roll -= probability
        return "normal"

    def latency(self) -> float:
        """One way over the network, in s."""
        return 0.0005 + 0.004 * self._roll()

    def long(self) -> float:
        return 0.05 + self._dice.random() ** 2 * self.weather.longest_s

    def chance(self, kind: str, now: float) -> bool:
        """Whether a thing of this kind happens now."""
        if now >= self._until:
            return False
        probability: float = getattr(self.weather, kind)
        return probability > 0 and self._roll() < probability
