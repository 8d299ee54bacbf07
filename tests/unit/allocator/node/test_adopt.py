"""Nodes are used only after what their agents report is in the ledger; orphans go only when that is sure."""

from itertools import count

import msgspec
import pytest
from factories.scheduling.allocator import FOLDER, INCARNATION, asked, claim, gpu_report, ready_of, snapshot, whole_gpu

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, ReadAgain, ReadingCaughtUp, ReadingStarted, Stream, Ticked, Write
from sluice.contracts.ids import AllocationId, GpuUuid, Incarnation, NodeName, OperationId, RequestId, RunId
from sluice.contracts.messages import (
    Bound,
    Closed,
    Grant,
    Held,
    NodeChanged,
    NodeInventory,
    NodeOpened,
    Pending,
    Released,
    RequestRejected,
    RequestWithdrawn,
    Revoke,
    SliceDegraded,
    SliceGone,
    SliceReport,
    SourceSynced,
    Waived,
)
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice_allocator.core.events import AgentEnsured, EnsureAgent

NODE = NodeName("node-a")
P1 = RequestId("p1")


def living(request: str = "p1", *, revoked: bool = False) -> SliceReport:
    """A slice that an agent reports, filling GPU 0 of node-a."""
    booking = whole_gpu(f"{request}_old_1", request=request)
    return SliceReport(booking=booking, revision=1, state="ready", revoked=revoked)


def messages(instructions) -> list:
    return [i.message for i in instructions if isinstance(i, Write)]


def synced(count: int, life: str = "") -> SourceSynced:
    return SourceSynced(source=FOLDER, run=RunId("w1"), epoch=1, count=count, incarnation=Incarnation(life))


def test_a_living_slice_is_adopted_before_its_node_is_used(empty):
    """An empty ledger is not an empty node: first the adopting grant, then the head, and the new pod waits."""
    empty.request(asked("p2"))

    written = empty.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(living(),)))

    said = [w.message for w in written if not isinstance(w.message, Pending)]
    assert said == [
        Grant(revision=1, incarnation=INCARNATION, booking=living().booking, adopted=True),
        NodeOpened(
            node=NODE,
            incarnation=INCARNATION,
            boot_id="boot-1",
            agent_run=RunId("agent-1"),
            adopted=(living().booking.allocation,),
        ),
    ]


def test_a_revoked_promise_is_adopted_with_those_that_it_was_to_come_after(empty):
    """After a loss of broker and journal its agent would take their device for its own, and destroy it."""
    waited_for = (AllocationId("p0_old_1"),)
    report = msgspec.structs.replace(living(revoked=True), state="unmaking", after=waited_for)

    written = empty.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(report,)))

    assert written[0].message == Revoke(
        revision=1, incarnation=INCARNATION, booking=report.booking, cause="being unmade", after=waited_for
    )


def second_run() -> list:
    """What is read of node-a when its second agent has begun, which knows of no slice."""
    seen = snapshot("node-a", (gpu_report("node-a", 0),), agent_run=RunId("agent-2"))
    news = NodeChanged(node=NODE, endpoint="e", boot_id="boot-1", agent_run=RunId("agent-2"), generation=1, gpus=())
    return [(subjects.node(NODE), news), (subjects.inventory(NODE), NodeInventory(snapshot=seen, stale=False))]


def test_what_was_said_to_be_gone_is_closed_before_its_node_is_opened(empty):
    """An agent that has lost its journal would destroy what somebody has made there since, by the old Revoke."""
    booking = living().booking
    revoke = Revoke(revision=2, incarnation=INCARNATION, booking=booking, cause="pod gone")
    gone = SliceGone(allocation=booking.allocation, request=booking.request, revision=2, cause="pod gone")
    said = empty.read_all(
        (subjects.ledger(NODE, booking.allocation), revoke),
        (subjects.slice_(NODE, booking.allocation), gone),
        *second_run(),
    )
    # Once for what it is, and once more because no agent has read it yet.
    assert [type(message) for message in messages(empty.land_all(said))] == [Closed, Closed, NodeOpened]


