"""Cordons and drains: nothing new lands there, whose pods are evicted, and how an operator takes it back."""

import msgspec
import pytest
from factories.scheduling.allocator import (
    INCARNATION,
    Bench,
    asked,
    claim,
    gpu_report,
    order,
    snapshot,
    working_allocator,
)

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Observed, ReadingCaughtUp, ReadingStarted, Stream, Ticked, Write
from sluice.contracts.ids import AllocationId, NodeName, OperationId, RequestId
from sluice.contracts.messages import (
    Amounts,
    Bound,
    Closed,
    Cordoned,
    EvictionBlocked,
    EvictionOrdered,
    EvictionOver,
    Grant,
    Leeway,
    Pending,
    PodGroup,
    QuotaSet,
    Released,
    RequestWithdrawn,
    Revoke,
    Uncordoned,
)

WHOLE = claim(profile="7g.40gb")
SMALL = claim(profile="1g.5gb")
NODE = NodeName("node-a")


@pytest.fixture
def pair(empty: Bench) -> Bench:
    empty.add_node(snapshot("node-a", (gpu_report("node-a", 0), gpu_report("node-a", 1))))
    empty.said.clear()
    return empty


def run(bench: Bench, message) -> Grant:
    """A pod that is asked for, granted, and has its slice."""
    writes = bench.land_all(bench.request(message))
    (grant,) = [write.message for write in writes if isinstance(write.message, Grant)]
    bench.land_all(bench.ready(grant))
    return grant


def cordon(bench: Bench, *gpus: str, drain: bool = False, why: str = "new fans") -> list:
    """The operator's word, and what is written because of it."""
    word = Cordoned(node=NODE, gpus=gpus, why=why, drain=drain)
    return [write.message for write in bench.land_all(bench.observe(subjects.cordon(NODE), word))]


def uncordon(bench: Bench) -> list:
    writes = bench.land_all(bench.observe(subjects.cordon(NODE), Uncordoned(node=NODE)))
    return [write.message for write in writes]


def tick(bench: Bench, seconds: float) -> list:
    written = []
    for _ in range(round(seconds)):
        bench.now += 1.0
        written += [write.message for write in bench.land_all(bench.handle(Ticked()))]
    return written


def test_a_drained_node_sends_everybody_away_and_nothing_else_happens_to_them(pair):
    """The slice is given back when the pod is gone, never before (LAW 3)."""
    run(pair, asked("one", WHOLE))
    run(pair, asked("two", SMALL))
    assert cordon(pair, drain=True) == [
        order("one", "node-a is drained (new fans)"),
        order("two", "node-a is drained (new fans)"),
    ]
    assert tick(pair, 30) == []


def test_uncordon_takes_the_orders_back(pair):
    """A pod that was blocked by its budget would be evicted hours after the work was called off."""
    run(pair, asked("one", WHOLE))
    cordon(pair, drain=True)
    blocked = EvictionBlocked(request=RequestId("one"), why="the budget allows none")
    pair.land_all(pair.observe(subjects.evicted(RequestId("one")), blocked))
    assert tick(pair, 600) == []
    assert uncordon(pair) == [EvictionOver(request=RequestId("one"))]


def test_a_pod_that_is_gone_is_ordered_to_go_no_more(pair):
    """The order would stand for ever on the bus."""
    one = run(pair, asked("one", WHOLE))
    cordon(pair, drain=True)
    withdrawn = RequestWithdrawn(revision=2, source=asked("one").source, cause="pod gone")
    said = [each.message for each in pair.land_all(pair.observe(subjects.request(RequestId("one")), withdrawn))]
    assert [type(each) for each in said] == [Revoke, EvictionOver]
    said = [each.message for each in pair.land_all(pair.gone(one))]
    assert [type(each) for each in said] == [Closed, Released]


def test_a_slice_that_is_being_made_is_bound_first_and_then_sent_away(pair):
    """The pod may have another place by then, and would lose that one."""
    (write,) = pair.land_all(pair.request(asked("one", WHOLE)))
    grant = write.message
    assert cordon(pair, drain=True) == []
    said = [each.message for each in pair.land_all(pair.ready(grant))]
    assert [type(each) for each in said] == [Bound, EvictionOrdered]


def test_a_grant_that_waits_for_its_turn_follows_no_cordon(empty):
    """Its place was found before the word was read: the pod would come to a node that is just being emptied."""
    for name in ("node-a", "node-b"):
        empty.add_node(snapshot(name, (gpu_report(name, 0),)))
    (first,) = empty.request(asked("one", SMALL))
    assert first.message.booking.node == NODE
    assert empty.request(asked("two", SMALL)) == []  # on the same node, when the first grant is answered
    (second,) = empty.observe(subjects.cordon(NODE), Cordoned(node=NODE, why="new fans"))
    assert isinstance(second.message, Grant)
    assert (second.message.booking.request, second.message.booking.node) == ("two", "node-b")
    assert empty.land(first) == []


