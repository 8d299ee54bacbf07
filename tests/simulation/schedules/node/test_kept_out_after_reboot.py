"""A slice that was lost at a reboot and is kept from its place: what of it could be made again stays, and no more."""

from simulation.plans.pods import Ask, Device
from simulation.schedules.scene import Scene
from simulation.world.hardware import OPERATOR

from sluice.contracts.messages import SliceDegraded

TWO = Ask(
    (("left.sluice.dev/profile", "1g.5gb"), ("right.sluice.dev/profile", "2g.10gb")),
    ("left", "right"),
    (Device("profile", profile="1g.5gb"), Device("profile", profile="2g.10gb")),
)


def test_the_judge_knows_the_half_of_a_slice_that_an_operator_keeps_from_its_place() -> None:
    """It was not revoked, so nothing of it is destroyed; but an instance without owner is still found beside it."""
    scene = Scene()
    bound = scene.serve("pod", TWO)
    left, right = scene.world.judge.bookings[bound.allocation].devices
    agent = scene.world.agents[bound.node]
    agent.kill()
    agent.machine.reboot(tickets_survive=True)
    scene.world.kubelets.rebooted(agent.machine)
    gpu = agent.machine.gpus[right.gpu]
    profile = next(row for row in gpu.row.profiles if row.name == right.profile)
    gpu.create_gi(profile.profile_id, (right.start, right.size), OPERATOR)
    agent.start()
    word = f"sluice.slice.{bound.node}.{bound.allocation}"
    scene.until(lambda: isinstance(scene.value(word), SliceDegraded))
    scene.wait(5.0)

    assert scene.world.goals.settled() == ["pod: bound, and does not run"]
    instances = agent.machine.gpus[left.gpu].instances.values()
    spans = [instance.span for instance in instances if instance.maker != OPERATOR]
    assert spans == [(left.start, left.size)]
    free = next(row for row in gpu.row.profiles if row.name == "1g.5gb")
    at = next(span for span in free.placements if span[0] not in {left.start, right.start, right.start + 1})
    gpu.create_gi(free.profile_id, at, "agent")
    assert any("instances" in missing for missing in scene.world.goals.settled())
