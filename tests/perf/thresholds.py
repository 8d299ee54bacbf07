"""What a benchmark promises: each figure beside its bound and the margin between them, and an exit code from all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

AGENT_PARALLEL_RATIO = 1.25
"""Eight GPUs are worked on at once: about the time of one, and some for one journal and two cores for all."""
AGENT_RESIDENT_MIB = min(80.0, 1.2 * 56.0)
"""The ceiling, or a fifth above the mean of what was measured on two cores, whichever is less."""
AGENT_CORE_PERCENT = min(1.0, 1.2 * 0.42)
"""Likewise."""


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
    return "\n".join(
        [
            "| what | measured | threshold | margin | |",
            "|---|---|---|---|---|",
            *(threshold.row() for threshold in thresholds),
        ]
    )


def exit_code(thresholds: Sequence[Threshold]) -> int:
    """0 when every threshold is met, else 1."""
    return 0 if all(threshold.met for threshold in thresholds) else 1
