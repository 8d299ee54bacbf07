"""Which processes ended by themselves in a run: only an agent that cannot write its journal may (operations.md)."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from factories.processes import Process

from sluice.runtime.service import DRAIN_S, EXIT_CONFIG, EXIT_FAILED

LATE_S = 2 * DRAIN_S
"""How long after there is room again the end of a run that had none may be seen: it has DRAIN_S to end in order."""


@dataclass(frozen=True)
class Death:
    """One unplanned end of a process, in unix seconds."""

    at: float
    name: str
    code: int
    allowed: bool
    """The fault that was done just then has it so."""


class Deaths:
    """All of one run."""

    def __init__(self) -> None:
        self.seen: list[Death] = []
        self._noted: dict[str, int] = {}
        """The run of each that was seen to have ended last."""
        self._may_end: dict[str, tuple[float, float]] = {}
        """The last run of each that may end by itself, and until when."""

    def note(self, process: Process, at: float) -> bool:
        """Remember that its present run has ended, if it has; whether that is news."""
        if process.code is None or self._noted.get(process.name) == process.lives:
            return False
        self._noted[process.name] = process.lives
        last, until = self._may_end.get(process.name, (0, 0.0))
        allowed = process.code in {EXIT_FAILED, EXIT_CONFIG} and process.lives <= last and at <= until
        self.seen.append(Death(at, process.name, process.code, allowed))
        return True

    @contextmanager
    def allowed(self, process: Process) -> Iterator[None]:
        """Every run that it has meanwhile may end by itself, also LATE_S later. No further one."""
        self._may_end[process.name] = (math.inf, math.inf)
        try:
            yield
        finally:
            self._may_end[process.name] = (process.lives, time.time() + LATE_S)


def violations(deaths: Iterable[Mapping[str, Any]]) -> list[str]:
    """Those that are not designed, of deaths as a run's files have them."""
    ends = Counter((death["name"], death["code"]) for death in deaths if not death["allowed"])
    return [f"{_times(name, code, times)}, and no fault has it do that" for (name, code), times in ends.items()]


def notes(deaths: Iterable[Death]) -> list[str]:
    ends = Counter((death.name, death.code) for death in deaths if death.allowed)
    return [f"{_times(name, code, times)}, as it must without a disk" for (name, code), times in ends.items()]


def _times(name: str, code: int, times: int) -> str:
    return f"{name} ended by itself {times} times with exit code {code}"
