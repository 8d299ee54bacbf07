"""A freed place: which request is offered it, when, and how much of that one event may cost."""

import pytest
from factories.scheduling.allocator import Bench, asked, claim, gpu_report, only, snapshot, working_allocator

from sluice.contracts import messages as msg
from sluice.contracts.ids import GpuUuid, NodeName
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import Continue, LeaseChanged
from sluice_allocator.core.serve import offers

WHOLE = claim(profile="7g.40gb")
TRIES = 6


def unlike(number: int) -> msg.Claim:
    """A whole GPU, under a model name that no other pod uses: a group of its own."""
    return claim(profile="7g.40gb", only=msg.DeviceFilter(not_models=(f"model-{number}",)))


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[NodeName | None]:
    """Where the allocator searched: a node, or None for the whole fleet."""
    seen: list[NodeName | None] = []
    everywhere, on_node = offers.find_free, offers.find_place_on

    def find_free(fleet, asking, avoid):
        seen.append(None)
        return everywhere(fleet, asking, avoid)

    def find_place_on(fleet, asking, node, avoid):
        seen.append(node)
        return on_node(fleet, asking, node, avoid)

    monkeypatch.setattr(offers, "find_free", find_free)
    monkeypatch.setattr(offers, "find_place_on", find_place_on)
    return seen


@pytest.fixture
def hurried() -> Bench:
    """An allocator for which one event is worth few tries, with one A100 on node-a."""
    bench = working_allocator(SchedulerConfig(wake_tries=TRIES, new_tries=TRIES, tries_per_grant=1))
    bench.add_nodes("node-a")
    bench.said.clear()
    return bench


def granted(bench: Bench) -> list[str]:
    """Requests whose grants were written, in order; what was published before is forgotten."""
    names = [each.booking.name for each in only(msg.Grant, bench.said)]
    bench.said.clear()
    return names


def go_on(bench: Bench) -> int:
    """Until every request had the offer; how many events that took."""
    for events in range(1000):
        if not bench.allocator.unfinished:
            return events
        bench.land_all(bench.handle(Continue()))
    raise AssertionError("it never comes to an end")


def crowd(hurried: Bench, waiting: int) -> msg.Grant:
    """A pod has the only GPU, and so many unlike ones wait; returns what it has."""
    first = hurried.bound("p1", WHOLE)
    for number in range(waiting):
        hurried.land_all(hurried.request(asked(f"w{number}", unlike(number))))
    hurried.said.clear()
    return first


def test_a_freed_place_is_only_looked_for_where_it_was_freed(empty, searches):
    """Waiting pods fit nowhere else; searching the whole fleet for each of them is what makes others slow."""
    empty.add_nodes("node-a", "node-b")
    first, _ = empty.bound("p1", WHOLE), empty.bound("p2", WHOLE)
    empty.asks(*(asked(f"w{number}", unlike(number)) for number in range(5)))
    searches.clear()
    empty.said.clear()
    empty.land_all(empty.gone(first, revision=1))
    assert granted(empty) == ["w0"]
    assert set(searches) == {first.booking.node}


def test_one_event_costs_a_bounded_number_of_tries(hurried, searches):
    """A hundred pods of a hundred shapes wait: a freed place does not stop the allocator until all were tried."""
    first = crowd(hurried, 100)
    searches.clear()
    follows = hurried.gone(first, revision=1)
    assert 0 < len(searches) <= TRIES
    assert hurried.allocator.unfinished
    hurried.land_all(follows)
    assert granted(hurried) == ["w0"]


def test_no_request_is_overlooked_when_a_pass_takes_many_events(hurried, searches):
    """The one pod that fits what was freed is the last of a hundred: it gets it, in a bounded number of events."""
    first = crowd(hurried, 99)
    hurried.land_all(hurried.request(asked("last", claim(profile="4g.24gb"))))
    hurried.said.clear()
    hurried.add_node(snapshot("node-b", (gpu_report("node-b", 0, model="a30-24gb"),)))
    events = go_on(hurried)
    assert granted(hurried) == ["last"]
    assert events <= 100 / (TRIES / 2) + 2
    assert first.booking.node == NodeName("node-a")


def test_the_last_is_reached_though_more_is_freed_all_the_time(hurried, searches):
    """Each release restarts the offer with the first turn; the rest of the pass goes on beside it."""
    seen = snapshot("node-b", tuple(gpu_report("node-b", index, model="a30-24gb") for index in range(2)))
    hurried.add_node(seen)
    small = claim(profile="1g.6gb")
    taken = [hurried.bound(f"p{number}", small) for number in range(8)]
    for number in range(60):
        shape = claim(profile="4g.24gb", only=msg.DeviceFilter(not_models=(f"model-{number}",)))
        hurried.land_all(hurried.request(asked(f"w{number}", shape)))
    hurried.land_all(hurried.request(asked("last", claim(profile="2g.12gb"))))
    hurried.said.clear()
    on_one = [grant for grant in taken if grant.booking.devices[0].gpu == taken[0].booking.devices[0].gpu]
    for grant in on_one[:2]:
        hurried.land_all(hurried.gone(grant, revision=1))
    for number in range(40):
        hurried.allocator.ctx.offers.freed(NodeName("node-b"))  # as when slices of others come and go there
        hurried.land_all(hurried.handle(Continue()))
        if "last" in granted(hurried):
            assert number > 1
            return
    raise AssertionError("the last was never reached")


def test_everything_is_due_after_the_lease_was_won_and_in_order(hurried, searches):
    """A new active allocator tries all requests on the whole fleet, some per event, in the order of their turns."""
    first = crowd(hurried, 20)
    hurried.handle(LeaseChanged(held=False))
    hurried.gone(first, revision=1)
    searches.clear()
    follows = hurried.handle(LeaseChanged(held=True))
    assert 0 < len(searches) <= TRIES
    hurried.land_all(follows)
    go_on(hurried)
    assert granted(hurried)[:1] == ["w0"]
    assert searches.count(None) >= 20


def test_a_pod_that_failed_on_a_gpu_does_not_keep_its_equals_from_it(bench):
    """It waits alone for a while; the next of its shape gets the GPU, and after the pause it may have it again."""
    first = bench.granted("p1", WHOLE)
    bench.land_all(bench.fails(first))
    bench.land_all(bench.gone(first))
    assert first.booking.request in bench.allocator.ctx.queue

    second = bench.granted("p2", WHOLE)
    assert second.booking.devices[0].gpu == GpuUuid("GPU-node-a-0")
    bench.said.clear()
    bench.land_all(bench.ends("p2"))
    bench.land_all(bench.gone(second))
    assert granted(bench) == []
    bench.passes(bench.allocator.ctx.rules.retry_first_s)
    assert granted(bench) == ["p1"]
