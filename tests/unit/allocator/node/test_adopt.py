"""Nodes are used only after what their agents report is in the ledger; orphans go only when that is sure."""

import msgspec
import pytest
from factories.scheduling.allocator import (
    FOLDER,
    INCARNATION,
    asked,
    gpu_report,
    news_of,
    ready_of,
    snapshot,
    whole_gpu,
)

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, ReadAgain, ReadingCaughtUp, ReadingStarted, Stream, Ticked, Write
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, OperationId, RequestId, RunId
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice_allocator.core import cycle
from sluice_allocator.core.events import AgentEnsured, EnsureAgent


def second_run() -> list:
    """What is read of node-a when its second agent has begun, which knows of no slice."""
    seen = snapshot("node-a", (gpu_report("node-a", 0),), agent_run=RunId("agent-2"))
    return [
        (subjects.node(NODE), news_of(seen)),
        (subjects.inventory(NODE), msg.NodeInventory(snapshot=seen, stale=False)),
    ]


def _read_book_again(bench) -> None:
    """BOOK is read as it was, for STATE was lost."""
    world = bench.allocator.ctx.facts
    entries = [(subjects.binding(each), message) for each, message in world.bindings.items()]
    entries += [(subjects.ledger(NODE, each), entry) for each, entry in world.ledger.items()]
    entries.append((subjects.head(NODE), world.heads[NODE]))
    bench.handle(ReadingStarted(Stream.BOOK, INCARNATION))
    for address, message in entries:
        bench.observe(address, message)
    bench.handle(ReadingCaughtUp(Stream.BOOK))


NODE = NodeName("node-a")
P1 = RequestId("p1")


def living(request: str = "p1", *, revoked: bool = False) -> msg.SliceReport:
    """A slice that an agent reports, filling GPU 0 of node-a."""
    booking = whole_gpu(f"{request}_old_1", request=request)
    return msg.SliceReport(booking=booking, revision=1, state="ready", revoked=revoked)


def messages(instructions) -> list:
    return [i.message for i in instructions if isinstance(i, Write)]


def synced(count: int, life: str = "") -> msg.SourceSynced:
    return msg.SourceSynced(source=FOLDER, run=RunId("w1"), epoch=1, count=count, incarnation=Incarnation(life))


def test_a_revoked_promise_is_adopted_with_those_that_it_was_to_come_after(empty):
    """After a loss of broker and journal its agent would take their device for its own, and destroy it."""
    waited_for = (AllocationId("p0_old_1"),)
    report = msgspec.structs.replace(living(revoked=True), state="unmaking", after=waited_for)

    written = empty.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(report,)))

    assert written[0].message == msg.Revoke(
        revision=1, incarnation=INCARNATION, booking=report.booking, cause="being unmade", after=waited_for
    )


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
    assert isinstance(first.message, msg.Revoke)
    waits = "p2" if first.message.booking.request == P1 else P1

    bench.request(asked(waits))
    assert [each for each in messages(bench.land(first)) if isinstance(each, msg.Revoke)] == []
    bench.now = 200.0
    assert [each for each in messages(bench.tick()) if isinstance(each, msg.Revoke)] == []


def test_a_source_that_counts_more_than_is_known_has_not_synced_for_us(bench):
    """STATE may have forgotten requests: an incomplete picture revokes nothing."""
    bench.read_all(incarnation=Incarnation("900000"))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(living(),), generation=2))
    bench.observe(subjects.source(FOLDER), synced(1))

    bench.tick()
    bench.now = 1000.0
    assert messages(bench.tick()) == []


def test_every_agent_gets_its_durable_in_each_incarnation(bench):
    """Asked once, a while after it could not be made (not before: many take their turns), and not after it is
    there; again for a new incarnation."""

    def asked_for() -> list:
        return [i for i in bench.tick() if isinstance(i, EnsureAgent)]

    assert asked_for() == [EnsureAgent(NODE)]
    bench.now = 60.0
    assert asked_for() == []
    bench.handle(AgentEnsured(NODE, made=False))
    assert asked_for() == []
    bench.now = 66.0
    assert asked_for() == [EnsureAgent(NODE)]
    bench.handle(AgentEnsured(NODE))
    bench.now = 72.0
    assert asked_for() == []


