"""What the simulated device says that each process did on it: the judge, which knows nothing of tokens."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CLIENTS, NAME_BYTES = 160, 32
"""As in `cuda_stand_in/hardware.h`."""


class _Done(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * NAME_BYTES),
        ("pid", ctypes.c_int32),
        ("alive", ctypes.c_int32),
        ("busy_ns", ctypes.c_int64),
        ("kernels", ctypes.c_int64),
        ("pending", ctypes.c_int64),
    )


class _Seen(ctypes.Structure):
    _fields_ = (
        ("now_ns", ctypes.c_int64),
        ("busy_ns", ctypes.c_int64),
        ("over_ns", ctypes.c_int64),
        ("clients", ctypes.c_int32),
        ("widest", ctypes.c_int32),
        ("client", _Done * CLIENTS),
    )


@dataclass(frozen=True, slots=True)
class Look:
    """The device at one moment. Times in nanoseconds since it was made."""

    now_ns: int
    busy_ns: int
    widest_percent: int
    by_name: Mapping[str, int]
    """How long each tenant's kernels ran, over all its processes."""
    kernels: Mapping[str, int]
    pending: Mapping[str, int]
    alive: Mapping[str, int]
    """Its processes that are there."""


@dataclass(frozen=True, slots=True)
class Span:
    """What happened between two looks."""

    seconds: float
    utilisation: float
    shares: Mapping[str, float]
    """Of the time between them, the part during which each tenant's kernels ran."""


class Judge:
    """Looks at the device in `file`."""

    def __init__(self, library: Path, file: Path) -> None:
        """Raises OSError where the library is not there."""
        self._library, self._file = ctypes.CDLL(str(library)), str(file).encode()

    def look(self) -> Look:
        seen = _Seen()
        assert self._library.stand_in_read(self._file, ctypes.byref(seen)) == 0, f"no device in {self._file!r}"
        assert seen.over_ns == 0, "kernels ran beside each other that are wider than the device: the stand-in is wrong"
        sums: dict[str, dict[str, int]] = {"busy_ns": {}, "kernels": {}, "pending": {}, "alive": {}}
        for done in seen.client[: seen.clients]:
            for what, of in sums.items():
                of[done.name.decode()] = of.get(done.name.decode(), 0) + getattr(done, what)
        return Look(
            seen.now_ns, seen.busy_ns, seen.widest, sums["busy_ns"], sums["kernels"], sums["pending"], sums["alive"]
        )


def between(first: Look, last: Look) -> Span:
    span_ns = last.now_ns - first.now_ns
    return Span(
        span_ns / 1e9,
        (last.busy_ns - first.busy_ns) / span_ns,
        {name: (busy - first.by_name.get(name, 0)) / span_ns for name, busy in last.by_name.items()},
    )
