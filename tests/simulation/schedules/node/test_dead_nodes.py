"""A node whose agent dies before it has made what was ordered, played on purpose (PROTOCOL §4)."""

from typing import Any

import pytest
from simulation.schedules.scene import MIG_NODE, Scene, sliced

from sluice.contracts.messages import Grant, Revoke, SliceGone, Waived
from sluice_allocator.core.request import entries
from sluice_allocator.core.request.grant_validity import why_decline

NODES = ("node-0", "node-1")


@pytest.mark.parametrize("comes_back", [False, True], ids=["for good", "and comes back"])
def test_a_pod_is_served_elsewhere_when_its_node_dies_before_its_slice_is_made(comes_back: bool) -> None:
    """It would wait for that node for good, beside another one that is free."""
    play(comes_back=comes_back)


def test_the_schedule_fails_when_a_dead_node_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would show nothing."""

    def patient(ctx: Any, grant: Any, asked: Any) -> str | None:
        why = why_decline(ctx, grant, asked)
        return None if why is not None and "does not answer" in why else why

    monkeypatch.setattr(entries, "why_decline", patient)
    with pytest.raises(AssertionError, match="no agent answers"):
        play(comes_back=False)


def play(*, comes_back: bool) -> None:
    """The one node is full when the other one dies; then it is free, and the dead one is back at last."""
    scene = Scene(MIG_NODE, MIG_NODE)
    landed = scene.landed()
    first = scene.serve("first", sliced("7g.40gb"))
    (dead,) = {*NODES} - {first.node}
    scene.world.agents[dead].crash()
    scene.pod("second", sliced("7g.40gb"))
    scene.until(lambda: grants_on(landed, dead) != [])
    scene.remove("first")
    scene.until(lambda: scene.runs("second"), longest_s=60.0)
    second = scene.bound("second")
    assert second.node == first.node
    said = [type(write.message) for write in landed if isinstance(write.message, (Waived, Revoke, Grant))]
    assert said.index(Waived) < len(said) - 1 - said[::-1].index(Revoke)
    if comes_back:
        (grant,) = grants_on(landed, dead)
        scene.world.agents[dead].start()
        word = f"sluice.slice.{dead}.{grant.booking.allocation}"
        scene.until(lambda: isinstance(scene.value(word), SliceGone), longest_s=60.0)
    else:
        scene.world.agents[dead].start()
    scene.finish()


def grants_on(landed: list, node: str) -> list[Grant]:
    return [w.message for w in landed if isinstance(w.message, Grant) and w.message.booking.node == node]
