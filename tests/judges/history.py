"""
Judges a recorded history of the bus: was a place given twice, a request bound twice, a slice taken from a living pod?

It reads plain JSON and shares no code with what it judges: no mistake in `sluice` can hide here.

Each stream is judged in its own order (the sequence at which a word landed); between streams there is no order to
trust. STATE is not synced to disk: a broker that is killed may forget the end of it and reuse numbers from there, and
then the order in which the copies of one writer were stored is the order to trust. A writer that was killed may leave
a gap, so what is *not* recorded proves nothing; what still stands on the streams closes the gaps that it can.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Place = tuple[str, int]
"""A GPU and one of its memory slices."""
Home = tuple[str, int, int]
"""Where shares live together: a GPU, the first of its memory slices, and how many."""


@dataclass(frozen=True)
class Word:
    """One message: when its copy was stored (counted), the sequence at which it landed, and what it says."""

    stored: float
    sequence: int
    subject: str
    message: dict
    said: str = ""
    """When it was written, by the writer's clock (ISO 8601, UTC); empty where that is not known."""


@dataclass
class History:
    """Put every recorded message in, in the order in which the copies were stored; then ask for `violations`."""

    book: list[Word] = field(default_factory=list)
    state: list[Word] = field(default_factory=list)
    sources_killed: bool = False
    """Whether a source was killed: killed between a word and its copy, it leaves a gap that its next word hides."""
    ends_forgotten: frozenset[str] = frozenset()
    """Requests whose first `RequestWithdrawn` a broker may have told an allocator, and forgotten when it was killed."""
    _known: set[tuple[str, int]] = field(default_factory=set)

    def put(self, subject: str, sequence: int, message: dict, said: str = "") -> None:
        """One recorded message, the sequence at which its stream stored it, and when it was `said` (see `Word`)."""
        self._put(subject.removeprefix("hist."), sequence, message, float(len(self.book) + len(self.state)), said)

    def put_standing(self, subject: str, sequence: int, message: dict) -> None:
        """A message that stands on its stream now, recorded or not. After everything that is recorded."""
        if (subject, sequence) not in self._known:
            self._put(subject, sequence, message, float("inf"))

    def lacks(self, subject: str, sequence: int) -> bool:
        """Whether no copy of this message was put in."""
        return (subject, sequence) not in self._known

    def violations(self) -> list[str]:
        """Everything that must never happen, and did."""
        book = sorted(self.book, key=lambda word: word.sequence)
        return [
            *_bookings(book),
            *_bindings(book),
            *_slices(self.state, _shares(book)),
            *_losses(book, self.state, self.ends_forgotten, sources_killed=self.sources_killed),
        ]

    def _put(self, subject: str, sequence: int, message: dict, stored: float, said: str = "") -> None:
        decided = ".ledger." in subject or ".binding." in subject
        (self.book if decided else self.state).append(Word(stored, sequence, subject, message, said))
        self._known.add((subject, sequence))


@dataclass(frozen=True)
class Break:
    """Somewhere between the storing of these two copies of one subject its stream began to reuse numbers."""

    after: float
    until: float

    def parts(self, one: Word, other: Word) -> bool:
        """Whether the sequences of two messages may be of two numberings."""
        first, last = sorted((one.stored, other.stored))
        return first < self.until and last > self.after


def _breaks(words: Iterable[Word]) -> list[Break]:
    """A sequence that is lower than the one before, on one subject. `words` as they were stored. The copy of a writer
    that stood still may come after its successor's: it was said before that, and shows no break."""
    found = []
    before: dict[str, Word] = {}
    for word in words:
        last = before.get(word.subject)
        if last is not None and word.sequence < last.sequence:
            if word.said < last.said:
                continue
            found.append(Break(last.stored, word.stored))
        before[word.subject] = word
    return found


def _narrowed(breaks: Iterable[Break]) -> list[Break]:
    """Breaks that may be one are one: it is where all of them can be."""
    found: list[Break] = []
    for each in sorted(breaks, key=lambda each: each.until):
        if found and each.after < found[-1].until:
            found[-1] = Break(max(found[-1].after, each.after), found[-1].until)
        else:
            found.append(each)
    return found


def _is_before(one: Word, other: Word, breaks: list[Break]) -> bool:
    """Two messages that had one sequence are of two numberings, although no subject shows where the second begins."""
    if one.sequence == other.sequence or any(each.parts(one, other) for each in breaks):
        return one.stored < other.stored
    return one.sequence < other.sequence


def _bookings(book: list[Word]) -> Iterator[str]:
    """A place is granted when its last grant was revoked, or `after` others; no allocation twice; homes are shared."""
    standing: dict[Place, list[str]] = {}
    ended: set[str] = set()
    shares = _shares(book)
    for message in (word.message for word in book):
        if message["type"] not in {"Grant", "Revoke", "Closed"}:
            continue
        booking = message.get("booking")
        name = booking["allocation"] if booking else message["allocation"]
        if message["type"] != "Grant":
            if message.get("removed"):
                ended.discard(name)  # with its node, and without a message of its agent: it may be entered again
            else:
                ended.add(name)
            standing = {place: [o for o in owners if o != name] for place, owners in standing.items()}
            continue
        if name in ended:
            yield f"{name} is granted again after it was revoked"
        allowed = {name, *message.get("after", ())}
        for place in _places(booking["devices"]):
            owners = standing.setdefault(place, [])
            yield from (
                f"{place} is granted to {name} while {owner} has it"
                for owner in owners
                if owner not in allowed and not _together(place, name, owner, shares)
            )
            owners.append(name)


