"""The last values as the console follows them."""

import asyncio
from types import SimpleNamespace

import pytest

from sluice.contracts.bus.events import Entry, Observed, ReadingCaughtUp, ReadingStarted, Stream
from sluice.contracts.ids import Incarnation, OperationId
from sluice.contracts.messages import LeaseHeld
from sluice.runtime.bus import BusError
from sluice_console.core.doctor.bus import ServiceAnswer
from sluice_console.core.fleet.pods import pods_document
from sluice_console.shell.doctor.doctor import _ask_allocator
from sluice_console.shell.live.allocator_client import NoCertificateError, allocator
from sluice_console.shell.live.live_fleet import LiveFleet, NotAnsweringError, following


def seen(stream, subject, message, sequence=1):
    return Observed(stream, Entry(subject, sequence, OperationId("o"), message))


async def both_read(live, *readings):
    """Snapshots of both streams, with what is given in them."""
    starts = [ReadingStarted(stream, Incarnation("1")) for stream in (Stream.BOOK, Stream.STATE)]
    await live.apply([*starts, *readings, ReadingCaughtUp(Stream.BOOK), ReadingCaughtUp(Stream.STATE)])


async def test_nothing_is_believed_before_both_snapshots_are_complete(make):
    """Half a world would show pods without their answers."""
    live = LiveFleet()
    request = f"sluice.request.{make.request}"
    await live.apply([ReadingStarted(Stream.STATE, Incarnation("1")), seen(Stream.STATE, request, make.asked())])
    await live.apply([ReadingCaughtUp(Stream.STATE)])
    assert not live.caught_up
    with pytest.raises(NotAnsweringError, match=r"waited 0.01 s for anything"):
        await live.until(lambda fleet_state: fleet_state, within_s=0.01, what="anything")


async def test_what_a_new_reading_does_not_show_is_not_there_any_more(make):
    """After a wipe or an expiry; the other stream keeps its values."""
    live = LiveFleet()
    request, binding = f"sluice.request.{make.request}", f"sluice.binding.{make.request}"
    await both_read(live, seen(Stream.STATE, request, make.asked()), seen(Stream.BOOK, binding, make.bound()))
    assert set(live.fleet_state.values) == {request, binding}
    await live.apply([ReadingStarted(Stream.BOOK, Incarnation("2")), ReadingCaughtUp(Stream.BOOK)])
    assert set(live.fleet_state.values) == {request}
    assert live.fleet_state.incarnation == "2"


async def test_waiting_ends_with_the_change_that_was_waited_for(make):
    live = LiveFleet()
    await both_read(live)
    found = live.until(lambda fleet_state: fleet_state.bindings() or None, within_s=5, what="a binding")
    waiting = asyncio.create_task(found)
    await live.apply([seen(Stream.BOOK, f"sluice.binding.{make.request}", make.bound())])
    assert await waiting == {make.request: make.bound()}


async def test_a_measurement_begins_when_nothing_is_published_any_more(make):
    """What a system says while it starts would be measured as part of the first pods' way."""
    live = LiveFleet()
    await both_read(live)
    assert await live.calm(quiet_s=0.001, within_s=60)

    async def talk():
        while True:
            await live.apply([seen(Stream.BOOK, f"sluice.binding.{make.request}", make.bound())])
            await asyncio.sleep(0)

    talking = asyncio.create_task(talk())
    assert not await live.calm(quiet_s=60, within_s=0.01)
    talking.cancel()
    assert await live.calm(quiet_s=0.001, within_s=60)


@pytest.mark.parametrize(
    ("run", "incarnation", "is_open"),
    [("run1", "1", True), ("older", "1", False), ("run1", "0", False)],
    ids=["opened", "for an older agent", "in the broker's former life"],
)
def test_a_node_is_ready_only_when_opened_for_its_present_agent_in_this_life(make, run, incarnation, is_open):
    fleet_state = make.fleet_state(head=make.opened(run=run, incarnation=incarnation), node=make.changed())
    fleet_state.incarnation = "1"
    assert fleet_state.unopened([make.node]) == ([] if is_open else [make.node])


async def test_an_unreadable_message_takes_the_place_of_the_one_before(make):
    """The message that it overwrote is not true any more; shown on, it would hide that something is wrong."""
    live = LiveFleet()
    request, other = f"sluice.request.{make.request}", "sluice.binding.r2"
    await both_read(live, seen(Stream.STATE, request, make.asked()))
    await live.apply([Observed(Stream.STATE, Entry(request, 2, OperationId(""), None, "no JSON"))])
    await live.apply([Observed(Stream.BOOK, Entry(other, 3, OperationId(""), None, "schema 2"))])
    assert (live.fleet_state.values, live.fleet_state.unread) == ({}, {request: "no JSON", other: "schema 2"})
    await live.apply([seen(Stream.STATE, request, make.asked(), 4)])
    assert (set(live.fleet_state.values), live.fleet_state.unread) == ({request}, {other: "schema 2"})
    await live.apply([ReadingStarted(Stream.BOOK, Incarnation("1")), ReadingCaughtUp(Stream.BOOK)])
    assert live.fleet_state.unread == {}


async def test_a_pod_that_ends_keeps_its_name_for_as_long_as_it_is_shown(make):
    """`sluice pods --all --watch`: an id says nothing; and what a page has seen ending would fill its memory."""
    live = LiveFleet()
    request = f"sluice.request.{make.request}"
    await both_read(live, seen(Stream.STATE, request, make.asked()))
    await live.apply([seen(Stream.STATE, request, make.withdrawn(), sequence) for sequence in (2, 3)])
    (pod,) = pods_document(live.fleet_state, with_ended=True).pods
    assert (pod.namespace, pod.name, pod.origin, pod.state) == ("default", "train", "train.yaml", "ended")
    await live.apply([ReadingStarted(Stream.STATE, Incarnation("1")), ReadingCaughtUp(Stream.STATE)])
    assert live.fleet_state.past == {}


async def test_what_ends_both_readers_is_told_as_one_error():
    """A connection that has failed for good fails its reader: a command ends in its sentence, not in a traceback."""

    class Failed:
        async def read(self, _stream):
            await asyncio.sleep(0)
            raise BusError("the broker does not let us")
            yield

    async def use():
        async with following(Failed()):
            await asyncio.Event().wait()

    with pytest.raises(BusError, match="the broker does not let us"):
        await use()


async def test_a_machine_without_certificate_is_told_apart_from_an_allocator_that_fails(monkeypatch):
    """An operator who has only port-forwarded the bus: `gRPC would be plain text` was said of every healthy cluster."""
    for name in ("CERTIFICATE_FILE", "KEY_FILE", "CA_FILE", "PLAIN_TEXT"):
        monkeypatch.delenv(f"SLUICE_GRPC_{name}", raising=False)

    async def last(*_):
        return SimpleNamespace(message=LeaseHeld(role="allocator", owner="r1", endpoint="10.0.0.7:9412"))

    bus = SimpleNamespace(last=last)
    with pytest.raises(NoCertificateError, match=r"10\.0\.0\.7:9412"):
        async with allocator(bus):
            raise AssertionError("a call in plain text")
    answer = await _ask_allocator(bus)
    assert answer == ServiceAnswer(unasked="there is no certificate here (SLUICE_GRPC_CERTIFICATE_FILE)")