@pytest.mark.parametrize(("closing", "said"), [(False, [Closed, NodeOpened]), (True, [NodeOpened])])
def test_what_an_agent_has_not_read_to_be_closed_is_closed_again_when_it_comes_back(empty, closing, said):
    """A node is away for longer than closing words live, and its disk is wiped: `SliceGone` would stay for ever."""
    booking = living().booking
    closed = Closed(
        revision=2, allocation=booking.allocation, request=booking.request, node=booking.node, cause="pod gone"
    )
    gone = SliceGone(
        allocation=booking.allocation, request=booking.request, revision=2, cause="pod gone", closing=closing
    )
    wrote = empty.read_all(
        (subjects.ledger(NODE, booking.allocation), closed),
        (subjects.slice_(NODE, booking.allocation), gone),
        *second_run(),
    )
    writes = [write for write in empty.land_all(wrote) if isinstance(write, Write)]
    assert [type(write.message) for write in writes] == said
    assert all(write.message == closed and write.ttl_s == 3600 for write in writes[:-1])


BEFORE = Incarnation("of another life")


def opened(**changes) -> NodeOpened:
    head = NodeOpened(node=NODE, incarnation=INCARNATION, boot_id="boot-1", agent_run=RunId("agent-1"), adopted=())
    return msgspec.structs.replace(head, **changes)


@pytest.mark.parametrize("adopted", [True, False])
@pytest.mark.parametrize("when", ["before its node is opened", "after"])
def test_an_order_of_before_a_wipe_is_taken_back_where_its_slice_is_not(empty, adopted, when):
    """It would be waited for without end: its agent does not act on it, and says nothing."""
    booking = living().booking
    late = Grant(revision=1, incarnation=BEFORE, booking=booking, adopted=adopted)
    seen = snapshot("node-a", (gpu_report("node-a", 0),))
    there = (subjects.ledger(NODE, booking.allocation), late)
    empty.read_all((subjects.request(booking.request), asked("p1", claim(profile="7g.40gb"))))
    said = messages(empty.land_all(empty.observe(*there))) if when != "after" else []
    said += messages(empty.add_node(seen))
    said += messages(empty.land_all(empty.observe(*there))) if when == "after" else []
    (revoke,) = (message for message in said if isinstance(message, Revoke))
    assert (revoke.revision, revoke.incarnation, revoke.booking) == (2, INCARNATION, booking)


def test_a_wiped_broker_gives_no_living_slice_away(bench):
    """A new incarnation: nodes are closed until opened again, and running pods are bound to what they have."""
    grant = bench.bound("p1", claim(profile="7g.40gb"))
    report = SliceReport(booking=grant.booking, revision=1, state="ready", revoked=False)
    seen = snapshot("node-a", (gpu_report("node-a", 0),), slices=(report,), generation=2)

    bench.read_all(incarnation=Incarnation("900000"))
    bench.land_all(bench.request(asked("p2")))
    written = bench.add_node(seen)
    written += bench.land_all(bench.request(asked("p1", claim(profile="7g.40gb"))))
    written += bench.land_all(bench.ready(grant))

    said = [w.message for w in written if not isinstance(w.message, Pending)]
    assert [type(m) for m in said] == [Grant, NodeOpened, Bound]
    assert said[0].adopted
    assert said[2].allocation == grant.booking.allocation


