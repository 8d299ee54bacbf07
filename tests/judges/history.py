"""
Judges a recorded history of the bus: was a place given twice, a request bound twice, a slice left behind?

It reads plain JSON and shares no code with what it judges: a mistake in `sluice` must not be able to hide here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class _Allocation:
    request: str
    node: str
    places: tuple[tuple[str, int], ...]
    """Every (GPU, memory slice) it holds."""
    ready: bool = False
    gone: bool = False


@dataclass
class History:
    """Feed it every message in the order in which the broker stored it; then read `violations` and `left_behind`."""

    violations: list[str] = field(default_factory=list)
    allocations: dict[str, _Allocation] = field(default_factory=dict)
    bound: dict[str, str] = field(default_factory=dict)
    """The allocation that each request is bound to now."""
    answers: dict[str, list[str]] = field(default_factory=dict)
    """What was said at each request's binding, in order."""
    withdrawn: set[str] = field(default_factory=set)
    """Requests whose pods were taken back by whoever asked."""
    _booked: dict[tuple[str, int], str] = field(default_factory=dict)
    _held: dict[tuple[str, int], str] = field(default_factory=dict)

    def feed(self, subject: str, message: dict) -> None:
        """One stored message."""
        kind = message["type"]
        if kind == "RequestWithdrawn":
            self.withdrawn.add(subject.rsplit(".", 1)[1])
        elif ".ledger." in subject and kind in {"Grant", "Revoke"}:
            self._entry(kind, message)
        elif ".slice." in subject:
            self._slice(kind, message)
        elif ".binding." in subject:
            self._binding(kind, message)

    def _entry(self, kind: str, message: dict) -> None:
        booking = message["booking"]
        name = booking["allocation"]
        known = self.allocations.get(name)
        if known is not None and known.gone and kind == "Grant":
            self.violations.append(f"{name} was granted after it was gone")
        if known is None:
            known = _Allocation(booking["request"], booking["node"], tuple(_places(booking["devices"])))
            self.allocations[name] = known
        if known.gone:
            return
        for place in known.places:
            owner = self._booked.setdefault(place, name)
            if owner != name:
                self.violations.append(f"{place} is booked for {name} while {owner} has it")

    def _slice(self, kind: str, message: dict) -> None:
        name = message["allocation"]
        known = self.allocations.get(name)
        if known is None:
            return  # a Revoke of something never made is answered too
        if kind == "SliceReady":
            self._made(name, known, message["devices"])
        if kind == "SliceGone":
            self._unmade(name, known)

    def _made(self, name: str, known: _Allocation, devices: list[dict]) -> None:
        if known.gone:
            self.violations.append(f"{name} came back after it was gone")
        known.ready = True
        for place in _places(devices):
            holder = self._held.setdefault(place, name)
            if holder != name:
                self.violations.append(f"{place} is made for {name} while {holder} is on it")

    def _unmade(self, name: str, known: _Allocation) -> None:
        known.gone, known.ready = True, False
        for held in (self._booked, self._held):
            for place in [place for place, owner in held.items() if owner == name]:
                del held[place]
        if self.bound.get(known.request) == name and known.request not in self.withdrawn:
            self.violations.append(f"{known.request} lost its slice {name} while somebody wanted it")

    def _binding(self, kind: str, message: dict) -> None:
        request = message["request"]
        self.answers.setdefault(request, []).append(kind)
        if kind == "Bound":
            before = self.bound.get(request)
            if before is not None and before != message["allocation"]:
                self.violations.append(f"{request} is bound to {before} and to {message['allocation']}")
            self.bound[request] = message["allocation"]
        else:
            self.bound.pop(request, None)

    def left_behind(self) -> list[str]:
        """Allocations that were granted and of which nobody said that they are gone."""
        return [name for name, allocation in self.allocations.items() if not allocation.gone]


def _places(devices: Iterable[dict]) -> Iterable[tuple[str, int]]:
    for device in devices:
        for offset in range(device["size"]):
            yield device["gpu"], device["start"] + offset
