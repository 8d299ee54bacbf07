"""What an agent does not know: a Grant overwritten before it was read, a lost journal. Raises ViolationError."""

from typing import Any

from simulation.plans.pods import mps
from simulation.planted.allocator.turns import own_home_only
from simulation.planted.bug import PlantedBug, always
from simulation.schedules.scene import WHOLE, WHOLE_NODE, Scene, sliced
from simulation.world.hardware import OPERATOR

from sluice.contracts.messages import Grant, Revoke, SliceGone
from sluice_node_agent.core.orders.reconcile import OrderReconciler
from sluice_node_agent.core.recovery.discovered import Discovered
from sluice_node_agent.core.slices import destroy


def a_promise_is_revoked_unread() -> None:
    """A GPU that two pods share is promised whole to a third, which is gone before the agent has observed it."""
    scene = Scene(WHOLE_NODE)
    scene.serve_all("ab", mps(1500))
    agent = scene.host("agent-node-0")
    agent.kill()
    scene.pod("later", WHOLE)
    scene.until(lambda: bool(scene.world.judge.promises("node-0")))
    scene.remove("later")
    scene.until(lambda: not any(isinstance(each, Grant) for each in scene.world.judge.promises("node-0").values()))
    agent.start()
    scene.wait(10.0)
    assert scene.runs("a")
    assert scene.runs("b")
    scene.finish()


def the_journal_is_lost_while_a_gpu_is_silent(*, revoked: bool = False) -> None:
    """A pod runs on an instance of a GPU that has fallen off the bus when its agent, without a journal, starts."""
    scene = Scene()
    before = scene.serve("a", sliced("3g.20gb"))
    for ticket in scene.world.machines["node-0"].tickets.values():
        ticket.said = None  # an earlier version's: only the ledger knows whose the instance is
    scene.strike("gpu lost", "node-0", lasts_s=12.0)
    scene.strike("journal lost", "node-0", lasts_s=0.5)
    if revoked:
        scene.remove("a")
    scene.wait(20.0)
    assert revoked or scene.bound("a") == before
    assert scene.runs("a") is not revoked
    scene.finish()


def a_foreign_process_uses_a_place_that_was_given_back() -> None:
    """A slice is gone and not closed yet; its agent loses its journal, and an instance is made there by hand."""
    scene = Scene()
    scene.serve("a", sliced("3g.20gb"))
    scene.remove("a")
    scene.until_lands(Revoke)
    allocator = scene.host("allocator-a")
    allocator.kill()
    scene.until_lands(SliceGone)
    scene.strike("journal lost", "node-0", lasts_s=0.5)
    (booking,) = scene.world.judge.bookings.values()
    (place,) = booking.devices
    gpu = scene.world.machines["node-0"].gpus[place.gpu]
    profile_id = next(each.profile_id for each in gpu.row.profiles if each.name == place.profile)
    by_hand = gpu.create_gi(profile_id, (place.start, place.size), OPERATOR)
    scene.wait(2.0)
    allocator.start()
    scene.wait(10.0)
    assert by_hand in gpu.instances
    scene.finish()


def _only_grants_come_later(original: Any, self: Any, order: Any) -> bool:
    """A Revoke names what to destroy; which slices its Grant was to wait for seems to be irrelevant."""
    return not isinstance(order, Grant) or original(self, order)


REVOKED_UNREAD = PlantedBug(
    "revoke ignores after",
    "capacity, as long as another pod runs there",
    ("I4",),
    ((OrderReconciler, "_was_begun", _only_grants_come_later), (destroy, "_has_home", own_home_only)),
)
NOT_SEEN = PlantedBug(
    "unseen instance counts as absent",
    "living training, and an instance for ever",
    ("LAW 3", "only a Revoke destroys"),
    ((Discovered, "hides", always(False)),),
)
