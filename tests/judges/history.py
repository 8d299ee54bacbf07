"""
Judges a recorded history of the bus: was a place given twice, a request bound twice, a slice taken from a living pod?

It reads plain JSON and shares no code with what it judges: a mistake in `sluice` must not be able to hide here.

Each stream is judged in its own order (the sequence at which a word landed); between streams there is no order to
trust. A writer that was killed may leave a gap, so what is *not* recorded proves nothing; what is left in the end is
asked of the streams themselves.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Place = tuple[str, int]
"""A GPU and one of its memory slices."""


@dataclass
class History:
    """Put every recorded word in, in any order; then ask for `violations`."""

    book: list[tuple[int, str, dict]] = field(default_factory=list)
    state: list[tuple[int, str, dict]] = field(default_factory=list)

    def put(self, subject: str, sequence: int, message: dict) -> None:
        """One word, with the sequence at which its stream stored it."""
        decided = ".ledger." in subject or ".binding." in subject
        (self.book if decided else self.state).append((sequence, subject, message))

    def violations(self) -> list[str]:
        """Everything that must never happen, and did."""
        book = [(subject, message) for _, subject, message in sorted(self.book, key=lambda item: item[0])]
        state = [(subject, message) for _, subject, message in sorted(self.state, key=lambda item: item[0])]
        return [*_bookings(book), *_bindings(book), *_slices(state), *_losses(book, state)]


def _bookings(book: list[tuple[str, dict]]) -> Iterator[str]:
    """A place is granted only when its last grant was revoked before, and no allocation is granted a second time."""
    standing: dict[Place, str] = {}
    ended: set[str] = set()
    for _, message in book:
        if message["type"] not in {"Grant", "Revoke", "Closed"}:
            continue
        booking = message.get("booking")
        name = booking["allocation"] if booking else message["allocation"]
        if message["type"] != "Grant":
            ended.add(name)
            standing = {place: owner for place, owner in standing.items() if owner != name}
            continue
        if name in ended:
            yield f"{name} is granted again after it was revoked"
        for place in _places(booking["devices"]):
            owner = standing.setdefault(place, name)
            if owner != name:
                yield f"{place} is granted to {name} while {owner} has it"


def _bindings(book: list[tuple[str, dict]]) -> Iterator[str]:
    """A request is bound to one allocation, until it is released."""
    bound: dict[str, str] = {}
    for subject, message in book:
        if ".binding." not in subject:
            continue
        request = message["request"]
        if message["type"] != "Bound":
            bound.pop(request, None)
        elif bound.setdefault(request, message["allocation"]) != message["allocation"]:
            yield f"{request} is bound to {bound[request]} and to {message['allocation']}"


def _slices(state: list[tuple[str, dict]]) -> Iterator[str]:
    """A slice is made at a place only after the one before is gone, and never comes back."""
    holds: dict[Place, str] = {}
    gone: set[str] = set()
    for subject, message in state:
        if ".slice." not in subject:
            continue
        name = message["allocation"]
        if message["type"] == "SliceGone":
            gone.add(name)
            holds = {place: owner for place, owner in holds.items() if owner != name}
        elif message["type"] == "SliceReady":
            if name in gone:
                yield f"{name} came back after it was gone"
            for place in _places(message["devices"]):
                holder = holds.setdefault(place, name)
                if holder != name:
                    yield f"{place} is made for {name} while {holder} is on it"


def _losses(book: list[tuple[str, dict]], state: list[tuple[str, dict]]) -> Iterator[str]:
    """No slice that a request was bound to goes before the request was withdrawn."""
    bound = {message["allocation"] for _, message in book if message["type"] == "Bound"}
    withdrawn: set[str] = set()
    for subject, message in state:
        if message["type"] == "RequestWithdrawn":
            withdrawn.add(subject.rsplit(".", 1)[1])
        elif message["type"] == "SliceGone":
            request, name = message["request"], message["allocation"]
            if name in bound and request not in withdrawn:
                yield f"{request} lost its slice {name} while somebody wanted it"


def _places(devices: Iterable[dict]) -> Iterator[Place]:
    for device in devices:
        for offset in range(device["size"]):
            yield device["gpu"], device["start"] + offset
