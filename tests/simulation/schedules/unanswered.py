"""
Interleavings in which it matters that a write without an answer is settled by a write (PROTOCOL §2, W3).

Each ends when nothing was violated, and raises ViolationError where the rule is broken.
"""

from typing import Any

from msgspec.structs import replace
from simulation.judges.cordons import CordonSaid
from simulation.planted.bug import PlantedBug
from simulation.schedules.scene import MIG_NODE, Scene, sliced

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream, Write
from sluice.contracts.ids import OperationId
from sluice.contracts.messages import (
    AllocationRequested,
    EvictionOrdered,
    Grant,
    NodeClosed,
    NodeOpened,
    Released,
    RequestWithdrawn,
    SourceSynced,
    Waived,
)
from sluice_allocator.core.world import REQUEST, World
from sluice_pod_watcher.core.publisher import RequestPublisher


def another_grants_the_place_meanwhile() -> None:
    """
    One allocator's Grant is lost; before it goes out again, the other one's Grant of that place is there and is read.

    It has to go out with the same guard, which refuses it now: on what was read since, it would never have been made.
    """
    scene = Scene(MIG_NODE, allocators=2)
    lost = scene.lose(lambda host, write: host == "allocator-a" and isinstance(write.message, Grant), times=1)
    landed = scene.landed()
    scene.host("allocator-b").pause()
    scene.pod("a", sliced("7g.40gb"))
    scene.until(lambda: bool(lost))
    scene.host("allocator-b").resume()
    scene.until(lambda: scene.runs("a"))
    scene.wait(5)
    grants = [write for write in landed if isinstance(write.message, Grant)]
    assert [write.operation.startswith("allocator-b") for write in grants] == [True]
    scene.finish()


def its_pod_is_removed_meanwhile() -> None:
    """
    A Grant is late, nothing that was read shows it, and its pod is removed; then it lands.

    The pod's slice must not be reported as released as long as it may still be created.
    """
    scene = Scene()
    late = scene.lose(lambda _host, write: isinstance(write.message, Grant))
    landed = scene.landed()
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: bool(late))
    request = scene.request("a")
    scene.remove("a")
    scene.wait(5)
    scene.land(late[0])
    scene.until(lambda: any(isinstance(write.message, Grant) for write in landed))
    scene.until(lambda: isinstance(scene.value(f"sluice.binding.{request}"), Released))
    assert not scene.world.machines["node-0"].gpus["GPU-node-0-0"].instances
    scene.finish()


def its_agent_speaks_while_the_end_of_its_head_is_unanswered() -> None:
    """A node is removed by mistake; what is granted there again does not land behind the end of its head."""
    scene = Scene()
    landed = scene.landed()
    lost = scene.lose(lambda _host, write: isinstance(write.message, NodeClosed), times=1)
    scene.world.removals.say("node-0")
    scene.until(lambda: bool(lost))
    scene.host("agent-node-0").read_anew()
    scene.pod("a", sliced("1g.5gb"))
    scene.until(lambda: scene.runs("a"))
    assert any(isinstance(write.message, NodeClosed) for write in landed)
    scene.finish()


def a_source_told_all_before_a_wipe() -> None:
    """
    A source had no pods when it published that it has listed everything. That message is unanswered, and lands after a
    wipe.

    Its present requests are not published again by then.
    """
    scene = Scene()
    synced = scene.lose(lambda _host, write: isinstance(write.message, SourceSynced))
    scene.strike("broker wipe", lasts_s=0.5)
    scene.until(lambda: bool(synced))
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: scene.runs("a"))
    scene.strike("broker wipe", lasts_s=0.5)
    landed = scene.landed()
    scene.lose(lambda _host, write: isinstance(write.message, AllocationRequested | SourceSynced))
    scene.until(lambda: any(isinstance(write.message, Grant) for write in landed))
    scene.land(synced[0])
    scene.lose(lambda host, write: host != "the network" and isinstance(write.message, AllocationRequested))
    scene.wait(12.0)
    assert any(isinstance(write.message, SourceSynced) for write in landed)
    scene.lose(lambda _host, _write: False)
    scene.finish()


def a_source_asked_before_a_wipe() -> None:
    """
    A source's first request comes once more, after a wipe: it does not name what its pod has had since.

    The node of that slice is away, and what the source remembers is not published again.
    """
    scene = Scene(MIG_NODE, MIG_NODE)
    asked = scene.landed()
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: scene.runs("a"))
    first = next(write for write in asked if isinstance(write.message, AllocationRequested))
    before = scene.bound("a")
    assert before is not None
    agent = scene.host(f"agent-{before.node}")
    agent.kill()
    scene.strike("broker wipe", lasts_s=0.5)
    landed = scene.landed()
    scene.lose(lambda _host, write: isinstance(write.message, AllocationRequested))
    scene.until(lambda: any(isinstance(write.message, NodeOpened) for write in landed))
    scene.land(first)
    scene.lose(lambda host, write: host != "the network" and isinstance(write.message, AllocationRequested))
    scene.wait(12.0)
    assert first in landed
    agent.start()
    scene.wait(5.0)
    scene.lose(lambda _host, _write: False)
    scene.until(lambda: scene.runs("a"))
    after = scene.bound("a")
    assert after is not None
    assert after.allocation == before.allocation
    scene.finish()


