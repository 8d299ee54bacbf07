"""Which nodes could be given back: those without a slice, and those whose pods may move and have room elsewhere."""

import msgspec
from factories.scheduling.allocator import Bench, asked, claim

from sluice.contracts.messages import Leeway
from sluice_allocator.core.moves.defragment import consolidate


def bound(bench: Bench, name: str, profile: str = "3g.20gb", *, movable: bool = True) -> str:
    request = msgspec.structs.replace(asked(name, claim(profile=profile)), leeway=Leeway(movable=movable))
    return bench.run(request).booking.node


def leaves(bench: Bench) -> None:
    facts = bench.allocator.ctx.facts
    (allocation,) = facts.allocations_of["leaves"]
    bench.land_all(bench.gone(facts.ledger[allocation]))


def found(bench: Bench) -> dict[str, list[tuple[str, str]]]:
    return {each.node: [(move.name, move.to_node) for move in each.moves] for each in consolidate(bench.allocator.ctx)}


def test_a_node_is_named_when_its_pods_have_room_on_others_that_are_in_use(empty: Bench) -> None:
    """Neither on a node that is idle, nor on one that would be empty itself: then nothing would be gained."""
    empty.add_nodes("a")
    assert bound(empty, "leaves", "4g.20gb") == bound(empty, "stays", movable=False) == "a"
    empty.add_nodes("b")
    assert bound(empty, "moves") == "b"
    assert found(empty) == {}, "there is no room for it elsewhere"
    empty.add_nodes("idle")
    assert found(empty) == {"idle": []}
    empty.add_nodes("c")
    leaves(empty)
    assert found(empty) == {"idle": [], "c": [], "b": [("moves", "a")]}


def test_a_pod_that_may_not_be_moved_keeps_its_node(empty: Bench) -> None:
    empty.add_nodes("a")
    bound(empty, "leaves", "4g.20gb")
    bound(empty, "stays", movable=False)
    empty.add_nodes("b")
    assert bound(empty, "also-stays", movable=False) == "b"
    leaves(empty)
    assert found(empty) == {}
