"""What the guard of a write promises: the difference between a place given once and a place given twice."""

import asyncio

import pytest
from factories.broker.bus_rigs import NODE, OTHER_NODE, Rig, ensured, order, place, say, settled, shown, watching, word
from factories.waiting import until

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream, WriteAccepted, WriteRefused
from sluice.contracts.ids import RequestId
from sluice.runtime.bus import Bus

pytestmark = [pytest.mark.asyncio(loop_scope="session")]

BINDING = subjects.binding(RequestId("r1"))


async def test_a_request_is_bound_once_although_two_allocators_bind_it(rig: Rig) -> None:
    """Of two writes with the same guard one lands, and the other gets the sequence that was first."""
    one, two = await rig.bus("allocator"), await rig.bus("allocator")
    answers = await asyncio.gather(
        settled(one, order(BINDING, 0, word(BINDING, "one"))), settled(two, order(BINDING, 0, word(BINDING, "two")))
    )
    accepted = [answer for answer in answers if isinstance(answer, WriteAccepted)]
    refused = [answer for answer in answers if isinstance(answer, WriteRefused)]
    assert len(accepted) == len(refused) == 1
    assert refused[0].last_sequence == accepted[0].sequence


async def test_a_place_is_not_booked_by_an_allocator_that_has_not_seen_the_whole_node(bus: Bus) -> None:
    """The guard of a ledger entry is the whole node: another entry written meanwhile refuses it."""
    first = await say(bus, place("a"), 0)
    stale = order(place("b"), 0)
    assert await bus.write(stale, {}) == WriteRefused(stale.operation, first)
    assert await bus.last(Stream.BOOK, place("b").subject) is None
    assert await say(bus, place("b"), first) > first


async def test_the_place_of_an_overwritten_entry_is_not_booked_with_its_old_sequence(bus: Bus) -> None:
    """What counts is the newest entry that is left under the guard."""
    first = await say(bus, place("a"), 0, word(place("a"), "grant"))
    second = await say(bus, place("a"), first, word(place("a"), "revoke"))
    assert isinstance(await bus.write(order(place("b"), first), {}), WriteRefused)
    assert await say(bus, place("b"), second) > second


async def test_a_repeated_write_does_not_land_twice(bus: Bus) -> None:
    """The same operation with the same guard is refused when it has landed."""
    write = order(place("a"), 0, operation="once")
    first = await bus.write(write, {})
    assert isinstance(first, WriteAccepted)
    assert await bus.write(write, {}) == WriteRefused(write.operation, first.sequence)


async def test_a_node_whose_closing_words_have_expired_can_be_booked(bus: Bus) -> None:
    """After expiry the guard steps back to the highest entry that remains, or to nothing."""
    standing = await say(bus, place("grant"), 0)
    closing = await say(bus, place("closed"), standing, ttl_s=1)
    alone = await say(bus, place("closed", OTHER_NODE), 0, ttl_s=1)

    async def expired() -> bool:
        left = [await bus.last(Stream.BOOK, place("closed", node).subject) for node in (NODE, OTHER_NODE)]
        return left == [None, None]

    await until(expired)
    late = order(place("new"), closing)
    assert await bus.write(late, {}) == WriteRefused(late.operation, standing)
    assert isinstance(await bus.write(order(place("new", OTHER_NODE), alone), {}), WriteRefused)
    await say(bus, place("new"), standing)
    await say(bus, place("new", OTHER_NODE), 0)


async def test_an_allocator_from_before_a_wipe_books_nothing_after_it(rig: Rig, bus: Bus) -> None:
    """No guard from another life of the broker matches by accident: sequences go on with time."""
    before = [await bus.incarnation(stream) for stream in (Stream.BOOK, Stream.STATE)]
    stale = await say(bus, place("a"), 0)
    await rig.wipe()
    await ensured(await rig.bus("administrator"))
    bus = await rig.bus()
    assert [await bus.incarnation(stream) for stream in (Stream.BOOK, Stream.STATE)] != before
    assert (await say(bus, place("a"), 0)) > stale
    assert isinstance(await bus.write(order(place("b"), stale), {}), WriteRefused)


async def test_an_unguarded_place_is_the_writers_fault_alone(bus: Bus) -> None:
    """A guard that does not cover the subject is accepted by every broker: hence one function makes both."""
    await say(bus, place("a"), 0)
    await say(bus, place("b"), 0, guard=subjects.ledger_filter(OTHER_NODE))


async def test_unreadable_bytes_stop_nothing_and_still_guard(rig: Rig, bus: Bus) -> None:
    """They are read as an entry without a message, and count for the guard."""
    await rig.put_undecodable(place("a").subject)
    async with watching(bus.read(Stream.BOOK)) as view:
        await shown(rig, view, (await bus.last(Stream.BOOK, place("a").subject)).sequence)
        found = view.known[place("a").subject]
        assert found.message is None
        assert found.operation == ""
        assert isinstance(await bus.write(order(place("b"), 0), {}), WriteRefused)
        await say(bus, place("b"), found.sequence)
        await view.until(lambda view: place("b").subject in view.known)
        assert (await bus.last(Stream.BOOK, place("a").subject)) == found


async def test_an_unknown_subject_stops_nothing(rig: Rig, bus: Bus) -> None:
    """A node may be made to say something at a subject that is none of ours; readers go on without it."""
    await rig.put_undecodable("sluice.slice.gpu-1_example.a.b")
    await rig.put_undecodable("sluice.slice.gpu-1_example.a$b")
    async with watching(bus.read(Stream.STATE)) as view:
        await view.until(lambda view: view.caught_up == 1)
        assert view.known == {}
        await say(bus, subjects.node(NODE), 0)
        await view.until(lambda view: set(view.known) == {subjects.node(NODE).subject})