def test_a_bus_made_anew_by_a_slow_clock_ends_no_living_training(bench):
    """
    Sequences begin at the time of making: where that clock is an hour behind, all that is repeated looks older than
    what was known. The living slice, adopted by another allocator, was revoked as one of another life of the broker.
    """
    grant = bench.bound("p1", claim(profile="7g.40gb"))
    report = SliceReport(booking=grant.booking, revision=1, state="ready", revoked=False)
    seen = snapshot("node-a", (gpu_report("node-a", 0),), slices=(report,), generation=2)
    life, here = Incarnation("1"), len(bench.said)
    bench.sequence, bench.state_sequence = count(1), count(1)

    bench.read_all(
        (subjects.request(RequestId("p1")), asked("p1", claim(profile="7g.40gb"))),
        (
            subjects.node(NODE),
            NodeChanged(node=NODE, endpoint="e", boot_id=seen.boot_id, agent_run=seen.agent_run, generation=2, gpus=()),
        ),
        (subjects.inventory(NODE), NodeInventory(snapshot=seen, stale=False)),
        (
            subjects.ledger(NODE, grant.booking.allocation),
            msgspec.structs.replace(grant, incarnation=life, adopted=True),
        ),
        (
            subjects.head(NODE),
            NodeOpened(
                node=NODE,
                incarnation=life,
                boot_id=seen.boot_id,
                agent_run=seen.agent_run,
                adopted=(grant.booking.allocation,),
            ),
        ),
        (subjects.slice_(NODE, grant.booking.allocation), ready_of(grant)),
        incarnation=life,
    )

    (bound,) = messages(bench.said[here:])
    assert isinstance(bound, Bound)
    assert (bound.request, bound.allocation) == ("p1", grant.booking.allocation)


def test_a_broker_that_is_wiped_again_before_the_first_time_is_read_gives_no_living_slice_away(bench):
    """STATE of the second life showed an empty node, which was opened in the third: its slices were not adopted."""
    seen = snapshot("node-a", (gpu_report("node-a", 0),), generation=2)
    news = NodeChanged(node=NODE, endpoint="e", boot_id=seen.boot_id, agent_run=seen.agent_run, generation=2, gpus=())
    second, third = Incarnation("900000"), Incarnation("910000")
    bench.handle(ReadingStarted(Stream.STATE, second))
    bench.observe(subjects.node(NODE), news)
    bench.observe(subjects.inventory(NODE), NodeInventory(snapshot=seen, stale=False))
    bench.handle(ReadingCaughtUp(Stream.STATE))

    said = bench.handle(ReadingStarted(Stream.BOOK, third)) + bench.handle(ReadingCaughtUp(Stream.BOOK))
    assert said == [ReadAgain(Stream.STATE)]

    said = bench.handle(ReadingStarted(Stream.STATE, third)) + bench.handle(ReadingCaughtUp(Stream.STATE))
    assert said == []


def test_streams_that_were_not_made_together_are_read_until_they_are_of_one_life(bench):
    """Two processes made one each: the first is read once more, and then no more."""
    asked_for = bench.handle(ReadingStarted(Stream.BOOK, Incarnation("900000"))) + bench.handle(
        ReadingCaughtUp(Stream.BOOK)
    )
    asked_for += bench.handle(ReadingStarted(Stream.STATE, Incarnation("900003")))
    asked_for += bench.handle(ReadingCaughtUp(Stream.STATE))
    asked_for += bench.handle(ReadingStarted(Stream.BOOK, Incarnation("900000")))
    asked_for += bench.handle(ReadingCaughtUp(Stream.BOOK))

    assert asked_for == [ReadAgain(Stream.STATE), ReadAgain(Stream.BOOK)]
    assert bench.allocator.ctx.facts.settled


@pytest.mark.parametrize("asks", [True, False])
def test_who_was_asked_for_behind_his_sources_last_word_keeps_his_slice(bench, asks):
    """
    What was asked is repeated with its slice, and a slow reader reads it after the source's sync.
    Another request that has ended since makes up the number: a pod that runs would lose its slice.
    """
    bench.read_all(incarnation=Incarnation("900000"))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(living(),), generation=2))
    bench.request(asked("ends"))
    bench.observe(subjects.source(FOLDER), synced(1))
    bench.now = 100.0
    assert messages(bench.handle(Ticked())) == []
    bench.now = 131.0
    assert [each for each in bench.handle(Ticked()) if not isinstance(each, EnsureAgent)] == [ReadAgain(Stream.STATE)]
    bench.now = 160.0
    assert [each for each in bench.handle(Ticked()) if not isinstance(each, EnsureAgent)] == []

    subject = subjects.request(P1).subject
    if asks:
        bench.state[subject] = Entry(subject, 99, OperationId("w1-9"), asked("p1"))
    assert messages(bench.read_state()) == []
    assert [type(each) for each in messages(bench.handle(Ticked()))] == ([] if asks else [Revoke])