def an_eviction_was_ordered_before_a_wipe() -> None:
    """
    A node is drained; the order to evict its pod is unanswered, and lands after a wipe.

    The drain was called off meanwhile, so the pod's place is not wanted.
    """
    scene = Scene(MIG_NODE, cluster=True)
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: scene.runs("a"))
    request = scene.request("a")
    late = scene.lose(lambda _host, write: isinstance(write.message, EvictionOrdered))
    scene.world.operator.say(CordonSaid(scene.world.clockwork.now, "node-0", (), True, False))
    scene.until(lambda: bool(late))
    scene.host("allocator-a").kill()
    scene.world.operator.say(CordonSaid(scene.world.clockwork.now, "node-0", (), True, True))
    scene.lose(lambda _host, _write: False)
    scene.strike("broker wipe", lasts_s=0.5)
    scene.until(lambda: scene.value(f"sluice.request.{request}") is not None)
    scene.land(late[0])
    scene.wait(5.0)
    scene.host("allocator-a").start()
    scene.wait(10.0)
    assert scene.request("a") == request
    assert not isinstance(scene.value(f"sluice.eviction.{request}"), EvictionOrdered)
    scene.finish()


def a_waiver_of_before_a_wipe_lands_when_all_is_over() -> None:
    """
    A pod's end is said, and the last word about it is without an answer when the broker is wiped.

    That word lands in the new life; over nothing, a waiver does too that an allocator had sent long before.
    """
    scene = Scene()
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: scene.runs("a"))
    bound, request = scene.bound("a"), scene.request("a")
    assert bound is not None
    life = scene.world.broker.values.incarnation(Stream.BOOK)
    assert life is not None
    waived = Waived(
        request=bound.request,
        request_revision=1,
        allocations=(bound.allocation,),
        cause="sent before",
        incarnation=life,
    )
    address = subjects.binding(bound.request)
    late = Write(OperationId("late"), 1, Stream.BOOK, address.subject, address.guard, 0, waived, request)
    closing = scene.lose(lambda _host, write: isinstance(write.message, RequestWithdrawn) and write.message.closing)
    scene.remove("a")
    scene.until(lambda: bool(closing))
    scene.strike("broker wipe", lasts_s=0.5)
    scene.wait(1.0)
    scene.lose(lambda _host, _write: False)
    scene.until(lambda: isinstance(scene.value(f"sluice.request.{request}"), RequestWithdrawn))
    landed = scene.landed()
    scene.land(late)
    scene.until(lambda: late in landed)
    scene.wait(5.0)
    scene.finish()


def _whenever_it_was_said(_original: Any) -> Any:
    def told_all(_self: Any, message: Any) -> Any:
        """Section 6 broken: that a source has told all it has holds in any life of the bus."""
        return replace(message, incarnation="") if isinstance(message, SourceSynced) else None

    return told_all


TOLD_IN_ANY_LIFE = PlantedBug(
    "SourceSynced of any incarnation",
    "the slice that it runs on: its source had told all before a wipe, and the word landed after it",
    ("undisturbed",),
    ((World, "_told_all", _whenever_it_was_said),),
)
"""Caught by a schedule of its own: the word has to be the first one, and without an answer through a wipe."""


def _whenever_it_was_asked(_original: Any) -> Any:
    def says_something_now(_self: Any, message: Any) -> bool:
        """Section 6 broken: what a source has asked in any life of the bus is what it asks."""
        return isinstance(message, REQUEST)

    return says_something_now


ASKED_IN_ANY_LIFE = PlantedBug(
    "request of any incarnation",
    "the slice that it runs on: what its source had asked at first landed after a wipe, and another one was bound",
    ("bound once", "undisturbed"),
    ((World, "_says_something_now", _whenever_it_was_asked),),
)
"""Caught by a schedule of its own, as the one before."""


def _whenever_it_was_ordered(_original: Any) -> Any:
    def is_of_this_life(_self: Any, _order: Any) -> bool:
        """Section 6 broken: an order to evict stands in any life of the bus."""
        return True

    return is_of_this_life


EVICTED_IN_ANY_LIFE = PlantedBug(
    "eviction order of any incarnation",
    "hours of work, for no preemptor: the order was of before a wipe, and landed after it",
    ("cluster",),
    ((RequestPublisher, "is_of_this_life", _whenever_it_was_ordered),),
)
"""Caught by a schedule of its own, as the ones before."""
