"""The outbox over a real bus: writes whose answers are lost are settled, and what is kept is put back."""

import pytest
from factories.broker.bus_rigs import Clerk, LosingAnswers, MemoryRig, Rig, at_work, place, say, word
from factories.waiting import until

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream, Ticked
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.runtime.bus import Bus

pytestmark = [pytest.mark.asyncio(loop_scope="session")]

BINDING = subjects.binding(RequestId("r1"))
LEDGER = frozenset({"ledger", "binding"})
SLICE = subjects.slice_(NodeName("gpu-1"), AllocationId("a"))


async def test_a_grant_whose_answer_is_lost_is_settled_as_landed_and_written_once(bus: Bus) -> None:
    """Several times over: the same operation and guard again, refused, and found to be its own."""
    clerk = Clerk("one", LEDGER)
    operation = clerk.outbox.commit(place("a"), word(place("a"), "grant"))
    async with at_work(clerk, LosingAnswers(bus, lose=3), Stream.BOOK):
        await until(lambda: len(clerk.settled) == 1)
    assert clerk.settled == {operation: True}
    found = await bus.last(Stream.BOOK, place("a").subject)
    assert found.operation == operation
    await say(bus, place("b"), found.sequence)  # the guard is still the first landing: it landed only once


async def test_of_two_allocators_whose_answers_are_lost_one_binds_and_both_know_who(rig: Rig) -> None:
    """The loser's write is settled as not landed, the winner's as landed."""
    clerks = [Clerk("one", LEDGER), Clerk("two", LEDGER)]
    one, two = LosingAnswers(await rig.bus(), lose=2), LosingAnswers(await rig.bus(), lose=2)
    async with at_work(clerks[0], one, Stream.BOOK) as first, at_work(clerks[1], two, Stream.BOOK) as second:
        for clerk in clerks:  # who reads after the other has written knows of it, and may write over it
            await until(lambda clerk=clerk: clerk.has_read)
        for number, clerk in enumerate(clerks):
            clerk.outbox.commit(BINDING, word(BINDING, f"bound by {number}"))
        for runner in (first, second):  # no clerk waits for its own tick: by then it has read what the other wrote
            await runner.offer(Ticked())
        await until(lambda: len(clerks[0].settled) == 1)
        await until(lambda: len(clerks[1].settled) == 1)
    assert sorted(landed for clerk in clerks for landed in clerk.settled.values()) == [False, True]


async def test_many_grants_on_one_node_all_land_although_every_third_answer_is_lost(bus: Bus) -> None:
    """One guard, one in flight, in order; nothing is lost and nothing is doubled."""
    clerk = Clerk("one", LEDGER)
    for number in range(30):
        clerk.outbox.commit(place(f"a{number}"), word(place(f"a{number}"), str(number)))
    async with at_work(clerk, LosingAnswers(bus, every=3), Stream.BOOK):
        await until(lambda: len(clerk.settled) == 30)
    assert list(clerk.settled.values()) == [True] * 30


async def test_an_agents_word_is_said_again_when_the_broker_forgot_it() -> None:
    """A stream that does not sync may lose what it acknowledged; what is kept is put back after the next reading."""
    rig = MemoryRig()
    bus = await rig.bus()
    clerk = Clerk("one", frozenset({"slice"}))
    clerk.outbox.keep(SLICE, word(SLICE, "ready"))
    async with at_work(clerk, bus, Stream.STATE):
        await until(lambda: _is_there(rig, SLICE.subject))
        assert rig.broker.lose_latest(Stream.STATE, 1) == 1
        assert await bus.last(Stream.STATE, SLICE.subject) is None
        await until(lambda: _is_there(rig, SLICE.subject))


async def test_an_agent_keeps_its_words_by_single_reads(rig: Rig) -> None:
    """Agents read no stream: their guards come from the last value, also when another client wrote in between."""
    bus = await rig.bus("node-agent")
    clerk = Clerk("agent", frozenset({"slice"}), reading="last")
    await say(bus, SLICE, 0, word(SLICE, "of another life"))
    clerk.outbox.keep(SLICE, word(SLICE, "ready"))
    async with at_work(clerk, LosingAnswers(bus, lose=2), Stream.STATE):
        await until(lambda: _says(bus, word(SLICE, "ready")))


async def _says(bus: Bus, message: object) -> bool:
    found = await bus.last(Stream.STATE, SLICE.subject)
    return found is not None and found.message == message


async def _is_there(rig: Rig, subject: str) -> bool:
    return await (await rig.bus()).last(Stream.STATE, subject) is not None