def test_an_orphan_whose_revoke_waits_for_its_turn_lives_when_its_source_asks_meanwhile(bench):
    """A pod would lose its slice by what was decided before its source spoke."""
    gpus = gpu_report("node-a", 0), gpu_report("node-a", 1)
    other = living("p2")
    (device,) = other.booking.devices
    elsewhere = msgspec.structs.replace(other.booking, devices=(msgspec.structs.replace(device, gpu=gpus[1].uuid),))
    slices = living(), msgspec.structs.replace(other, booking=elsewhere)
    bench.read_all(incarnation=Incarnation("900000"))
    bench.add_node(snapshot("node-a", gpus, slices=slices, generation=2))
    bench.observe(subjects.source(FOLDER), synced(0))
    bench.now = 100.0
    assert messages(bench.tick()) == []
    bench.now = 131.0
    (first,) = [each for each in bench.tick() if isinstance(each, Write)]
    assert isinstance(first.message, Revoke)
    waits = "p2" if first.message.booking.request == P1 else P1

    bench.request(asked(waits))
    assert [each for each in messages(bench.land(first)) if isinstance(each, Revoke)] == []
    bench.now = 200.0
    assert [each for each in messages(bench.tick()) if isinstance(each, Revoke)] == []


def test_what_a_source_told_in_another_life_of_the_bus_ends_nothing_when_it_lands_late(bench):
    """Its first word got no answer, and lands after a wipe: pods would lose their slices before it has listed them."""
    new = Incarnation("900000")
    bench.read_all(incarnation=new)
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(living(),), generation=2))
    bench.observe(subjects.source(FOLDER), synced(0, INCARNATION))
    for bench.now in (100.0, 10_000.0):
        assert messages(bench.tick()) == []

    bench.observe(subjects.source(FOLDER), synced(0, new))
    bench.tick()
    bench.now = 10_031.0
    assert [type(each) for each in messages(bench.tick())] == [Revoke]


def test_what_was_asked_in_another_life_of_the_bus_is_granted_nothing_and_keeps_what_is_there(bench):
    """It does not say what its pod has had since: a second slice would be given, or the first one ended."""
    new = Incarnation("900000")
    bench.read_all(incarnation=new)
    bench.add_node(
        snapshot("node-a", (gpu_report("node-a", 0), gpu_report("node-a", 1)), slices=(living(),), generation=2)
    )
    old = msgspec.structs.replace(asked("p1"), incarnation=INCARNATION)
    assert messages(bench.request(old)) == []
    assert messages(bench.request(msgspec.structs.replace(old, name="p2", owner="p2"))) == []
    bench.observe(subjects.source(FOLDER), synced(0, new))
    for bench.now in (100.0, 10_000.0):
        assert messages(bench.tick()) == []

    granted = messages(bench.request(msgspec.structs.replace(asked("p2"), incarnation=new)))
    assert [(type(each), each.booking.request) for each in granted] == [(Grant, "p2")]


@pytest.mark.parametrize("wiped", ["both streams", "STATE alone"])
def test_a_rejection_that_lands_after_a_wipe_ends_nothing_before_its_source_has_spoken(bench, wiped):
    """Its source did not understand it first, then somebody mended it: the pod that runs would lose its slice."""
    new = Incarnation("900000")
    if wiped == "both streams":
        bench.read_all(incarnation=new)
        bench.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(living(),), generation=2))
    else:
        bench.bound("p1")
        bench.handle(ReadingStarted(Stream.STATE, new))
        bench.handle(ReadingCaughtUp(Stream.STATE))
        _read_book_again(bench)
    bench.said.clear()
    refusal = Refusal(reason=RefusalReason.UNKNOWN_KEY, message="no such annotation")
    late = RequestRejected(revision=1, source=FOLDER, origin="p1.yaml", refusal=refusal)
    bench.observe(subjects.request(P1), late)
    for bench.now in (100.0, 10_000.0):
        bench.tick()
    assert not [each for each in messages(bench.said) if isinstance(each, Revoke)]

    bench.observe(subjects.source(FOLDER), synced(0, new))
    for bench.now in (10_001.0, 10_032.0):
        bench.tick()
    assert [type(each) for each in messages(bench.said) if isinstance(each, Revoke)] == [Revoke], "it holds after all"


