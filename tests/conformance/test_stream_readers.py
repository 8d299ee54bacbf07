"""What a reader is promised: all last values, then what is new, and a fresh start whenever something may be missing."""

import asyncio

import pytest
from factories.broker.bus_rigs import (
    NODE,
    OTHER_NODE,
    MemoryRig,
    Rig,
    SharedClusterRig,
    View,
    agent_ensured,
    ensured,
    order,
    place,
    say,
    shown,
    watching,
    word,
)
from factories.waiting import until

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream, WriteAccepted
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import NodeName, RequestId
from sluice.runtime.bus import Bus
from sluice.runtime.nats.reader import Reader
from sluice.runtime.tracing.request_traces import RequestTraces

pytestmark = [pytest.mark.asyncio(loop_scope="session")]

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_a_service_that_starts_late_knows_everything(rig: Rig, bus: Bus) -> None:
    """The incarnation comes first, then every last value, then the end of the snapshot, then what is new."""
    first = await say(bus, place("a"), 0, word(place("a"), "a"))
    second = await say(bus, place("b"), first, word(place("b"), "b"))
    async with watching(bus.read(Stream.BOOK)) as view:
        await shown(rig, view, first, second)
        assert [start.incarnation for start in view.starts] == [await bus.incarnation(Stream.BOOK)]
        assert [(entry.sequence, entry.message) for entry in view.observed] == [
            (first, word(place("a"), "a")),
            (second, word(place("b"), "b")),
        ]
        third = await say(bus, place("a"), second, word(place("a"), "c"))
        await view.until(lambda view: view.known[place("a").subject].sequence == third)
        assert view.known[place("a").subject] == await bus.last(Stream.BOOK, place("a").subject)


async def test_an_empty_bus_is_known_to_be_empty(bus: Bus) -> None:
    """The end of the snapshot comes although there is nothing in it."""
    for stream in (Stream.BOOK, Stream.STATE):
        async with watching(bus.read(stream)) as view:
            await view.until(lambda view: view.caught_up == 1)
            assert view.observed == []


async def test_a_reading_ends_although_what_it_was_promised_has_run_out(rig: Rig, monkeypatch) -> None:
    """A service that starts when only closing messages are left, which expire just then, would not work for minutes."""
    if isinstance(rig, MemoryRig):
        pytest.skip("in one process nothing passes between an announcement and its message")
    bus = await rig.bus()
    pull = Reader._pull
    # Of three servers the one that serves the reading may be the last to let go of it.
    for name in ("a", "b", "c") if isinstance(rig, SharedClusterRig) else ("a",):
        await say(bus, place(name), 0, ttl_s=1)
        waited: list[object] = []  # between the server's answer and the first pull

        async def late(self: Reader, *what: object, name: str = name, waited: list[object] = waited) -> None:
            if not waited:
                waited.extend(what)
                await until(lambda: _is_gone(bus, place(name)))
            await pull(self, *what)

        monkeypatch.setattr(Reader, "_pull", late)
        async with watching(bus.read(Stream.BOOK)) as view:
            await view.until(lambda view: view.caught_up >= 1)
            if view.known == {}:
                return
    raise AssertionError("no reading started over: each had what had expired")


async def _is_gone(bus: Bus, address: Address) -> bool:
    return await bus.last(Stream.BOOK, address.subject) is None


async def test_start_up_does_not_grow_with_what_was_overwritten(rig: Rig, bus: Bus) -> None:
    """Of a value that was written many times a new reader sees the last."""
    last = 0
    for number in range(50):
        last = await say(bus, place("a"), last, word(place("a"), str(number)))
    async with watching(bus.read(Stream.BOOK)) as view:
        await shown(rig, view, last)
        # Three servers may show it late, behind what was before it.
        observed = view.observed[-1:] if isinstance(rig, SharedClusterRig) else view.observed
        assert [(entry.sequence, entry.message) for entry in observed] == [(last, word(place("a"), "49"))]


async def test_nothing_is_missed_that_is_written_while_the_snapshot_is_read(rig: Rig, bus: Bus) -> None:
    """Under concurrent writers a reader ends up with the last value of each subject, in order and with no restart."""
    lasts: dict[str, int] = {}

    async def write(lane: int) -> None:
        own = await rig.bus()
        node, last = NodeName(f"gpu-{lane}"), 0
        for number in range(60):
            address = place(f"a{number % 7}", node)
            last = lasts[address.subject] = await say(own, address, last, word(address, str(number)))

    writers = [asyncio.create_task(write(lane)) for lane in range(4)]
    views = []
    for _ in range(3):
        await asyncio.sleep(0.01)
        views.append(watching(bus.read(Stream.BOOK)))
    async with views[0] as one, views[1] as two, views[2] as three:
        await asyncio.gather(*writers)

        def complete(view: View) -> bool:
            return view.caught_up > 0 and {s: entry.sequence for s, entry in view.known.items()} == lasts

        for view in (one, two, three):
            await view.until(complete)
            sequences = [entry.sequence for entry in view.observed]
            assert sequences == sorted(set(sequences))
            assert len(view.starts) == 1


