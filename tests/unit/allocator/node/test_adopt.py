"""Nodes are used only after what their agents report is in the ledger; orphans go only when that is sure."""

import pytest
from factories.scheduling.allocator import (
    FOLDER,
    INCARNATION,
    asked,
    bound_of,
    gpu_report,
    kinds,
    messages,
    news_of,
    only,
    report_of,
    snapshot,
    whole_gpu,
)
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, ReadAgain, Stream, Ticked, Write
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, OperationId, RequestId, RunId
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice_allocator.core import cycle
from sluice_allocator.core.events import AgentEnsured, EnsureAgent

NODE = NodeName("node-a")
P1 = RequestId("p1")
GPUS = (gpu_report("node-a", 0),)
NEW = Incarnation("900000")
OLD = whole_gpu("p1_old_1")
LIVING = report_of(OLD)
HELD = msg.Held(node=NODE, allocation=OLD.allocation)
LOST = msg.SliceDegraded(allocation=OLD.allocation, request=P1, revision=1, message="gone")
GONE = msg.SliceGone(allocation=OLD.allocation, request=P1, revision=2, cause="pod gone")
CLOSED = msg.Closed(revision=2, allocation=OLD.allocation, request=P1, node=NODE, cause="pod gone")


def wiped(bench, *slices: msg.SliceReport, gpus: tuple[msg.GpuReport, ...] = GPUS) -> None:
    """The broker has lost all, and node-a is open again, with what its agent reports."""
    bench.read_all(incarnation=NEW)
    bench.add_node(snapshot("node-a", gpus, slices=slices or (LIVING,), generation=2))


def syncs(bench, count: int, life: str = "") -> None:
    """The source has said all that it asks for."""
    said = msg.SourceSynced(source=FOLDER, run=RunId("w1"), epoch=1, count=count, incarnation=Incarnation(life))
    bench.observe(subjects.source(FOLDER), said)


def at(bench, now: float) -> list:
    bench.now = now
    return messages(bench.tick())


def test_a_revoked_promise_is_adopted_with_those_that_it_was_to_come_after(empty):
    """After a loss of broker and journal its agent would take their device for its own, and destroy it."""
    waited_for = (AllocationId("p0_old_1"),)
    report = report_of(OLD, revoked=True, state="unmaking", after=waited_for)
    written = empty.add_node(snapshot("node-a", GPUS, slices=(report,)))
    assert written[0].message == msg.Revoke(
        revision=1, incarnation=INCARNATION, booking=OLD, cause="being unmade", after=waited_for
    )


def test_streams_that_were_not_made_together_are_read_until_they_are_of_one_life(bench):
    """Two processes made one each: the first is read once more, and then no more."""
    asked_for = bench.read_again(Stream.BOOK, life=NEW)
    asked_for += bench.read_again(Stream.STATE, life=Incarnation("900003"))
    asked_for += bench.read_again(Stream.BOOK, life=NEW)
    assert asked_for == [ReadAgain(Stream.STATE), ReadAgain(Stream.BOOK)]
    assert bench.allocator.ctx.facts.settled


def test_an_orphan_whose_revoke_waits_for_its_turn_lives_when_its_source_asks_meanwhile(bench):
    """A pod would lose its slice by what was decided before its source published."""
    gpus = *GPUS, gpu_report("node-a", 1)
    device = replace(OLD.devices[0], gpu=gpus[1].uuid)
    wiped(bench, LIVING, report_of(replace(whole_gpu("p2_old_1", request="p2"), devices=(device,))), gpus=gpus)
    syncs(bench, 0)
    assert at(bench, 100.0) == []
    bench.now = 131.0
    (first,) = [each for each in bench.tick() if isinstance(each, Write)]
    assert isinstance(first.message, msg.Revoke)

    bench.request(asked("p2" if first.message.booking.request == P1 else P1))
    assert only(msg.Revoke, bench.land(first)) == []
    assert only(msg.Revoke, at(bench, 200.0)) == []


def test_a_source_that_counts_more_than_is_known_has_not_synced_for_us(bench):
    """STATE may have forgotten requests: an incomplete picture revokes nothing."""
    wiped(bench)
    syncs(bench, 1)
    bench.tick()
    assert at(bench, 1000.0) == []