def test_a_node_is_not_looked_at_for_each_of_its_slices(empty, monkeypatch):
    """After a wipe a node with 56 would be, at each status and each entry, and all its slices each time."""
    looks, look = [], cycle.reconcile_node
    monkeypatch.setattr(cycle, "reconcile_node", lambda ctx, node: (looks.append(node), look(ctx, node)))
    reports = tuple(living(f"p{number}") for number in range(20))
    empty.observe(subjects.node(NODE), news_of(snapshot("node-a", (), generation=2)))
    empty.pull(snapshot("node-a", (gpu_report("node-a", 0),)))
    for report in reports:
        grant = msg.Grant(revision=1, incarnation=INCARNATION, booking=report.booking)
        empty.observe(subjects.slice_(NODE, report.booking.allocation), ready_of(grant))
    now = snapshot("node-a", (gpu_report("node-a", 0),), slices=reports, generation=2)
    landed = empty.land_all(empty.pull(now))
    assert [type(each.message) for each in landed[:21]] == [*[msg.Grant] * 20, msg.NodeOpened]
    assert len(looks) < 6


def test_an_agent_is_not_left_saying_gone_for_ever(bench):
    """SliceGone of something that no ledger knows (any more) is answered by Closed, with a TTL."""
    gone = msg.SliceGone(allocation=AllocationId("p8_old_1"), request=RequestId("p8"), revision=2, cause="pod gone")

    (write,) = bench.observe(subjects.slice_(NODE, gone.allocation), gone)

    assert write.message == msg.Closed(
        revision=2, allocation=gone.allocation, request=RequestId("p8"), node=NODE, cause="pod gone"
    )
    assert write.ttl_s == 3600


def test_a_slice_that_was_lost_before_it_was_bound_is_placed_anew(empty):
    """After a wiped broker and a reboot the pod would have a grant that can never be made, and no answer."""
    empty.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(living(),)))
    lost = msg.SliceDegraded(
        allocation=living().booking.allocation, request=RequestId("p1"), revision=1, message="gone"
    )
    empty.request(asked("p1"))

    said = [write.message for write in empty.land_all(empty.observe(subjects.slice_(NODE, lost.allocation), lost))]

    waived, revoke = (message for message in said if isinstance(message, (msg.Waived, msg.Revoke)))
    assert waived.allocations == (revoke.booking.allocation,) == (lost.allocation,)
    assert waived.cause == revoke.cause == "its devices vanished before it was bound: gone"


@pytest.mark.parametrize("claims", [("c-new",), ()], ids=["its-claim-is-another", "it-has-a-ticket"])
def test_a_slice_that_was_made_for_another_claim_is_placed_anew(empty, claims):
    """Its kubelet would find no slice for the new claim, and the pod never start; a wipe begins revisions again."""

    def refs(*uids):
        return tuple(msg.ResourceClaimRef(uid=uid, name="sluice-x", requests={"main": "main"}) for uid in uids)

    report = living()
    booking = msgspec.structs.replace(report.booking, resource_claims=refs("c-old"))
    report = msgspec.structs.replace(report, booking=booking)
    empty.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(report,), kubelet_hands_over=True))

    said = empty.land_all(empty.request(msgspec.structs.replace(asked("p1"), resource_claims=refs(*claims))))

    causes = [write.message.cause for write in said if isinstance(write.message, (msg.Waived, msg.Revoke))]
    assert causes == ["its slice was made for a ResourceClaim that is gone"] * 2


