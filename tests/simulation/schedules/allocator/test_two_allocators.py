"""Two allocators that work at once and disagree for a while, because one of them reads late."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from simulation.judges.cordons import CordonSaid
from simulation.judges.judge import ViolationError
from simulation.judges.preemptions import PREEMPTIBLE, PRIORITY
from simulation.plans.pods import Ask
from simulation.planted.bug import PlantedBug, planted
from simulation.planted.two_allocators import GRANTED_AGAIN, OPENED_AGAIN, TWO_BINDS
from simulation.schedules.scene import MIG_NODE, Scene, sliced

from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import AllocationId, OperationId, RequestId
from sluice.contracts.messages import Cordoned, EvictionOrdered, Grant, NodeOpened, RequestWithdrawn, SliceReady

NODES = 8
LATE_S = 20.0
HEADS_MAX = 10
GRANTS_MAX = 6
"""One, and one after each pause of 1, 2, 4 and 8 s; the next would come after 31 s."""

ORDERS_MAX = 11
"""One at once, and one every two seconds."""


def test_what_another_takes_back_is_not_granted_elsewhere_at_the_speed_of_the_bus() -> None:
    """A pod is gone, and one allocator has not heard it: each round makes and unmakes a slice, and is read by all."""
    scene = Scene(*[MIG_NODE] * NODES, allocators=2)
    agents = {f"node-{number}": scene.host(f"agent-node-{number}") for number in range(NODES)}
    for agent in agents.values():
        agent.pause()  # no pod is bound before that one is gone
    landed = scene.landed()
    scene.pod("goes", sliced("1g.5gb"))
    scene.until(lambda: any(isinstance(write.message, Grant) for write in landed))
    heard = scene.stall("allocator-a", Stream.STATE)
    scene.remove("goes")
    scene.until(lambda: any(isinstance(write.message, RequestWithdrawn) for write in landed))
    (first,) = (write.message.booking.node for write in landed if isinstance(write.message, Grant))
    late = agents.pop(first)  # while it is silent, no Released is published
    for agent in agents.values():
        agent.resume()
    scene.wait(LATE_S)
    heard()
    late.resume()
    scene.finish()
    assert 1 < sum(isinstance(write.message, Grant) for write in landed) <= GRANTS_MAX


def test_a_node_is_not_opened_for_two_runs_of_its_agent_in_turn_at_the_speed_of_the_bus() -> None:
    """One allocator has not read that the agent was restarted: the node would be without an owner most of the time."""
    scene = Scene(MIG_NODE, allocators=2)
    heard = scene.stall("allocator-a", Stream.STATE)
    landed = scene.landed()
    scene.host("agent-node-0").crash()
    scene.wait(1.0)
    scene.host("agent-node-0").start()
    scene.wait(LATE_S)
    heads = [write.message for write in landed if isinstance(write.message, NodeOpened)]
    assert 1 < len(heads) <= HEADS_MAX, "one of them is late, and says so"
    scene.pod("late", sliced("1g.5gb"))
    scene.until(lambda: scene.bound("late") is not None)
    heard()
    scene.finish()


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


def test_a_pod_is_not_told_to_go_and_to_stay_in_turn_at_the_speed_of_the_bus() -> None:
    """One allocator has not read the grant for which it is to go: everybody would read and carry out nothing else."""
    scene = Scene(MIG_NODE, allocators=2)
    whole = sliced("7g.40gb")
    goes = Ask((*whole.annotations, (PREEMPTIBLE, "true")), whole.containers, whole.devices)
    scene.serve("goes", goes)
    landed = scene.landed()
    heard = scene.stall("allocator-a", Stream.BOOK)
    scene.pod("service", Ask((*whole.annotations, (PRIORITY, "5")), whole.containers, whole.devices))
    scene.wait(LATE_S)
    assert 1 < sum(isinstance(write.message, EvictionOrdered) for write in landed) <= ORDERS_MAX
    heard()
    scene.remove("service")
    scene.finish()


@pytest.mark.parametrize(
    ("bug", "schedule"),
    [
        (GRANTED_AGAIN, test_what_another_takes_back_is_not_granted_elsewhere_at_the_speed_of_the_bus),
        (TWO_BINDS, test_a_request_that_two_grant_on_two_nodes_is_bound_once),
        (OPENED_AGAIN, test_a_node_is_not_opened_for_two_runs_of_its_agent_in_turn_at_the_speed_of_the_bus),
    ],
    ids=lambda it: getattr(it, "name", ""),
)
def test_the_judge_sees_two_allocators_quarrel(bug: PlantedBug, schedule: Callable[[], None]) -> None:
    """Without chance: with the rule broken the judge speaks up."""
    with planted(bug), pytest.raises(ViolationError) as found:
        schedule()
    assert found.value.rule in bug.caught_by


@pytest.mark.parametrize("is_over", [False, True])
def test_the_judge_knows_when_nobody_is_bound_twice(is_over: bool) -> None:
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
        judge._bound(again, operation)
    else:
        with pytest.raises(ViolationError, match="bound once"):
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
    if is_followed:
        with pytest.raises(ViolationError, match="bound once"):
            judge._bound(replace(late, allocation=found), now)
    else:
        judge._bound(replace(late, allocation=found), now)
