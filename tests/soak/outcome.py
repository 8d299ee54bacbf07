"""What a soak ends in: what was really done, and what was found to be wrong."""

from collections.abc import Sequence
from dataclasses import dataclass


class SoakFailureError(Exception):
    """Something is wrong with the agent. `leaks` are the judge's findings, one sentence each."""

    def __init__(self, what: str, leaks: Sequence[str] = (), sides: Sequence[str] = ()) -> None:
        super().__init__(what)
        self.leaks = list(leaks)
        self.sides = list(sides)


@dataclass(slots=True)
class Counts:
    """What was really done."""

    cycles: int = 0
    kills: int = 0
    lives: int = 0
    checks: int = 0
    reboots: int = 0
    damages: int = 0
    daemons: int = 0
