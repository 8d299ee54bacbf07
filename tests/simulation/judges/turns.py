"""Turns, judged from what lands on the bus: no request gets a place that another was promised before."""

from simulation.judges.gpu_tables import overlap
from simulation.judges.judge import Judge
from simulation.judges.share_limits import Held, held_by

from sluice.contracts.bus.events import Write
from sluice.contracts.messages import Grant


class TurnJudge:
    """Observes what lands; `judge` keeps the books."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge

    def landed(self, write: Write, _sequence: int) -> None:
        """A new booking: not on a span that stands promised, unless it is an earlier or more important turn's."""
        grant = write.message
        if not isinstance(grant, Grant) or grant.adopted or grant.revision > 1:
            return  # of one that is changed nothing is put anywhere
        if not write.subject.startswith("sluice.ledger."):
            return
        booking = grant.booking
        mine = [held_by(booking, device) for device in booking.devices]
        for allocation, other in self.judge.promises(booking.node).items():
            promised = other.booking
            if not isinstance(other, Grant) or other.evict or promised.request == booking.request:
                continue
            theirs = [held_by(promised, device) for device in promised.devices]
            if any(_in_the_way(one, another) for one in mine for another in theirs) and self._is_later(
                booking.request, promised.request
            ):
                self.judge.fail("turn", f"{booking.allocation} is put where {allocation} was promised a place before")

    def _is_later(self, one: str, other: str) -> bool:
        mine, theirs = self.judge.requests.get(one), self.judge.requests.get(other)
        if mine is None or theirs is None:
            return False
        asked = self.judge.asked_at
        return mine.priority <= theirs.priority and asked.get(one, 0.0) > asked.get(other, 0.0)


def _in_the_way(one: Held, other: Held) -> bool:
    """Whether two cannot both be there: shares of one home can, as far as there is room."""
    return one.gpu == other.gpu and overlap(one.span, other.span) and not one.lives_with(other.share, *other.place[::2])
