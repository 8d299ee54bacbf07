"""What a benchmark promises: each figure beside its bound and the margin between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Threshold:
    """One figure that must be `at least` or `at most` its bound, in `unit`."""

    what: str
    measured: float
    sense: Literal["at least", "at most"]
    bound: float
    unit: str = ""
    digits: int = 3

    @property
    def margin(self) -> float:
        """How far it is on the right side; below zero when it is missed."""
        return self.measured - self.bound if self.sense == "at least" else self.bound - self.measured

    @property
    def met(self) -> bool:
        return self.margin >= 0

    def row(self) -> str:
        say = f"{{:,.{self.digits}f}}".format
        unit = f" {self.unit}" if self.unit else ""
        verdict = "met" if self.met else "**missed**"
        return (
            f"| {self.what} | {say(self.measured)}{unit} | {self.sense} {say(self.bound)}{unit}"
            f" | {say(self.margin)} | {verdict} |"
        )


def table(thresholds: Sequence[Threshold]) -> str:
    rows = (threshold.row() for threshold in thresholds)
    return "\n".join(["| what | measured | threshold | margin | |", "|---|---|---|---|---|", *rows])