async def test_a_service_is_not_told_what_it_did_not_ask_for(bus: Bus) -> None:
    """Filters, one or several, bound the snapshot and the tail."""
    request, node = subjects.request(RequestId("r1")), subjects.node(NODE)
    source = subjects.guarded("source", "folder")
    async with (
        watching(bus.read(Stream.STATE, ("sluice.node.>",))) as one,
        watching(bus.read(Stream.STATE, ("sluice.request.>", "sluice.source.>"))) as two,
    ):
        for view in (one, two):
            await view.until(lambda view: view.caught_up == 1)
        for address in (request, node, source):
            await say(bus, address, 0)
        await one.until(lambda view: node.subject in view.known)
        await two.until(lambda view: source.subject in view.known)
        assert set(one.known) == {node.subject}
        assert set(two.known) == {request.subject, source.subject}


async def test_a_core_that_doubts_what_it_knows_reads_again(rig: Rig, bus: Bus) -> None:
    """`read_again` restarts every reading of that stream, and no other."""
    await say(bus, place("a"), 0)
    async with watching(bus.read(Stream.BOOK)) as book, watching(bus.read(Stream.STATE)) as state:
        for view in (book, state):
            await view.until(lambda view: view.caught_up >= 1)
        begun = book.caught_up
        bus.read_again(Stream.BOOK)
        await book.until(lambda view: view.caught_up > begun)
        assert len(book.starts) > begun
        assert {entry.subject for entry in book.observed} == {place("a").subject}
        if not isinstance(rig, SharedClusterRig):  # three servers on a busy machine: a late heartbeat begins one, too
            assert (len(book.starts), len(state.starts)) == (2, 1)
            assert [entry.subject for entry in book.observed] == [place("a").subject]


async def test_a_service_that_lives_through_a_wipe_learns_that_everything_is_gone(rig: Rig, bus: Bus) -> None:
    """The reader waits for the streams and starts over in another incarnation."""
    await say(bus, place("a"), 0)
    async with watching(bus.read(Stream.BOOK)) as view:
        await view.until(lambda view: view.caught_up == 1)
        await rig.wipe()
        await ensured(await rig.bus("administrator"))
        await view.until(lambda view: view.starts[-1].incarnation != view.starts[0].incarnation)
        seen = view.caught_up
        await view.until(lambda view: view.caught_up > seen or not view.known)
        await say(bus, place("b"), 0)
        await view.until(lambda view: set(view.known) == {place("b").subject})


async def test_who_cannot_read_any_more_is_told_for_how_long(rig: Rig, bus: Bus) -> None:
    """A server that is there and has no stream: people see that what was read before is out of date."""
    async with watching(bus.read(Stream.BOOK)) as view:
        await view.until(lambda view: view.caught_up == 1)
        assert bus.unread_s == 0
        await rig.wipe()

        async def is_unread() -> bool:
            return bus.connected and bus.unread_s > 0.3

        await until(is_unread)
        await ensured(await rig.bus("administrator"))
        await view.until(lambda view: view.caught_up == 2)
        assert bus.unread_s == 0


async def test_a_trace_goes_on_in_the_next_service(rig: Rig) -> None:
    """The trace context of a message is remembered for its request."""
    writer = await rig.bus()
    traces = RequestTraces()
    reader = await rig.bus("pod-watcher", traces)
    binding = subjects.binding(RequestId("r1"))
    await writer.write(order(binding, 0, request="r1"), {"traceparent": TRACEPARENT})
    stored = await writer.last(Stream.BOOK, binding.subject)
    async with watching(reader.read(Stream.BOOK, ("sluice.binding.>",))) as view:
        await shown(rig, view, stored.sequence)
    assert traces.headers("r1") == {"traceparent": TRACEPARENT}


