"""What happened, one aligned line each, for people; kept only when asked for. Equal runs give equal hashes."""

import hashlib
from collections.abc import Callable
from typing import Literal

import msgspec

from sluice.contracts.bus.events import LastRead, Observed, Write, WriteAccepted, WriteRefused

Keeping = Literal["nothing", "hash", "lines"]
DETAIL_MAX = 700


class Trace:
    """A log in virtual time."""

    def __init__(self, keeping: Keeping, clock: Callable[[], float]) -> None:
        """Keep nothing, a running hash, or the lines as well."""
        self._keeping = keeping
        self.keeps = keeping != "nothing"
        """Whether lines are wanted: a caller that would have to put one together asks first."""
        self._clock = clock
        self._digest = hashlib.sha256()
        self.lines: list[str] = []

    def tell(self, host: str, what: str, subject: str = "", detail: object = "") -> None:
        """Add one line: `host` did or observed `what` about `subject`."""
        if not self.keeps:
            return
        line = f"{self._clock():10.4f}  {host:<22} {what:<24} {subject:<44} {_words(detail)}".rstrip()
        self._digest.update(line.encode())
        if self._keeping == "lines":
            self.lines.append(line)

    def hash(self) -> str:
        return self._digest.hexdigest()[:16]


def _words(detail: object) -> str:
    match detail:
        case str():
            text = detail
        case Observed():
            text = f"#{_short(detail.entry.sequence)} {detail.entry.operation} {_spelled(detail.entry.message)}"
        case LastRead() if detail.entry is not None:
            text = f"#{_short(detail.entry.sequence)} {_spelled(detail.entry.message)}"
        case Write():
            ttl = f" ttl {detail.ttl_s}" if detail.ttl_s is not None else ""
            text = (
                f"over #{_short(detail.expected)} {detail.operation} x{detail.attempt}{ttl} {_spelled(detail.message)}"
            )
        case WriteAccepted():
            text = f"#{_short(detail.sequence)} {detail.operation}"
        case WriteRefused():
            text = f"#{_short(detail.last_sequence or 0)} {detail.operation}"
        case _:
            text = _spelled(detail)
    text = " ".join(text.split())
    return text if len(text) <= DETAIL_MAX else f"{text[:DETAIL_MAX]}..."


def _short(sequence: int) -> int:
    """Sequences begin at a time in ms; the last digits are enough to keep them apart."""
    return sequence % 10**7


def _spelled(detail: object) -> str:
    if isinstance(detail, msgspec.Struct):
        return f"{type(detail).__name__} {msgspec.json.encode(detail).decode()}"
    return repr(detail)