def test_a_pod_whose_slice_was_lost_with_its_binding_is_told(empty):
    """It would wait without a word: its source says that it has the slice, so it gets no other."""
    held = msg.Held(node=NODE, allocation=living().booking.allocation)
    empty.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(living(),)))
    lost = msg.SliceDegraded(allocation=held.allocation, request=RequestId("p1"), revision=1, message="gone")
    empty.request(msgspec.structs.replace(asked("p1"), held=held))

    said = messages(empty.observe(subjects.slice_(NODE, held.allocation), lost))

    assert [message.message for message in said if isinstance(message, msg.Pending)] == ["its slice on node-a: gone"]
    assert not any(isinstance(message, msg.Revoke) for message in said)


@pytest.mark.parametrize(("closing", "said"), [(False, [msg.Closed, msg.NodeOpened]), (True, [msg.NodeOpened])])
def test_what_an_agent_has_not_read_to_be_closed_is_closed_again_when_it_comes_back(empty, closing, said):
    """A node is away for longer than closing words live, and its disk is wiped: `SliceGone` would stay for ever."""
    booking = living().booking
    closed = msg.Closed(
        revision=2, allocation=booking.allocation, request=booking.request, node=booking.node, cause="pod gone"
    )
    gone = msg.SliceGone(
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


@pytest.mark.parametrize("asks", [True, False])
def test_who_was_asked_for_behind_his_sources_last_word_keeps_his_slice(bench, asks):
    """What was asked is repeated with its slice, and a slow reader reads it after the source's sync.
    Another request that has ended since makes up the number: a pod that runs would lose its slice."""
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
    assert [type(each) for each in messages(bench.handle(Ticked()))] == ([] if asks else [msg.Revoke])


def test_what_another_allocator_binds_is_no_orphan_until_its_source_has_told_all_once_more(bench):
    """The binding allocator has read the request, we have not yet: a pod would lose its slice after its binding."""
    bench.read_all(incarnation=Incarnation("900000"))
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0),), slices=(living(),), generation=2))
    bench.observe(subjects.source(FOLDER), synced(0))
    bench.now = 100.0
    assert messages(bench.tick()) == []
    allocation = living().booking.allocation
    ready = ready_of(msg.Grant(revision=1, incarnation=INCARNATION, booking=living().booking))
    said = {"allocation": allocation, "node": NODE, "ticket": ready.ticket, "containers": ready.containers}
    bench.observe(subjects.binding(P1), msg.Bound(request=P1, request_revision=1, revision=1, source=FOLDER, **said))
    for bench.now in (131.0, 10_000.0):
        assert messages(bench.tick()) == []

    bench.observe(subjects.source(FOLDER), synced(0))
    bench.tick()
    bench.now = 10_031.0
    assert [type(each) for each in messages(bench.tick())] == [msg.Revoke]


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
    late = msg.RequestRejected(revision=1, source=FOLDER, origin="p1.yaml", refusal=refusal)
    bench.observe(subjects.request(P1), late)
    for bench.now in (100.0, 10_000.0):
        bench.tick()
    assert not [each for each in messages(bench.said) if isinstance(each, msg.Revoke)]

    bench.observe(subjects.source(FOLDER), synced(0, new))
    for bench.now in (10_001.0, 10_032.0):
        bench.tick()
    assert [type(each) for each in messages(bench.said) if isinstance(each, msg.Revoke)] == [msg.Revoke], (
        "it holds after all"
    )


def test_what_a_head_says_was_adopted_is_waited_for(empty):
    """A reader that sees the head before the entry that it is about would call a living slice released."""
    held = msg.Held(node=NODE, allocation=living().booking.allocation)
    head = msg.NodeOpened(
        node=NODE, incarnation=INCARNATION, boot_id="b", agent_run=RunId("r"), adopted=(held.allocation,)
    )
    empty.observe(subjects.head(NODE), head)

    said = messages(empty.ends("p1", held=held))
    assert not any(isinstance(message, msg.Released) for message in said)

    closed = msg.Closed(revision=3, allocation=held.allocation, request=RequestId("p1"), node=NODE, cause="pod gone")
    said = messages(empty.observe(subjects.ledger(NODE, held.allocation), closed))
    assert any(isinstance(message, msg.Released) for message in said)
