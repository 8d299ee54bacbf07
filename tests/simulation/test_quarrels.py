"""Two allocators that work at once and disagree for a while, because one of them reads late."""

import pytest
from simulation.judge import ViolationError
from simulation.planted_quarrels import GRANTED_AGAIN
from simulation.planting import planted
from simulation.scene import MIG_NODE, Scene, sliced

from sluice.contracts.exchange import Stream
from sluice.contracts.messages import Grant, RequestWithdrawn

NODES = 8
LATE_S = 20.0
GRANTS_MAX = 6
"""One, and one after each pause of 1, 2, 4 and 8 s; the next would come after 31 s."""


def test_what_another_takes_back_is_not_granted_elsewhere_at_the_speed_of_the_bus() -> None:
    """A pod is gone, and one allocator has not heard it: each round makes and unmakes a slice, and is read by all."""
    scene = Scene(*[MIG_NODE] * NODES, allocators=2)
    agents = {f"node-{number}": scene.host(f"agent-node-{number}") for number in range(NODES)}
    for agent in agents.values():
        agent.pause()  # nobody is bound before the pod is gone
    landed = scene.landed()
    scene.pod("goes", sliced("1g.5gb"))
    scene.until(lambda: any(isinstance(write.message, Grant) for write in landed))
    heard = scene.stall("allocator-a", Stream.STATE)
    scene.remove("goes")
    scene.until(lambda: any(isinstance(write.message, RequestWithdrawn) for write in landed))
    (first,) = (write.message.booking.node for write in landed if isinstance(write.message, Grant))
    late = agents.pop(first)  # while it says nothing, nobody says Released
    for agent in agents.values():
        agent.resume()
    scene.wait(LATE_S)
    heard()
    late.resume()
    scene.finish()
    assert 1 < sum(isinstance(write.message, Grant) for write in landed) <= GRANTS_MAX


def test_the_judge_sees_two_allocators_quarrel() -> None:
    """Without chance: with the rule broken the judge speaks up."""
    with planted(GRANTED_AGAIN), pytest.raises(ViolationError) as found:
        test_what_another_takes_back_is_not_granted_elsewhere_at_the_speed_of_the_bus()
    assert found.value.rule == "I11"
