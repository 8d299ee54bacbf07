"""Interleavings in which a write without an answer is settled by a write (PROTOCOL §2, W3). Raise ViolationError."""

from typing import Any

from msgspec.structs import replace
from simulation.judges.cordons import CordonSaid
from simulation.planted.bug import PlantedBug, always, bug
from simulation.schedules.scene import MIG_NODE, Scene, sliced

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream, Write
from sluice.contracts.ids import OperationId
from sluice.contracts.outbox.bus_view import BusView
from sluice_allocator.core import recheck
from sluice_allocator.core.request import entries
from sluice_allocator.core.state.bus_cache import REQUEST, BusCache
from sluice_pod_watcher.core.publisher import RequestPublisher


def another_grants_the_place_meanwhile() -> None:
    """A lost Grant goes out again with the same guard, which refuses it now that another Grant has the place."""
    scene = Scene(MIG_NODE, allocators=2)
    lost = scene.lose(lambda host, write: host == "allocator-a" and isinstance(write.message, msg.Grant), times=1)
    landed = scene.landed()
    scene.host("allocator-b").pause()
    scene.pod("a", sliced("7g.40gb"))
    scene.until(lambda: bool(lost))
    scene.host("allocator-b").resume()
    scene.until(lambda: scene.runs("a"))
    scene.wait(5)
    grants = [write for write in landed if isinstance(write.message, msg.Grant)]
    assert [write.operation.startswith("allocator-b") for write in grants] == [True]
    scene.finish()


def its_pod_is_removed_meanwhile() -> None:
    """A Grant is late and its pod is removed: its slice is not released as long as it may still be created."""
    scene = Scene()
    late = scene.lose(lambda _host, write: isinstance(write.message, msg.Grant))
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: bool(late))
    request = scene.request("a")
    scene.remove("a")
    scene.wait(5)
    scene.land(late[0])
    scene.until_lands(msg.Grant)
    scene.until(lambda: isinstance(scene.value(f"sluice.binding.{request}"), msg.Released))
    assert not scene.world.machines["node-0"].gpus["GPU-node-0-0"].instances
    scene.finish()


def its_agent_speaks_while_the_end_of_its_head_is_unanswered() -> None:
    """A node is removed by mistake; what is granted there again does not land behind the end of its head."""
    scene = Scene()
    landed = scene.landed()
    lost = scene.lose(lambda _host, write: isinstance(write.message, msg.NodeClosed), times=1)
    scene.world.removals.say("node-0")
    scene.until(lambda: bool(lost))
    scene.host("agent-node-0").read_anew()
    scene.serve("a", sliced("1g.5gb"))
    assert any(isinstance(write.message, msg.NodeClosed) for write in landed)
    scene.finish()


def a_source_told_all_before_a_wipe() -> None:
    """A source's unanswered message that it has listed everything lands after a wipe, before its present requests."""
    scene = Scene()
    synced = scene.lose(lambda _host, write: isinstance(write.message, msg.SourceSynced))
    scene.strike("broker wipe", lasts_s=0.5)
    scene.until(lambda: bool(synced))
    scene.serve("a", sliced("3g.20gb"))
    scene.strike("broker wipe", lasts_s=0.5)
    landed = scene.landed()
    scene.lose(lambda _host, write: isinstance(write.message, msg.AllocationRequested | msg.SourceSynced))
    scene.until(lambda: any(isinstance(write.message, msg.Grant) for write in landed))
    scene.land(synced[0])
    scene.lose(lambda host, write: host != "the network" and isinstance(write.message, msg.AllocationRequested))
    scene.wait(12.0)
    assert any(isinstance(write.message, msg.SourceSynced) for write in landed)
    scene.lose(lambda _host, _write: False)
    scene.finish()


