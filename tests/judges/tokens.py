"""What the tokens of one home may never do, by events and answers alone, in microseconds. Raises AssertionError."""

from dataclasses import dataclass, field
from typing import Any

WINDOW_US, TOKEN_US, LEAST_US, OVERRUN_MAX_US = 100_000, 10_000, 1_000, 200_000
"""As docs/time-quota.md promises them."""
WHOLE = 1_000_000
_MANY = 200
"""Turns in one window; with more the scheduler may count coarsely, to the tenant's cost."""


@dataclass
class Turn:
    """What one process holds: planned to end, and still there or not."""

    token: int
    start: int
    planned: int
    end: int | None = None


@dataclass
class Person:
    """One tenant, as the judge sees it."""

    request: int
    limit: int
    width: int
    since: int
    """When it got this size."""
    turns: list[tuple[str, Turn]] = field(default_factory=list)
    overran: bool = False
    waits_since: int | None = None
    wanted_since: int | None = None
    """Since when it wanted the device without a pause."""


@dataclass
class Line:
    """One connection."""

    tenant: str
    greeted: bool = False
    ask: Any = None
    turn: Turn | None = None
    width: int = 0


class TokenJudge:
    """Knows one home since the start of its scheduler."""

    def __init__(self) -> None:
        self.people: dict[str, Person] = {}
        self.lines: dict[int, Line] = {}
        self.tokens: set[int] = set()
        self.grants = 0

    # -- what is said -----------------------------------------------------------------------------------------------

    def hears(self, event: Any, told: list[Any], now: int) -> None:
        """An event, and what came of it at once."""
        getattr(self, f"_on_{type(event).__name__.lower()}")(event, now)
        for each in told:
            if type(each).__name__ == "Send":
                self._on_send(each, now)
            elif type(each).__name__ == "Disconnect":
                self._on_connectionclosed(each, now)
        self._fits(now)
        self._limits(now)
        self._idles(now)

    def _on_tenantset(self, event: Any, now: int) -> None:
        old = self.people.get(event.tenant)
        request = max(1_000, event.request_ppm)
        size = (request, max(request, event.limit_ppm), event.width_percent)
        if old is None:
            self.people[event.tenant] = Person(*size, since=now)
            return
        old.request, old.limit, old.width = size
        old.since = now
        if old.wanted_since is not None:
            old.wanted_since = now

    def _on_tenantremoved(self, event: Any, now: int) -> None:
        for number in [n for n, line in self.lines.items() if line.tenant == event.tenant]:
            self._end(self.lines[number], now)
            self.lines[number].ask = None
        self.people.pop(event.tenant, None)

    def _on_connectionopened(self, event: Any, _: int) -> None:
        self.lines[event.connection] = Line(event.tenant)

    def _on_connectionclosed(self, event: Any, now: int) -> None:
        line = self.lines.pop(event.connection, None)
        if line is not None:
            self._end(line, now)
            self._waits(line.tenant, now)

    def _on_timerdue(self, event: Any, now: int) -> None:
        pass

    def _on_messagereceived(self, event: Any, now: int) -> None:
        line = self.lines.get(event.connection)
        if line is None:
            return
        message, kind = event.message, type(event.message).__name__
        if kind == "Hello":
            line.greeted = True
        elif kind == "Ask" and line.greeted:
            line.ask = message
        elif kind == "GiveBack" and line.turn is not None and line.turn.token == message.token:
            self._end(line, now)
        self._waits(line.tenant, now)

    def _on_send(self, sent: Any, now: int) -> None:
        line, kind = self.lines.get(sent.connection), type(sent.message).__name__
        assert line is not None, f"{sent} is said to a connection that is closed"
        if kind != "Grant":
            return
        grant, ask = sent.message, line.ask
        assert ask is not None, f"{grant} was not asked for"
        assert grant.in_answer_to == ask.sequence, f"{grant} answers another question than {ask}"
        assert grant.token not in self.tokens, f"token {grant.token} was given twice"
        assert LEAST_US <= grant.length_us <= TOKEN_US, f"a token of {grant.length_us} us"
        self.tokens.add(grant.token)
        self.grants += 1
        person = self.people[line.tenant]
        start = now
        if line.turn is not None:
            assert ask.ahead_of == line.turn.token, f"{grant} goes on from a token that was not asked ahead of"
            start = line.turn.planned
            line.turn.end = start
        line.ask, line.width = None, person.width
        line.turn = Turn(grant.token, start, start + grant.length_us)
        person.turns.append((line.tenant, line.turn))
        self._waits(line.tenant, now)

    def _end(self, line: Line, now: int) -> None:
        if line.turn is None:
            return
        line.turn.end = max(now, line.turn.start)
        person = self.people.get(line.tenant)
        for _, before in person.turns[-2:-1] if person is not None else ():
            before.end = now if before.end is not None and before.end > now else before.end  # it never began
        if person is not None and now > line.turn.planned:
            person.overran = True
        line.turn = None

    def _waits(self, tenant: str, now: int) -> None:
        person = self.people.get(tenant)
        if person is None:
            return
        mine = [line for line in self.lines.values() if line.tenant == tenant]
        holds, asks = any(line.turn for line in mine), any(line.ask for line in mine)
        person.waits_since = (person.waits_since or now) if asks and not holds else None
        person.wanted_since = (person.wanted_since or now) if asks or holds else None

    # -- what must hold ---------------------------------------------------------------------------------------------

    def _holders(self, now: int) -> list[Line]:
        """Those whose token is not so late that others may go on beside it."""
        return [line for line in self.lines.values() if line.turn and now < line.turn.planned + OVERRUN_MAX_US]

    def _fits(self, now: int) -> None:
        holders = self._holders(now)
        widths = sum(line.width for line in holders)
        assert widths <= 100, f"{widths} % of the SMs are held at {now}"
        names = [line.tenant for line in holders]
        assert len(names) == len(set(names)), f"two processes of one tenant hold tokens at {now}: {names}"

    def _used(self, person: Person, begin: int, end: int, now: int, *, planned: bool) -> int:
        """What it held within a window; of tokens that still run what they will hold at most, if they are kept."""
        used = 0
        for _, turn in person.turns:
            until = turn.planned if turn.end is None else min(turn.end, turn.planned) if planned else turn.end
            if turn.end is None and not planned:
                until = now
            used += max(0, min(until, end) - max(turn.start, begin))
        return used

    def _window(self, person: Person) -> int:
        return max(WINDOW_US, -(-LEAST_US * WHOLE // person.limit))

    def _limits(self, now: int) -> None:
        for name, person in self.people.items():
            person.turns = [t for t in person.turns if t[1].end is None or t[1].end > now - 12 * WINDOW_US]
            if person.limit >= WHOLE:
                continue
            window = self._window(person)
            for _, turn in person.turns[-3:]:
                begin = turn.planned - window
                if begin >= person.since:
                    used = self._used(person, begin, turn.planned, now, planned=True)
                    most = person.limit * window // WHOLE
                    assert used <= most, f"{name} has {used} us of {most} in the window that ends at {turn.planned}"

    def _has_room(self, person: Person, now: int) -> bool | None:
        """Whether the shortest token would keep its limit now, in every window; None where that is unknown."""
        if person.limit >= WHOLE:
            return True
        window, most = self._window(person), person.limit * self._window(person) // WHOLE
        recent = [t for _, t in person.turns if t.end is None or t.end > now - window]
        if person.overran or len(recent) > _MANY or now - person.since < window:
            return None
        ends = {
            now + LEAST_US,
            *(min(now + LEAST_US, max(now, e + window)) for t in recent for e in (t.start, t.end or now)),
        }
        return all(self._used(person, end - window, end, now, planned=False) + end - now <= most for end in ends)

    def _idles(self, now: int) -> None:
        """No tenant waits for SMs that are free: work-conserving, and a dead process frees its token at once."""
        if any(line.turn and now >= line.turn.planned + OVERRUN_MAX_US for line in self.lines.values()):
            return  # the debt of who stalled may keep it waiting
        free = 100 - sum(line.width for line in self.lines.values() if line.turn)
        rooms = {name: self._has_room(p, now) for name, p in self.people.items() if p.waits_since is not None}
        if any(room is not False and self.people[name].width > free for name, room in rooms.items()):
            return  # room may be kept for the one that waits longest
        waiting = [name for name, room in rooms.items() if room]
        assert not waiting, f"{waiting} wait at {now} though {free} % of the SMs are free"

    # -- over time --------------------------------------------------------------------------------------------------

    def had_request(self, name: str, now: int) -> None:
        """A tenant that wanted the device for ten windows has had its request of the last ten, but for two tokens."""
        person = self.people[name]
        span = 10 * WINDOW_US
        if person.wanted_since is None or now - person.wanted_since < span + WINDOW_US:
            return
        used = self._used(person, now - span, now, now, planned=False)
        owed = person.request * span // WHOLE - 2 * TOKEN_US - person.request * WINDOW_US // WHOLE
        assert used >= owed, f"{name} wanted the device for ten windows and had {used} us of {owed}"

    def was_served(self, name: str, now: int) -> None:
        """No tenant waits without bound: not longer than its request makes up for one token, and some windows."""
        person = self.people[name]
        if person.waits_since is not None and self._has_room(person, now):
            most = TOKEN_US * WHOLE // person.request + 5 * WINDOW_US
            waited = now - person.waits_since
            assert waited <= most, f"{name} waits for {waited} us, more than {most}"