def test_every_agent_gets_its_durable_in_each_incarnation(bench):
    """Asked once, a while after it could not be made (not before: many take their turns), and not after it is
    there; again for a new incarnation."""

    def asked_for(now: float) -> list:
        bench.now = now
        return only(EnsureAgent, bench.tick())

    assert asked_for(0.0) == [EnsureAgent(NODE)]
    assert asked_for(60.0) == []
    bench.handle(AgentEnsured(NODE, made=False))
    assert asked_for(60.0) == []
    assert asked_for(66.0) == [EnsureAgent(NODE)]
    bench.handle(AgentEnsured(NODE))
    assert asked_for(72.0) == []


def test_a_node_is_not_looked_at_for_each_of_its_slices(empty, monkeypatch):
    """After a wipe a node with 56 would be, at each status and each entry, and all its slices each time."""
    looks, look = [], cycle.reconcile_node
    monkeypatch.setattr(cycle, "reconcile_node", lambda ctx, node: (looks.append(node), look(ctx, node)))
    bookings = [whole_gpu(f"p{number}_old_1", request=f"p{number}") for number in range(20)]
    empty.observe(subjects.node(NODE), news_of(snapshot("node-a", (), generation=2)))
    empty.pull(snapshot("node-a", GPUS))
    for each in bookings:
        empty.ready(msg.Grant(revision=1, incarnation=INCARNATION, booking=each))
    now = snapshot("node-a", GPUS, slices=tuple(map(report_of, bookings)), generation=2)
    assert kinds(empty.land_all(empty.pull(now))[:21]) == [*[msg.Grant] * 20, msg.NodeOpened]
    assert len(looks) < 6


def test_an_agent_is_not_left_saying_gone_for_ever(bench):
    """SliceGone of something that no ledger knows (any more) is answered by Closed, with a TTL."""
    (write,) = bench.observe(subjects.slice_(NODE, OLD.allocation), GONE)
    assert (write.message, write.ttl_s) == (CLOSED, 3600)


def test_a_slice_that_was_lost_before_it_was_bound_is_placed_again(empty):
    """After a wiped broker and a reboot the pod would have a grant that can never be made, and no answer."""
    empty.add_node(snapshot("node-a", GPUS, slices=(LIVING,)))
    empty.request(asked("p1"))
    said = empty.words(empty.observe(subjects.slice_(NODE, OLD.allocation), LOST))
    waived, revoke = only((msg.Waived, msg.Revoke), said)
    assert waived.allocations == (revoke.booking.allocation,) == (OLD.allocation,)
    assert waived.cause == revoke.cause == "its devices vanished before it was bound: gone"


@pytest.mark.parametrize("claims", [("c-new",), ()], ids=["its-claim-is-another", "it-has-a-ticket"])
def test_a_slice_that_was_made_for_another_claim_is_placed_again(empty, claims):
    """Its kubelet would find no slice for the new claim, and the pod never start; a wipe begins revisions again."""

    def refs(*uids):
        return tuple(msg.ResourceClaimRef(uid=uid, name="sluice-x", requests={"main": "main"}) for uid in uids)

    report = report_of(replace(OLD, resource_claims=refs("c-old")))
    empty.add_node(snapshot("node-a", GPUS, slices=(report,), kubelet_hands_over=True))
    said = empty.asks(replace(asked("p1"), resource_claims=refs(*claims)))
    causes = [each.cause for each in only((msg.Waived, msg.Revoke), said)]
    assert causes == ["its slice was made for a ResourceClaim that is gone"] * 2


def test_a_pod_whose_slice_was_lost_with_its_binding_is_told(empty):
    """It would wait without a reason: its source says that it has the slice, so it gets no other."""
    empty.add_node(snapshot("node-a", GPUS, slices=(LIVING,)))
    empty.request(replace(asked("p1"), held=HELD))
    said = empty.observe(subjects.slice_(NODE, OLD.allocation), LOST)
    assert [each.message for each in only(msg.Pending, said)] == ["its slice on node-a: gone"]
    assert not only(msg.Revoke, said)


