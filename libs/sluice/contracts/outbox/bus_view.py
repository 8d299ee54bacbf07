"""What is known of the bus: last values, guards, and how far the reading of each stream has come."""

from dataclasses import dataclass, field

from sluice.contracts.bus.events import Entry, Stream
from sluice.contracts.bus.subjects import Address, parse
from sluice.contracts.ids import Incarnation


@dataclass(slots=True)
class _Reading:
    number: int = 0
    life: Incarnation = field(default=Incarnation(""))
    caught_up: bool = False
    asked_again: bool = False
    highest: int = 0
    fresh: dict[str, Entry] | None = None
    """Observed since the reading started; None once it has caught up."""
    guards: dict[str, int] = field(default_factory=dict)
    """As those of `BusView`, by what was observed since."""
    accepted: dict[str, Entry] = field(default_factory=dict)
    """Own writes that landed since."""


class BusView:
    """The last values read or written, and the latest reading of each stream."""

    def __init__(self) -> None:
        self.current: dict[Stream, dict[str, Entry]] = {stream: {} for stream in Stream}
        self._guards: dict[Stream, dict[str, int]] = {stream: {} for stream in Stream}
        """The values of guards over several subjects; the guard of one subject is its sequence."""
        self._of: dict[Stream, _Reading] = {}

    def learn(self, stream: Stream, address: Address, entry: Entry) -> bool:
        """Record a value at its subject. False when a newer one is known."""
        if address.guard != address.subject:
            guards = self._guards[stream]
            guards[address.guard] = max(guards.get(address.guard, 0), entry.sequence)
        current = self.current[stream]
        known = current.get(entry.subject)
        if known is not None and known.sequence >= entry.sequence:
            return False
        current[entry.subject] = entry
        return True

    def guard(self, stream: Stream, guard: str) -> int:
        current = self.current[stream].get(guard)
        return current.sequence if current is not None else self._guards[stream].get(guard, 0)

    def started(self, stream: Stream, life: Incarnation) -> bool:
        """A reading begins. True in a new life of the stream, whose numbers mean nothing in the old (PROTOCOL §1)."""
        reading = self._of.setdefault(stream, _Reading())
        is_new_life = reading.life not in {"", life}
        reading.number += 1
        reading.life = life
        reading.fresh, reading.guards = {}, {}
        reading.accepted = {}
        reading.asked_again = False
        reading.highest = 0
        if is_new_life:
            reading.caught_up = False
            self.current[stream], self._guards[stream] = {}, {}
        return is_new_life

    def observed(self, stream: Stream, address: Address, entry: Entry) -> None:
        reading = self._of.get(stream)
        if reading is not None:
            reading.highest = max(reading.highest, entry.sequence)
            if reading.fresh is not None:
                reading.fresh[entry.subject] = entry
                if address.guard != address.subject:
                    reading.guards[address.guard] = max(reading.guards.get(address.guard, 0), entry.sequence)

    def accepted(self, stream: Stream, entry: Entry) -> None:
        """An own write landed; a snapshot being read may be too old to show it."""
        reading = self._of.get(stream)
        if reading is not None and reading.fresh is not None:
            reading.accepted[entry.subject] = entry

    def is_gone(self, stream: Stream, sequence: int) -> bool:
        """Whether an own write is gone, by a complete later reading: expired, overwritten, or lost by the stream."""
        reading = self._of.get(stream)
        return reading is not None and reading.fresh is None and sequence <= reading.highest

    def caught_up(self, stream: Stream) -> bool:
        """The snapshot is complete: values it did not show are gone. False when no reading was under way."""
        reading = self._of.get(stream)
        if reading is None or reading.fresh is None:
            return False
        # An own write accepted during the snapshot and beyond its end will still be observed.
        beyond = [each for each in reading.accepted.values() if each.sequence > reading.highest]
        self.current[stream], self._guards[stream] = reading.fresh, reading.guards
        reading.fresh, reading.guards, reading.caught_up = None, {}, True
        for entry in beyond:
            self.learn(stream, parse(entry.subject), entry)
        return True

    def is_whole(self, stream: Stream) -> bool:
        """Whether everything was read at least once in this life: before that no guard is known."""
        reading = self._of.get(stream)
        return reading is not None and reading.caught_up

    def number(self, stream: Stream) -> int:
        return self._of[stream].number if stream in self._of else 0

    def ask_again(self, stream: Stream) -> bool:
        """Whether to ask for a new reading. Once; not while one is under way or before the first."""
        reading = self._of.get(stream)
        if reading is None or reading.fresh is not None or reading.asked_again:
            return False
        reading.asked_again = True
        return True
