"""The queue: its order, and which requests wait as one."""

from factories.scheduling.allocator import asked, claim
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested, HostNeeds, Leeway
from sluice_allocator.core.queue.pending_queue import PendingQueue, shape_of, singleton_shape
from sluice_allocator.core.sorted_keys import CHUNK_MAX, QueueKey, QueueKeys

TURNS = st.tuples(st.integers(-3, 3), st.integers(0, 40), st.sampled_from([RequestId(c) for c in "abcd"]))


def heads(queue: PendingQueue) -> list[str]:
    found: list[str] = []
    turn = queue.head_after(None)
    while turn is not None:
        found.append(turn[2])
        turn = queue.head_after(turn)
    return found


def wait(queue: PendingQueue, name: str, shape: str = "s", *, rank: int = 0, sequence: int = 0) -> bool:
    return queue.add(RequestId(name), shape.encode(), rank, sequence)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), TURNS), max_size=60), TURNS)
def test_turns_are_in_order_whatever_comes_and_goes(steps: list[tuple[bool, QueueKey]], asked_after: QueueKey):
    """The next after any turn, there or not, is what a sorted list says: no pod is passed over."""
    turns, known = QueueKeys(), set()
    for comes, turn in steps:
        if comes and turn not in known:
            turns.add(turn)
            known.add(turn)
        elif not comes and turn in known:
            turns.remove(turn)
            known.remove(turn)
    assert turns.after(asked_after) == min((turn for turn in known if turn > asked_after), default=None)
    assert turns.after(None) == min(known, default=None)
    assert bool(turns) == bool(known)


def test_very_many_turns_stay_in_order():
    """More than one chunk of them, in and out in an order of their own: the walk is sorted and whole."""
    turns = QueueKeys()
    every = [(0, number * 7919 % 10007, RequestId("r")) for number in range(5 * CHUNK_MAX)]
    for turn in every:
        turns.add(turn)
    for turn in every[::3]:
        turns.remove(turn)
    walked, turn = [], turns.after(None)
    while turn is not None:
        walked.append(turn)
        turn = turns.after(turn)
    assert walked == sorted(set(every) - set(every[::3]))


def test_only_the_first_of_each_shape_stands_for_it():
    """The urgent before the old, one per shape: else each freed place would be tried with every request."""
    queue = PendingQueue()
    wait(queue, "old", "small", sequence=1)
    wait(queue, "young", "small", sequence=2)
    wait(queue, "other", "large", sequence=3)
    wait(queue, "urgent", "small", rank=-5, sequence=4)

    assert heads(queue) == ["urgent", "other"]
    queue.remove(RequestId("urgent"))
    assert heads(queue) == ["old", "other"]
    queue.remove(RequestId("old"))
    assert heads(queue) == ["young", "other"]


def test_pods_that_ask_for_the_same_wait_as_one():
    """Names of containers, pods and namespaces, and users, do not make an exclusive slice another one."""
    here = asked("p1", claim(container="train", uid=1000))
    there = AllocationRequested(
        revision=7,
        source=here.source,
        namespace="other",
        name="p2",
        origin="p2.yaml",
        owner="p2",
        claims=(claim(container="serve", uid=2000),),
        priority=3,
    )
    assert shape_of(here) == shape_of(there)


def test_what_decides_on_the_place_tells_shapes_apart():
    """Sizes, needs of the node, policies; and for a share who it would live with."""
    small, large = asked("p1"), asked("p1", claim(profile="7g.40gb"))
    share = claim(profile=None, modes=("mps",), memory_mib=1000)
    shared, of_another = asked("p1", share), asked("p1", claim(profile=None, modes=("mps",), memory_mib=1000, uid=5))
    base = {"revision": 1, "source": small.source, "name": "p", "origin": "p", "owner": "p"}
    elsewhere = AllocationRequested(**base, namespace="other", claims=(share,))
    pinned = AllocationRequested(**base, namespace="default", claims=(claim(),), host=HostNeeds(node_name="node-a"))
    spread = AllocationRequested(**base, namespace="default", claims=(claim(),), node_policy="spread")
    shapes = [shape_of(request) for request in (small, large, shared, of_another, elsewhere, pinned, spread)]

    assert len(set(shapes)) == len(shapes)
    assert singleton_shape(shapes[0], RequestId("p1")) not in shapes


def test_substitutes_tell_shapes_apart():
    """A pod that accepts a larger profile may fit where its equals do not: it is tried by itself."""
    plain = asked("p1")
    yielding = replace(plain, leeway=Leeway(substitute="stay"))
    assert shape_of(plain) != shape_of(yielding)
    assert shape_of(yielding) == shape_of(replace(plain, leeway=Leeway(substitute="return")))


def test_who_stands_outside_comes_in_in_turn():
    """A place in the queue goes to the earliest turn outside, not to the one that asks at that moment."""
    queue = PendingQueue(most=1)
    wait(queue, "first", sequence=1)
    for number in (5, 3, 4):
        wait(queue, f"p{number}", sequence=number)
    assert queue.has_news  # those outside get a reason
    while queue.next_put_out() is not None:
        pass
    assert not queue.has_news
    queue.remove(RequestId("first"))

    assert queue.has_news
    assert queue.next_to_let_in() == "p3"
    assert wait(queue, "p3", sequence=99)
    assert queue.next_to_let_in() is None
    assert list(queue.outside) == ["p5", "p4"]


@settings(max_examples=200, deadline=None)
@given(
    most=st.integers(1, 5),
    steps=st.lists(st.tuples(st.sampled_from("arl"), st.integers(0, 11), st.integers(-2, 2)), max_size=60),
)
def test_the_first_in_turn_are_inside_whatever_comes_and_goes(most: int, steps: list[tuple[str, int, int]]):
    """No pod is lost between inside and outside, and no pod outside comes before one inside."""
    queue, turns = PendingQueue(most), {}
    for kind, number, rank in steps:
        name = RequestId(f"p{number:02}")
        if kind == "a":
            wait(queue, name, f"shape-{number % 3}", rank=rank, sequence=number)
            turns[name] = (rank, number, name)
        elif kind == "r":
            queue.remove(name)
            turns.pop(name, None)
        else:
            inner = queue.next_to_let_in()
            if inner is not None:
                wait(queue, inner, "shape-0", rank=turns[inner][0], sequence=0)
        inside = {name for name in turns if name in queue}
        assert inside | set(queue.outside) == set(turns)
        assert not inside & set(queue.outside)
        assert len(queue) == len(inside) <= most
        if not queue.has_room:
            latest = max(turns[name] for name in inside)
            assert all(turns[name] > latest for name in queue.outside)
    assert all(queue.pending_shape(name) is not None for name in turns if name in queue)