def _read_book_again(bench) -> None:
    world = bench.allocator.ctx.facts
    entries = [(subjects.binding(each), message) for each, message in world.bindings.items()]
    entries += [(subjects.ledger(NODE, each), entry) for each, entry in world.ledger.items()]
    entries.append((subjects.head(NODE), world.heads[NODE]))
    bench.handle(ReadingStarted(Stream.BOOK, INCARNATION))
    for address, message in entries:
        bench.observe(address, message)
    bench.handle(ReadingCaughtUp(Stream.BOOK))


def test_an_orphan_that_was_promised_a_place_is_revoked_with_those_before_it(bench):
    """Its agent may have lost its journal, and would take their device for the orphan's."""
    bench.read_all(incarnation=Incarnation("900000"))
    before = living("p0")
    promised = msgspec.structs.replace(living(), state="planned", after=(before.booking.allocation,))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(before, promised), generation=2))
    bench.request(asked("p0"))
    bench.observe(subjects.source(FOLDER), synced(1))

    bench.now = 100.0
    bench.tick()
    bench.now = 131.0
    (revoke,) = [each for each in messages(bench.tick()) if isinstance(each, Revoke)]
    assert (revoke.booking, revoke.after) == (promised.booking, promised.after)


def test_a_source_that_counts_more_than_is_known_has_not_synced_for_us(bench):
    """STATE may have forgotten requests: an incomplete picture revokes nothing."""
    bench.read_all(incarnation=Incarnation("900000"))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(living(),), generation=2))
    bench.observe(subjects.source(FOLDER), synced(1))

    bench.tick()
    bench.now = 1000.0
    assert messages(bench.tick()) == []


def test_every_agent_gets_its_durable_in_each_incarnation(bench):
    """Asked once, again after a while, not after it is there, and again for a new incarnation."""

    def asked_for() -> list:
        return [i for i in bench.tick() if isinstance(i, EnsureAgent)]

    assert asked_for() == [EnsureAgent(NODE)]
    assert asked_for() == []
    bench.now = 6.0
    assert asked_for() == [EnsureAgent(NODE)]
    bench.handle(AgentEnsured(NODE))
    bench.now = 12.0
    assert asked_for() == []


def test_an_agent_is_not_left_saying_gone_for_ever(bench):
    """SliceGone of something that no ledger knows (any more) is answered by Closed, with a TTL."""
    gone = SliceGone(allocation=AllocationId("p8_old_1"), request=RequestId("p8"), revision=2, cause="pod gone")

    (write,) = bench.observe(subjects.slice_(NODE, gone.allocation), gone)

    assert write.message == Closed(
        revision=2, allocation=gone.allocation, request=RequestId("p8"), node=NODE, cause="pod gone"
    )
    assert write.ttl_s == 3600


def test_what_a_head_says_was_adopted_is_waited_for(empty):
    """A reader that sees the head before the entry that it is about would call a living slice released."""
    held = Held(node=NODE, allocation=living().booking.allocation)
    head = NodeOpened(node=NODE, incarnation=INCARNATION, boot_id="b", agent_run=RunId("r"), adopted=(held.allocation,))
    withdrawn = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone", held=held)
    empty.observe(subjects.head(NODE), head)

    said = messages(empty.observe(subjects.request(RequestId("p1")), withdrawn))
    assert not any(isinstance(message, Released) for message in said)

    closed = Closed(revision=3, allocation=held.allocation, request=RequestId("p1"), node=NODE, cause="pod gone")
    said = messages(empty.observe(subjects.ledger(NODE, held.allocation), closed))
    assert any(isinstance(message, Released) for message in said)


