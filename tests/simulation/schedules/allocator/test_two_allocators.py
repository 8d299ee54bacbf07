"""Two allocators that work at once and disagree for a while, because one of them reads late."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
from msgspec.structs import replace
from simulation.harness.search import catches
from simulation.judges.cordons import CordonSaid
from simulation.judges.judge import HEADS_PER_NODE_MAX, ViolationError
from simulation.judges.preemptions import PREEMPTIBLE, PRIORITY
from simulation.plans.pods import Ask
from simulation.planted.two_allocators import TWO_BINDS
from simulation.schedules.scene import MIG_NODE, Scene, sliced

from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import AllocationId, OperationId, RequestId
from sluice.contracts.messages import Cordoned, EvictionOrdered, Grant, NodeOpened, RequestWithdrawn, SliceReady
from sluice.runtime.lease import TRUSTED_PART, TTL_S

NODES = 4


@catches(TWO_BINDS)
def test_a_request_that_two_grant_on_two_nodes_is_bound_once() -> None:
    """Its pod is pinned by the first message that it gets: another would name a slice that it can never use."""
    scene = Scene(MIG_NODE, MIG_NODE, allocators=2)
    agents = [scene.host(f"agent-node-{number}") for number in range(2)]
    for agent in agents:
        agent.pause()
    heard = [scene.stall("allocator-b", stream) for stream in (Stream.BOOK, Stream.STATE)]
    landed = scene.landed()
    scene.pod("twice", sliced("1g.5gb"))
    scene.until(lambda: any(isinstance(write.message, Grant) for write in landed))
    (first,) = (write.message.booking.node for write in landed if isinstance(write.message, Grant))
    scene.world.operator.say(CordonSaid(scene.world.clockwork.now, first))
    scene.until(lambda: any(isinstance(write.message, Cordoned) for write in landed))
    said = next(write for write in landed if isinstance(write.message, Cordoned))
    last = scene.world.broker.values.last(said.subject, scene.world.clockwork.now)
    scene.tell("allocator-b", said.subject, said.message, last.sequence)
    scene.let_hear("allocator-b", f"sluice.request.{scene.request('twice')}")
    scene.until(lambda: sum(isinstance(write.message, Grant) for write in landed) > 1)
    heard.append(scene.stall("allocator-a", Stream.STATE))
    for agent in agents:
        agent.resume()
    scene.until(lambda: sum(isinstance(write.message, SliceReady) for write in landed) > 1)
    ready = {write.subject.split(".")[2]: write.subject for write in landed if isinstance(write.message, SliceReady)}
    scene.let_hear("allocator-a", ready.pop(first))
    scene.until(lambda: scene.bound("twice") is not None)
    scene.let_hear("allocator-b", *ready.values())
    scene.wait(1.0)
    for hear in heard:
        hear()
    scene.finish()


def _grants_what_is_withdrawn(scene: Scene) -> Callable[[], None]:
    """A pod is gone, and one allocator has not read it: what the other takes back it grants again."""
    agents = [scene.host(f"agent-node-{number}") for number in range(NODES)]
    for agent in agents:
        agent.pause()  # no pod is bound before that one is gone
    landed = scene.landed()
    scene.pod("goes", sliced("1g.5gb"))
    scene.until(lambda: any(isinstance(write.message, Grant) for write in landed))
    heard = scene.stall("allocator-a", Stream.STATE)
    scene.remove("goes")
    scene.until(lambda: any(isinstance(write.message, RequestWithdrawn) for write in landed))
    first = next(write.message.booking.node for write in landed if isinstance(write.message, Grant))
    late = agents.pop(int(first.removeprefix("node-")))  # while it is silent, no Released is published
    for agent in agents:
        agent.resume()

    def hear() -> None:
        heard()
        late.resume()

    return hear


def _opens_for_an_agent_that_ended(scene: Scene) -> Callable[[], None]:
    """One allocator has not read that the agent was restarted."""
    heard = scene.stall("allocator-a", Stream.STATE)
    scene.host("agent-node-0").crash()
    scene.wait(1.0)
    scene.host("agent-node-0").start()
    return heard


def _lifts_what_another_orders(scene: Scene) -> Callable[[], None]:
    """One allocator has not read the grant for which a pod is to go."""
    whole = sliced("7g.40gb")
    goes = Ask((*whole.annotations, (PREEMPTIBLE, "true")), whole.containers, whole.devices)
    for number in range(NODES):
        scene.serve(f"goes-{number}", goes)
    heard = scene.stall("allocator-a", Stream.BOOK)
    scene.pod("service", Ask((*whole.annotations, (PRIORITY, "5")), whole.containers, whole.devices))
    return heard


@pytest.mark.parametrize(
    ("begin", "repeated"),
    [
        (_grants_what_is_withdrawn, Grant),
        (_opens_for_an_agent_that_ended, NodeOpened),
        (_lifts_what_another_orders, EvictionOrdered),
    ],
)
def test_two_repeat_themselves_no_longer_than_the_lease_lies(
    begin: Callable[[Scene], Callable[[], None]], repeated: type
) -> None:
    """The one that reads late works until its lease is over by its own clock; nothing stays wrong after that."""
    scene = Scene(*[MIG_NODE] * NODES, allocators=2)
    landed = scene.landed()
    heard = begin(scene)
    scene.wait(TRUSTED_PART * TTL_S)
    assert sum(isinstance(write.message, repeated) for write in landed) > 1
    scene.world.allocators[0].lease(held=False)
    scene.wait(1.0)
    landed = scene.landed()
    scene.wait(10.0)
    again = [write.subject for write in landed if isinstance(write.message, repeated)]
    assert len(again) == len(set(again)), "each at most once"
    heard()
    scene.finish()


@pytest.mark.parametrize("do_two_work", [False, True])
def test_one_allocator_may_not_open_a_node_without_end(do_two_work: bool) -> None:
    """Fencing records would fill the ledger. Two at work may repeat themselves until the lease is over."""
    scene = Scene(MIG_NODE, allocators=2)
    judge, (first, second) = scene.world.judge, scene.world.allocators
    (opened,) = judge.heads.values()
    second.holds_lease = do_two_work
    assert first.holds_lease
    judge.opened[opened.node] = HEADS_PER_NODE_MAX
    with nullcontext() if do_two_work else pytest.raises(ViolationError, match="opened more than"):
        judge._of_node(opened)


@pytest.mark.parametrize("is_over", [False, True])
def test_the_judge_knows_when_no_pod_is_bound_twice(is_over: bool) -> None:
    """A slice found on a node after a wipe is bound by who has not read the end: no pod has two by it."""
    scene = Scene(MIG_NODE)
    scene.serve("a", sliced("1g.5gb"))
    judge, bound = scene.world.judge, scene.bound("a")
    found, operation = AllocationId("found"), OperationId("late")
    judge.ready[found] = judge.ready[bound.allocation]
    judge.decided_in[operation] = next(reversed(judge.decided_in.values()))
    judge.gone[bound.allocation] = None
    again = replace(bound, allocation=found, revision=2)
    if is_over:
        judge.ended[bound.request] = None
    with nullcontext() if is_over else pytest.raises(ViolationError, match="bound once"):
        judge._bound(again, operation)


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_binding_of_another_life_binds_only_a_pod_that_has_its_slice(is_followed: bool) -> None:
    """It landed late and unread: its pod may be bound elsewhere; if its source had read it, the pod would have two."""
    scene = Scene(MIG_NODE)
    scene.serve("a", sliced("1g.5gb"))
    judge, bound = scene.world.judge, scene.bound("a")
    asked, late = judge.requests[bound.request], replace(bound, request=RequestId("late"))
    judge.requests[late.request] = asked if is_followed else replace(asked, held=None)
    found, before, now = AllocationId("found"), OperationId("before"), OperationId("now")
    judge.ready[found] = judge.ready[bound.allocation]
    judge.decided_in |= {before: "earlier", now: str(bound.incarnation)}
    judge.over.add("earlier")
    judge._bound(late, before)
    with pytest.raises(ViolationError, match="bound once") if is_followed else nullcontext():
        judge._bound(replace(late, allocation=found), now)