async def test_a_person_can_read_what_was_overwritten(bus: Bus) -> None:
    """HISTORY has every accepted message in its order, and no refused one."""
    binding = subjects.binding(RequestId("r1"))
    first = await say(bus, binding, 0, word(binding, "first"))
    await bus.write(order(binding, 0, word(binding, "refused")), {})
    await say(bus, binding, first, word(binding, "second"))
    async with watching(bus.read(Stream.HISTORY, ("hist.sluice.binding.>",))) as view:
        await view.until(lambda view: len(view.observed) == 2)
        assert [entry.message for entry in view.observed] == [word(binding, "first"), word(binding, "second")]
        assert {entry.subject for entry in view.observed} == {f"hist.{binding.subject}"}


# -- an agent's ledger ------------------------------------------------------------------------------------------------


async def test_an_unknown_agent_is_refused_and_waits(rig: Rig) -> None:
    """A start without incarnation, no end of a snapshot; then, with its durable, its node's ledger and no other's."""
    bus = await rig.bus("administrator")
    agent = await rig.bus("node-agent")
    first = await say(bus, place("a"), 0)
    await say(bus, place("x", OTHER_NODE), 0)
    async with watching(agent.read_ledger(NODE)) as view:
        await view.until(lambda view: len(view.starts) == 1)
        assert view.starts[0].incarnation == ""
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await view.until(lambda view: len(view.starts) > 1 or view.caught_up > 0)
        await bus.ensure_agent(NODE)
        await view.until(lambda view: view.caught_up >= 1)
        starts = [start.incarnation for start in view.starts]
        second = await say(bus, place("b"), first)
        await view.until(lambda view: place("b").subject in view.known)
        observed = [(entry.subject, entry.sequence) for entry in view.observed]
        if isinstance(rig, SharedClusterRig):
            # There it may begin again: the durable's leader is elected while the first reading has begun.
            starts, observed = list(dict.fromkeys(starts)), list(dict.fromkeys(observed))
        assert starts == ["", await bus.incarnation(Stream.BOOK)]
        assert observed == [(place("a").subject, first), (place("b").subject, second)]


async def test_a_restarted_agent_reads_its_whole_ledger_again(rig: Rig) -> None:
    """Although everything was acknowledged by the one before."""
    bus = await rig.bus("administrator")
    await bus.ensure_agent(NODE)
    last = await say(bus, place("b"), await say(bus, place("a"), 0))
    for _ in range(2):
        agent = await rig.bus("node-agent")
        async with watching(agent.read_ledger(NODE)) as view:
            await shown(rig, view, last)
            assert set(view.known) == {place("a").subject, place("b").subject}
            await bus.incarnation(Stream.BOOK)  # the batch before was acknowledged when the next one was asked for


async def test_an_agent_reads_more_than_it_may_have_unacknowledged(rig: Rig) -> None:
    """A ledger longer than the limit of open acknowledgements is read to its end."""
    bus = await rig.bus("administrator")
    await bus.ensure_agent(NODE)
    last = 0
    for number in range(600):
        last = await say(bus, place(f"a{number}"), last)
    async with watching((await rig.bus("node-agent")).read_ledger(NODE)) as view:
        await shown(rig, view, last)
        assert len(view.known) == 600
        last = await say(bus, place("a0"), last)
        await view.until(lambda view: view.known[place("a0").subject].sequence == last)
        assert len(view.starts) == 1


async def test_an_agent_of_a_wiped_broker_reads_the_new_ledger(rig: Rig) -> None:
    """Its durable went with the stream; it waits for the new one."""
    bus = await rig.bus("administrator")
    await bus.ensure_agent(NODE)
    await say(bus, place("a"), 0)
    async with watching((await rig.bus("node-agent")).read_ledger(NODE)) as view:
        await view.until(lambda view: view.caught_up == 1)
        await rig.wipe()
        again = await rig.bus("administrator")
        await ensured(again)
        await agent_ensured(again)
        await say(again, place("b"), 0)
        await view.until(lambda view: set(view.known) == {place("b").subject} and view.caught_up > 1)
        assert view.starts[-1].incarnation == await again.incarnation(Stream.BOOK)


async def test_declaring_twice_changes_nothing(rig: Rig) -> None:
    """Streams and durables that are there stay as they are."""
    bus = await rig.bus("administrator")
    await bus.ensure_agent(NODE)
    before = await bus.incarnation(Stream.BOOK)
    answer = await bus.write(order(place("a"), 0), {})
    await bus.ensure_streams()
    await bus.ensure_agent(NODE)
    assert await bus.incarnation(Stream.BOOK) == before
    assert isinstance(answer, WriteAccepted)
    assert (await bus.last(Stream.BOOK, place("a").subject)).sequence == answer.sequence
