"""Reading before it is requested: sooner, and never older than a request could return."""

import asyncio
import gc

import pytest

from sluice.contracts.bus.events import Entry, Observed, ReadingCaughtUp, ReadingStarted, ReadLast, Stream
from sluice.contracts.ids import Incarnation, OperationId
from sluice.runtime.prefetch import READS_MAX, Prefetch

WANTED = ReadLast(Stream.STATE, "sluice.slice.n1.a1")
STARTED = ReadingStarted(Stream.BOOK, Incarnation("1"))
CAUGHT_UP = ReadingCaughtUp(Stream.BOOK)


def heard(name="a1"):
    """A ledger entry after which the slice's status will be requested."""
    return Observed(Stream.BOOK, Entry(f"sluice.ledger.n1.{name}", 7, OperationId("o1"), None))


class SlowBus:
    """Answers while it may: the n-th request is answered with sequence n."""

    def __init__(self):
        self.asked = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error = None

    async def last(self, stream, subject):
        self.asked.append((stream, subject))
        number = len(self.asked)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return Entry(subject, number, OperationId("o"), None)


@pytest.fixture
def bus():
    return SlowBus()


@pytest.fixture
def ahead(bus):
    looks = Prefetch(bus, lambda entry: ReadLast(Stream.STATE, entry.subject.replace("ledger", "slice")))
    looks.hear([STARTED])
    looks.hear([CAUGHT_UP])
    return looks


async def test_a_second_question_is_asked_again(ahead, bus):
    """A refused write would be explained by an older value, and retried under the wrong guard without end."""
    ahead.hear([heard()])
    assert [(await ahead.last(WANTED)).sequence for _ in range(3)] == [1, 2, 3]


async def test_what_was_seen_before_a_new_reading_is_not_used_after_it(ahead, bus):
    """A broker that has forgotten a slice's status would never get it again."""
    ahead.hear([heard()])
    await asyncio.sleep(0)
    ahead.hear([STARTED])
    assert (await ahead.last(WANTED)).sequence == 2


async def test_what_a_reading_begins_with_is_not_looked_at(ahead, bus):
    """An agent that starts on a full node would read all its slices' statuses twice."""
    ahead.hear([STARTED, heard()])
    ahead.hear([CAUGHT_UP, heard("a2")])
    await asyncio.sleep(0)
    assert [subject for _, subject in bus.asked] == ["sluice.slice.n1.a2"]


async def test_a_look_without_an_answer_is_told_as_a_question_without_one(ahead, bus):
    """The request would not be repeated, and the pod wait without end."""
    bus.error = TimeoutError()
    ahead.hear([heard()])
    with pytest.raises(TimeoutError):
        await ahead.last(WANTED)
    bus.error = None
    assert (await ahead.last(WANTED)).sequence == 2


async def test_looks_that_are_not_taken_are_bounded_and_end_silently(ahead, bus):
    """Memory would grow with every slice, and each lost connection fill a page of the log."""
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    bus.error = TimeoutError()
    ahead.hear([heard(f"a{number}") for number in range(READS_MAX + 5)])
    await asyncio.sleep(0)
    assert len(bus.asked) == READS_MAX
    ahead.hear([heard("late")])
    ahead.forget()
    bus.may_answer.clear()
    ahead.hear([heard()])
    await asyncio.sleep(0)
    ahead.forget()
    await asyncio.sleep(0)
    gc.collect()
    assert told == []