def _shares(book: list[Word]) -> dict[str, set[Home]]:
    found: dict[str, set[Home]] = {}
    for booking in (word.message.get("booking") for word in book):
        for device in booking["devices"] if booking else ():
            if device.get("share"):
                home = (device["gpu"], device["start"], device["size"])
                found.setdefault(booking["allocation"], set()).add(home)
    return found


def _together(place: Place, one: str, other: str, shares: dict[str, set[Home]]) -> bool:
    gpu, at = place
    both = shares.get(one, set()) & shares.get(other, set())
    return any(home == gpu and start <= at < start + size for home, start, size in both)


def _bindings(book: list[Word]) -> Iterator[str]:
    """A request is bound to one allocation, until it is released."""
    bound: dict[str, str] = {}
    for word in book:
        if ".binding." not in word.subject:
            continue
        message = word.message
        request = message["request"]
        if message["type"] != "Bound":
            bound.pop(request, None)
        elif bound.setdefault(request, message["allocation"]) != message["allocation"]:
            yield f"{request} is bound to {bound[request]} and to {message['allocation']}"


def _slices(state: list[Word], shares: dict[str, set[Home]]) -> Iterator[str]:
    """A slice is made at a place only after the one before is gone, and never comes back."""
    nodes: dict[str, list[Word]] = {}
    for word in state:
        if ".slice." in word.subject:
            nodes.setdefault(word.subject.rsplit(".", 1)[0], []).append(word)
    for words in nodes.values():
        yield from _slices_of_node(_in_order(words), shares)


def _in_order(words: list[Word]) -> list[Word]:
    """The messages of one node. One agent at a time writes them, so where numbers fail, the copies are in order."""
    copies = [word for word in words if word.stored < float("inf")]
    breaks = _breaks(copies)
    if not breaks:
        return sorted(words, key=lambda word: word.sequence)
    known_since = max(each.until for each in breaks)
    last_life = [word for word in words if word.stored >= known_since]
    return [word for word in copies if word.stored < known_since] + sorted(last_life, key=lambda word: word.sequence)


def _slices_of_node(words: list[Word], shares: dict[str, set[Home]]) -> Iterator[str]:
    holds: dict[Place, set[str]] = {}
    gone: set[str] = set()
    for message in (word.message for word in words):
        name = message["allocation"]
        if message["type"] == "SliceGone":
            gone.add(name)
            holds = {place: owners - {name} for place, owners in holds.items()}
        elif message["type"] == "SliceReady":
            if name in gone:
                yield f"{name} came back after it was gone"
            for place in _places(message["devices"]):
                holders = holds.setdefault(place, set())
                yield from (
                    f"{place} is made for {name} while {holder} is on it"
                    for holder in sorted(holders - {name})
                    if not _together(place, name, holder, shares)
                )
                holders.add(name)


def _losses(
    book: list[Word], state: list[Word], ends_forgotten: frozenset[str], *, sources_killed: bool
) -> Iterator[str]:
    """No slice that a request was bound to goes before the request was withdrawn, unless its node was removed, or its
    source has declined it.

    Near a break a copy may be stored late, so that the order of storing blames the honest as well as that of numbers:
    one of the two that speaks for them is enough.
    """
    removed = {word.message["allocation"] for word in book if word.message.get("removed")}
    declined = {word.message.get("declined") for word in state}
    bound = {word.message["allocation"] for word in book if word.message["type"] == "Bound"} - removed - declined
    breaks = _breaks(word for word in state if word.stored < float("inf"))
    narrowed = _narrowed(breaks)
    withdrawn: dict[str, list[Word]] = {}
    for word in state:
        if word.message["type"] == "RequestWithdrawn":
            withdrawn.setdefault(word.subject.rsplit(".", 1)[1], []).append(word)
    for word in state:
        if word.message["type"] != "SliceGone" or word.message["allocation"] not in bound:
            continue
        request = word.message["request"]
        ends = withdrawn.get(request, [])
        if sources_killed and ends and all(end.message.get("closing") for end in ends):
            continue  # a closing message is never the first (PROTOCOL §8): the first has no copy
        if ends and request in ends_forgotten:
            continue
        if not any(_is_before(end, word, breaks) or _is_before(end, word, narrowed) for end in ends):
            yield f"{request} lost its slice {word.message['allocation']} while it was wanted"


def _places(devices: Iterable[dict]) -> Iterator[Place]:
    for device in devices:
        for offset in range(device["size"]):
            yield device["gpu"], device["start"] + offset