def test_a_surplus_slice_on_the_drained_node_costs_nobody_its_pod(empty):
    """Two allocators granted twice: the one that is bound is elsewhere, and goes on."""
    for name in ("node-a", "node-b"):
        empty.add_node(snapshot(name, (gpu_report(name, 0),)))
    grant = run(empty, asked("one", WHOLE))
    other = NodeName("node-b" if grant.booking.node == "node-a" else "node-a")
    booking = msgspec.structs.replace(grant.booking, allocation=AllocationId("one_r9_1"), node=other, devices=())
    word = Cordoned(node=other, drain=True)
    empty.land_all(empty.observe(subjects.cordon(other), word))
    surplus = msgspec.structs.replace(grant, booking=booking)
    said = empty.land_all(empty.observe(subjects.ledger(other, booking.allocation), surplus))
    assert [type(each.message) for each in said] == [Revoke]


def test_whoever_works_next_orders_the_same_and_not_again(pair):
    """The order follows from the facts: a second allocator would evict no other pod, and writes nothing twice."""
    grant = run(pair, asked("one", WHOLE))
    cordon(pair, drain=True)
    facts = [
        (subjects.request(RequestId("one")), asked("one", WHOLE)),
        (subjects.ledger(NODE, grant.booking.allocation), grant),
        *((subjects.parse(write.subject), write.message) for write in pair.said if _is_kept(write)),
        (subjects.cordon(NODE), Cordoned(node=NODE, why="new fans", drain=True)),
    ]
    next_one = working_allocator()
    for address, message in facts:
        next_one.land_all(next_one.observe(address, message))
    next_one.said.clear()
    assert [each for each in tick(next_one, 5) if isinstance(each, EvictionOrdered | EvictionOver)] == []
    assert next_one.allocator.ctx.facts.evictions == {RequestId("one"): order("one", "node-a is drained (new fans)")}


def _is_kept(write) -> bool:
    return isinstance(write, Write) and isinstance(write.message, Bound | EvictionOrdered)


def read_book_again(bench: Bench, *, lags: bool) -> list:
    """BOOK is reread, and all that is served is the node's head: as it was first, or written again since."""
    head, world = subjects.head(NODE), bench.allocator.ctx.facts
    before = Entry(head.subject, world.sequences[head.subject], OperationId("head"), world.heads[NODE])
    bench.handle(ReadingStarted(Stream.BOOK, INCARNATION))
    if lags:
        bench.handle(Observed(Stream.BOOK, before))
    else:
        bench.observe(head, before.message)
    return [each.message for each in bench.land_all(bench.handle(ReadingCaughtUp(Stream.BOOK)))]


OUT_OF_USE = Cordoned(node=NODE, why="new fans")
NOTHING = QuotaSet(namespace="default", total=Amounts(gpus=0))


@pytest.mark.parametrize(
    ("address", "word"),
    [(subjects.cordon(NODE), OUT_OF_USE), (subjects.quota("default"), NOTHING)],
    ids=["cordon", "quota"],
)
def test_a_server_that_lags_takes_no_operators_word_back(pair, address, word):
    """No guard covers it: a pod would come to a node that was just cordoned, or beyond what its namespace may have."""
    pair.observe(address, word)
    assert read_book_again(pair, lags=True) == []
    (pending,) = [write.message for write in pair.land_all(pair.request(asked("one", WHOLE)))]
    assert isinstance(pending, Pending)

    (granted, *_) = read_book_again(pair, lags=False)
    assert isinstance(granted, Grant)


def test_a_server_that_lags_gives_no_place_to_a_request_that_was_released(pair):
    """It shows the request as it was first, and no answer: the node's guard is as it was, and would refuse nothing."""
    pair.observe(subjects.binding(RequestId("one")), Released(request=RequestId("one"), cause="pod gone"))
    assert read_book_again(pair, lags=True) == []
    assert not [each for each in pair.land_all(pair.request(asked("one", WHOLE))) if isinstance(each.message, Grant)]


def test_whoever_waits_is_told_who_said_so_and_why(pair):
    """`CardCordoned` without a word of the operator sends people to ask around."""
    cordon(pair)
    (write,) = pair.land_all(pair.request(asked("one", WHOLE)))
    assert isinstance(write.message, Pending)
    assert write.message.message.endswith(": cordoned; node-a is cordoned (new fans)")


@pytest.mark.parametrize("gpus", [(), ("GPU-node-a-0", "GPU-node-a-1")], ids=["node", "each GPU"])
@pytest.mark.parametrize(
    "changes",
    [{"priority": 10}, {"leeway": Leeway(substitute="return", movable=True)}, {"group": PodGroup(name="job", size=1)}],
    ids=["preempting", "substituted", "in a group"],
)
def test_no_other_way_leads_onto_a_cordoned_place(pair, changes, gpus):
    """By preemption, as a larger profile, in a group, by a promise after some time: each would undo the cordon."""
    shown = tuple(gpu.report.uuid for gpu in pair.allocator.ctx.cluster.nodes[NODE].gpus)
    evictable = msgspec.structs.replace(asked("low", WHOLE), leeway=Leeway(preemptible=True, movable=True))
    run(pair, evictable)
    cordon(pair, *(shown if gpus else ()))
    message = msgspec.structs.replace(asked("one", SMALL), **changes)
    said = [each.message for each in pair.land_all(pair.request(message))]
    said += tick(pair, 600)
    assert said
    assert {type(each) for each in said} == {Pending}


def test_a_pod_is_served_as_soon_as_the_cordon_is_taken_back(pair):
    """It would wait until something else happens."""
    cordon(pair)
    pair.land_all(pair.request(asked("one", WHOLE)))
    assert any(isinstance(each, Grant) for each in uncordon(pair))