def a_source_asked_before_a_wipe() -> None:
    """A source's first request comes once more after a wipe, without what its pod has had since; its node is away."""
    scene = Scene(MIG_NODE, MIG_NODE)
    asked = scene.landed()
    before = scene.serve("a", sliced("3g.20gb"))
    first = next(write for write in asked if isinstance(write.message, msg.AllocationRequested))
    agent = scene.host(f"agent-{before.node}")
    agent.kill()
    scene.strike("broker wipe", lasts_s=0.5)
    landed = scene.landed()
    scene.lose(lambda _host, write: isinstance(write.message, msg.AllocationRequested))
    scene.until(lambda: any(isinstance(write.message, msg.NodeOpened) for write in landed))
    scene.land(first)
    scene.lose(lambda host, write: host != "the network" and isinstance(write.message, msg.AllocationRequested))
    scene.wait(12.0)
    assert first in landed
    agent.start()
    scene.wait(5.0)
    scene.lose(lambda _host, _write: False)
    scene.until(lambda: scene.runs("a"))
    after = scene.bound("a")
    assert after.allocation == before.allocation
    scene.finish()


def an_eviction_was_ordered_before_a_wipe() -> None:
    """A node is drained; the unanswered order to evict lands after a wipe, when the drain was called off."""
    scene = Scene(MIG_NODE, cluster=True)
    scene.serve("a", sliced("3g.20gb"))
    request = scene.request("a")
    late = scene.lose(lambda _host, write: isinstance(write.message, msg.EvictionOrdered))
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
    assert not isinstance(scene.value(f"sluice.eviction.{request}"), msg.EvictionOrdered)
    scene.finish()


def a_waiver_of_before_a_wipe_lands_when_all_is_over() -> None:
    """A pod's unanswered end lands in the new incarnation, and over nothing a waiver that was sent long before."""
    scene = Scene()
    bound = scene.serve("a", sliced("3g.20gb"))
    request = bound.request
    life = scene.world.broker.values.incarnation(Stream.BOOK)
    assert life is not None
    spared = {"request": bound.request, "request_revision": 1, "allocations": (bound.allocation,)}
    waived = msg.Waived(**spared, cause="sent before", incarnation=life)
    address = subjects.binding(bound.request)
    late = Write(OperationId("late"), 1, Stream.BOOK, address.subject, address.guard, 0, waived, request)
    closing = scene.lose(lambda _host, write: isinstance(write.message, msg.RequestWithdrawn) and write.message.closing)
    scene.remove("a")
    scene.until(lambda: bool(closing))
    scene.strike("broker wipe", lasts_s=0.5)
    scene.wait(1.0)
    scene.lose(lambda _host, _write: False)
    scene.until(lambda: isinstance(scene.value(f"sluice.request.{request}"), msg.RequestWithdrawn))
    landed = scene.landed()
    scene.land(late)
    scene.until(lambda: late in landed)
    scene.wait(5.0)
    scene.finish()


def a_slice_is_waived_and_a_binding_to_it_lands_after_a_wipe() -> None:
    """A degraded slice is waived while its binding is unanswered; both are lost, and its pod was never on it."""
    scene = Scene(allocators=2)
    other = scene.host("allocator-b")
    other.kill()
    late = scene.lose(lambda _host, write: isinstance(write.message, msg.Bound))
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: bool(late))
    request = scene.request("a")
    scene.strike("gpu lost", "node-0", lasts_s=8.0)
    scene.until_lands(msg.SliceDegraded)
    other.start()
    scene.until_lands(msg.Waived)
    scene.until_lands(msg.Closed, 60.0)
    scene.strike("broker wipe", lasts_s=0.5)
    scene.land(late[0])
    scene.until(lambda: scene.runs("a"), longest_s=60.0)
    assert scene.request("a") == request
    scene.finish()


def a_pod_was_bound_before_a_wipe_and_is_gone() -> None:
    """A pod is gone before its source read its binding, which lands after a wipe; only the binding names its slice."""
    scene = Scene()
    late = scene.lose(lambda _host, write: isinstance(write.message, msg.Bound))
    scene.pod("a", sliced("3g.20gb"))
    scene.until(lambda: bool(late))
    request, agent = scene.request("a"), scene.host("agent-node-0")
    agent.kill()
    scene.remove("a")
    scene.strike("broker wipe", lasts_s=0.5)
    scene.until(lambda: isinstance(scene.value(f"sluice.request.{request}"), msg.RequestWithdrawn))
    scene.land(late[0])
    early = scene.lose(lambda _host, write: isinstance(write.message, msg.Released))
    scene.wait(2.0)
    agent.start()
    scene.until_lands(msg.Revoke)
    scene.lose(lambda _host, _write: False)
    for write in early[:1]:
        scene.land(write)
    scene.finish()


