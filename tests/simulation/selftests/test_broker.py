"""The simulated bus does what a real one may do, and nothing that no real one could."""

from random import Random

from simulation.world.broker import Broker
from simulation.world.trace import Trace
from simulation.world.virtual_clock import VirtualClock
from simulation.world.weather import Sky, Weather

from sluice.contracts.bus.events import Stream, Write, WriteAccepted
from sluice.contracts.ids import OperationId, SourceName
from sluice.contracts.messages import RequestWithdrawn

ADDRESS = "sluice.request.a"


def write(operation: str, over: int) -> Write:
    """A message of a pod-watcher, over the one with this number."""
    word = RequestWithdrawn(revision=1, source=SourceName("folder"), cause="pod gone")
    return Write(OperationId(operation), 1, Stream.STATE, ADDRESS, ADDRESS, over, word, "a")


class Late:
    """A broker, and a way to send it a message that comes late, in a network that does nothing else."""

    def __init__(self) -> None:
        self.clockwork = VirtualClock(Random(1))
        sky, trace = Sky(Weather(until=0.0), Random(1)), Trace("nothing", lambda: self.clockwork.now)
        self.broker = Broker(self.clockwork, sky, trace)
        self.broker.ensure()
        self.broker.fate_of = lambda _host, said: "late" if said.operation == "late" else None

    def send(self, over: int) -> None:
        self.broker.write("pod-watcher", write("late", over), lambda _answer: None)

    def put(self, operation: str, over: int) -> int:
        """Another message lands at once. Returns its number."""
        answer = self.broker.put("pod-watcher", write(operation, over))
        assert isinstance(answer, WriteAccepted)
        return answer.sequence

    def restart(self, *, forgets_state: int) -> None:
        self.broker.stop()
        self.broker.start(forgets_state=forgets_state)

    def last(self) -> str:
        """Which message stands when everything that was under way has come."""
        self.clockwork.run_until(60.0)
        last = self.broker.values.last(ADDRESS, self.clockwork.now)
        return last.operation if last is not None else ""


def test_a_late_write_does_not_undo_what_was_corrected_on_a_server_that_forgets() -> None:
    """No server does that: the number that it is over is given twice, and to another message."""
    late = Late()
    forgotten = late.put("forgotten", 0)
    late.send(over=forgotten)
    late.restart(forgets_state=1)
    assert late.put("corrected", 0) == forgotten
    assert late.last() == "corrected"


def test_a_late_write_does_not_land_where_a_server_has_forgotten_what_came_after_it() -> None:
    """Nor that: a withdrawn request would be requested again, by no source."""
    late = Late()
    late.send(over=0)
    late.put("withdrawn", 0)
    late.restart(forgets_state=1)
    assert late.last() == ""


def test_a_late_write_lands_where_nothing_was_forgotten() -> None:
    """In a cluster another server may have it: a reader that ignores that is not tested."""
    late = Late()
    late.send(over=0)
    late.restart(forgets_state=0)
    assert late.last() == "late"
