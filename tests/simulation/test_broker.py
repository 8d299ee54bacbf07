"""The simulated bus does what a real one may do, and nothing that no real one could."""

from random import Random

from simulation.broker import Answer, Broker
from simulation.clockwork import Clockwork
from simulation.trace import Trace
from simulation.weather import Sky, Weather

from sluice.contracts.exchange import Stream, Write, WriteAccepted
from sluice.contracts.ids import OperationId, SourceName
from sluice.contracts.messages import RequestWithdrawn

ADDRESS = "sluice.request.a"


def write(operation: str, over: int) -> Write:
    """A word of a pod-watcher, over the one with this number."""
    word = RequestWithdrawn(revision=1, source=SourceName("folder"), cause="pod gone")
    return Write(OperationId(operation), 1, Stream.STATE, ADDRESS, ADDRESS, over, word, "a")


def test_a_late_write_of_an_ended_connection_does_not_land_over_a_number_that_is_given_twice() -> None:
    """What a process has corrected after a restart would be undone by what it had said before: no server does that."""
    clockwork = Clockwork(Random(1))
    broker = Broker(clockwork, Sky(Weather(until=0.0), Random(1)), Trace("nothing", lambda: clockwork.now))
    broker.ensure()
    forgotten = broker.put("pod-watcher", write("forgotten", 0))
    assert isinstance(forgotten, WriteAccepted)
    late = write("late", forgotten.sequence)
    broker.fate_of = lambda _host, said: "late" if said is late else None
    answers: list[Answer] = []
    broker.write("pod-watcher", late, answers.append)

    broker.stop()
    broker.start(forgets_state=1)
    corrected = broker.put("pod-watcher", write("corrected", 0))
    assert isinstance(corrected, WriteAccepted)
    assert corrected.sequence == forgotten.sequence
    clockwork.run_until(60.0)
    assert len(answers) == 1
    last = broker.values.last(ADDRESS, clockwork.now)
    assert last is not None
    assert last.operation == "corrected"
    assert isinstance(broker.put("pod-watcher", write("next", corrected.sequence)), WriteAccepted)