def test_what_a_head_says_was_adopted_is_waited_for_whatever_a_server_that_lags_shows(empty):
    """Its reading ends before the head; what follows that has not been read by then either."""
    held = Held(node=NODE, allocation=living().booking.allocation)
    head = NodeOpened(node=NODE, incarnation=INCARNATION, boot_id="b", agent_run=RunId("r"), adopted=(held.allocation,))
    withdrawn = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone", held=held)
    empty.observe(subjects.head(NODE), head)
    empty.handle(ReadingStarted(Stream.BOOK, INCARNATION))
    empty.handle(ReadingCaughtUp(Stream.BOOK))

    said = messages(empty.observe(subjects.request(RequestId("p1")), withdrawn))
    assert not any(isinstance(message, Released) for message in said)


def test_a_slice_that_was_lost_before_it_was_bound_is_placed_anew(empty):
    """After a wiped broker and a reboot the pod would have a grant that can never be made, and no answer."""
    empty.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(living(),)))
    lost = SliceDegraded(allocation=living().booking.allocation, request=RequestId("p1"), revision=1, message="gone")
    empty.request(asked("p1"))

    said = [write.message for write in empty.land_all(empty.observe(subjects.slice_(NODE, lost.allocation), lost))]

    waived, revoke = (message for message in said if isinstance(message, (Waived, Revoke)))
    assert waived.allocations == (revoke.booking.allocation,) == (lost.allocation,)
    assert waived.cause == revoke.cause == "its devices vanished before it was bound: gone"


def test_a_pod_is_bound_again_where_it_runs_although_another_slice_is_ready_first(empty):
    """Broker wiped, two slices of one request adopted: bound to the other, it would lose the one that it runs on."""
    mine = living()
    elsewhere = msgspec.structs.replace(
        mine.booking,
        allocation=AllocationId("p1_old_2"),
        node=NodeName("node-b"),
        devices=(msgspec.structs.replace(mine.booking.devices[0], gpu=GpuUuid("GPU-node-b-0")),),
    )
    other = msgspec.structs.replace(mine, booking=elsewhere)
    empty.request(msgspec.structs.replace(asked("p1"), held=Held(node=NODE, allocation=mine.booking.allocation)))
    empty.add_node(snapshot("node-b", (gpu_report("node-b", 0),), slices=(other,)))
    empty.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(mine,)))

    def ready(booking):
        grant = Grant(revision=1, incarnation=INCARNATION, booking=booking)
        return empty.observe(subjects.slice_(booking.node, booking.allocation), ready_of(grant))

    assert not [each for each in messages(ready(elsewhere)) if isinstance(each, Bound)]
    (bound,) = [each for each in messages(ready(mine.booking)) if isinstance(each, Bound)]
    assert bound.allocation == mine.booking.allocation


def test_a_pod_whose_slice_was_lost_with_its_binding_is_told(empty):
    """It would wait without a word: its source says that it has the slice, so it gets no other."""
    held = Held(node=NODE, allocation=living().booking.allocation)
    empty.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(living(),)))
    lost = SliceDegraded(allocation=held.allocation, request=RequestId("p1"), revision=1, message="gone")
    empty.request(msgspec.structs.replace(asked("p1"), held=held))

    said = messages(empty.observe(subjects.slice_(NODE, held.allocation), lost))

    assert [message.message for message in said if isinstance(message, Pending)] == ["its slice on node-a: gone"]
    assert not any(isinstance(message, Revoke) for message in said)


def test_what_an_open_node_turns_out_to_have_is_entered_when_that_lasts(bench):
    """BOOK was lost while its agent was making it: its place would be granted for ever, and stay unused."""
    other = bench.granted("p2", claim(profile="7g.40gb"))
    seen = snapshot("node-a", (gpu_report("node-a", 0),), slices=(living(),), generation=2)
    assert bench.add_node(seen) == []
    bench.now += 29
    assert messages(bench.tick()) == []
    bench.now += 2
    (entered,) = bench.land_all(bench.tick())
    assert entered.message == Grant(revision=1, incarnation=INCARNATION, booking=living().booking, adopted=True)
    bench.land_all(bench.gone(other))
    bench.request(asked("p3"))
    assert Grant not in [type(message) for message in messages(bench.land_all(bench.tick()))]