def an_order_lands_in_a_bus_made_by_a_slow_clock() -> None:
    """An order for an adopted slice lands after a wipe, in streams made by a clock that is behind."""
    scene = Scene(allocators=2)
    scene.serve("a", sliced("3g.20gb"))
    broker, other = scene.world.broker, scene.host("allocator-b")
    late = scene.lose(lambda host, write: host == "allocator-a" and isinstance(write.message, msg.Grant))
    for clock_off_s in (0.0, -3000.0):
        other.pause()
        broker.stop()
        broker.wipe()
        broker.clock_off_s = clock_off_s
        broker.ensure()
        broker.start()
        if late:
            scene.land(late[0])
            scene.lose(lambda host, write: host == "allocator-a" and isinstance(write.message, msg.Grant))
        landed = scene.landed()
        scene.wait(2.0)
        other.resume()
        scene.until(lambda: any(isinstance(write.message, msg.NodeOpened) for write in landed))  # noqa: B023
    scene.lose(lambda _host, _write: False)
    scene.wait(5.0)
    assert scene.runs("a")
    scene.finish()


# Caught by a schedule of its own: the message has to be the first one, and without an answer through a wipe.
@bug("SourceSynced of any incarnation", "undisturbed", BusCache, "_told_all")
def told_in_any_life(_original: Any, _self: Any, message: Any) -> Any:
    """Section 6 broken: that a source has published all it has holds in any incarnation.
    Loses the slice that it runs on: its source had published all before a wipe, and that landed after it."""
    return replace(message, incarnation="") if isinstance(message, msg.SourceSynced) else None


def _whenever_it_was_asked(_original: Any, _self: Any, message: Any) -> bool:
    """Section 6 broken: what a source has asked in any incarnation of the bus is what it asks."""
    return isinstance(message, REQUEST)


ASKED_IN_ANY_LIFE = PlantedBug(
    "request of any incarnation",
    "the slice that it runs on: what its source had asked at first landed after a wipe, and another one was bound",
    ("bound once", "undisturbed"),
    ((BusCache, "_says_something_now", _whenever_it_was_asked),),
)
"""Caught by a schedule of its own, as the one before."""


EVICTED_IN_ANY_LIFE = PlantedBug(
    "eviction order of any incarnation",
    "hours of work, for no preemptor: the order was of before a wipe, and landed after it",
    ("cluster",),
    ((RequestPublisher, "is_of_this_life", always(True)),),
)
"""Caught by a schedule of its own, as the ones before."""


def _names_nothing(original: Any, binding: Any) -> Any:
    """Section 6 broken: what binds nothing in this incarnation of the bus says nothing of slices."""
    return original(binding) if isinstance(binding, msg.Bound) else None


OUTDATED_NAMES_NOTHING = PlantedBug(
    "outdated binding names no slice",
    "the order of things: its request is released before its slice, on a node that was silent, is gone",
    ("LAW 3",),
    ((entries, "named_by", _names_nothing), (recheck, "named_by", _names_nothing)),
)
"""Caught by a schedule of its own, as the ones before."""


# Caught by a schedule of its own, as the ones before.
@bug("outbox keeps an earlier stream's numbers", "undisturbed", BusView, "started")
def numbers_outlive_their_stream(original: Any, self: Any, stream: Any, life: Any) -> bool:
    """Section 1 broken: what has a larger number is newer, be it of an earlier incarnation of the stream.
    Loses the slice that it runs on: another allocator's write of before a wipe is taken for an own one of after it."""
    reading = self._of.get(stream)
    if reading is not None:
        reading.life = life
    return bool(original(self, stream, life))