@pytest.mark.parametrize(("closing", "said"), [(False, [msg.Closed, msg.NodeOpened]), (True, [msg.NodeOpened])])
def test_what_an_agent_has_not_read_to_be_closed_is_closed_again_when_it_comes_back(empty, closing, said):
    """A node is away for longer than closing messages last, and its disk is wiped: `SliceGone` would stay for ever."""
    seen = snapshot("node-a", GPUS, agent_run=RunId("agent-2"))
    wrote = empty.read_all(
        (subjects.ledger(NODE, OLD.allocation), CLOSED),
        (subjects.slice_(NODE, OLD.allocation), replace(GONE, closing=closing)),
        (subjects.node(NODE), news_of(seen)),
        (subjects.inventory(NODE), msg.NodeInventory(snapshot=seen, stale=False)),
    )
    writes = empty.land_all(wrote)
    assert kinds(writes) == said
    assert all((write.message, write.ttl_s) == (CLOSED, 3600) for write in writes[:-1])


@pytest.mark.parametrize("asks", [True, False])
def test_who_was_asked_for_behind_his_sources_last_word_keeps_his_slice(bench, asks):
    """What was asked is repeated with its slice, and a slow reader reads it after the source's sync.
    Another request that has ended since makes up the number: a pod that runs would lose its slice."""
    wiped(bench)
    bench.request(asked("ends"))
    syncs(bench, 1)
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
    assert kinds(messages(bench.handle(Ticked()))) == ([] if asks else [msg.Revoke])


def test_what_another_allocator_binds_is_no_orphan_until_its_source_has_told_all_once_more(bench):
    """The binding allocator has read the request, we have not yet: a pod would lose its slice after its binding."""
    wiped(bench)
    syncs(bench, 0)
    assert at(bench, 100.0) == []
    bench.observe(subjects.binding(P1), bound_of(msg.Grant(revision=1, incarnation=INCARNATION, booking=OLD)))
    assert at(bench, 131.0) == at(bench, 10_000.0) == []
    syncs(bench, 0)
    bench.tick()
    assert kinds(at(bench, 10_031.0)) == [msg.Revoke]


@pytest.mark.parametrize("lost", ["both streams", "STATE alone"])
def test_a_rejection_that_lands_after_a_wipe_ends_nothing_before_its_source_has_spoken(bench, lost):
    """Its source did not understand it first, then its owner mended it: the pod that runs would lose its slice."""
    if lost == "both streams":
        wiped(bench)
    else:
        bench.bound("p1")
        facts = bench.allocator.ctx.facts
        book = [(subjects.binding(each), message) for each, message in facts.bindings.items()]
        book += [(subjects.ledger(NODE, each), entry) for each, entry in facts.ledger.items()]
        book.append((subjects.head(NODE), facts.heads[NODE]))
        bench.read_again(Stream.STATE, life=NEW)
        bench.read_again(Stream.BOOK, *book)
    bench.said.clear()
    refusal = Refusal(reason=RefusalReason.UNKNOWN_KEY, message="no such annotation")
    late = msg.RequestRejected(revision=1, source=FOLDER, origin="p1.yaml", refusal=refusal)
    bench.observe(subjects.request(P1), late)
    for bench.now in (100.0, 10_000.0):
        bench.tick()
    assert not only(msg.Revoke, bench.said)

    syncs(bench, 0, NEW)
    for bench.now in (10_001.0, 10_032.0):
        bench.tick()
    assert len(only(msg.Revoke, bench.said)) == 1, "it holds after all"


def test_what_a_head_says_was_adopted_is_waited_for(empty):
    """A reader that sees the head before the entry that it is about would call a living slice released."""
    adopted = {"boot_id": "b", "agent_run": RunId("r"), "adopted": (OLD.allocation,)}
    empty.observe(subjects.head(NODE), msg.NodeOpened(node=NODE, incarnation=INCARNATION, **adopted))
    assert not only(msg.Released, empty.ends("p1", held=HELD))
    assert only(msg.Released, empty.observe(subjects.ledger(NODE, OLD.allocation), CLOSED))
