"""A node with one GPU laid out by an administrator, and the acts of administrator and tenants there."""

from sluice_node_agent.core import instructions as do
from sluice_node_agent.simulated.hardware_file import Instance

FLEET = """
[[node]]
name = "n1.example"
gpus = [
    { model = "a100-40gb", layout = ["3g.20gb:0", "2g.10gb:4", "1g.5gb:6"] },
    { model = "a100-40gb" },
    { model = "a100-40gb", mig = false },
]
"""
LAYOUT = [("1g.5gb", 6, 1), ("2g.10gb", 4, 2), ("3g.20gb", 0, 4)]
SMALL = (0, "1g.5gb", 6, 1)
LARGE = (0, "3g.20gb", 0, 4)
CHANGING = (do.CreateGpuInstance, do.CreateComputeInstance, do.DestroyComputeInstance, do.DestroyGpuInstance)


def opened(make_node):
    """A node with a fixed GPU, one that Sluice cuts up, and one without MIG; opened."""
    made = make_node(fleet=FLEET)
    made.own_done.clear()
    return made


def uuid_at(node, start, gpu=0):
    return next(i.uuid for i in node.hardware.read().gpus[gpu].instances if i.start == start)


def report(node, gpu=0):
    """One GPU as a reader of the snapshot sees it."""
    return node.agent.snapshot().gpus[gpu]


def granted(node, name="a1", *places, owner="pod-1"):
    booking = node.serve(node.booking(name, *(places or (SMALL,)), owner=owner))
    return booking, node.word(name)


def revoked(node, booking):
    node.take_back(booking)
    return node.word(booking.allocation)


def use(node, device, owner="", kind="compute"):
    node.mps.enter(4711, device, owner, kind)


def reread(node):
    node.tick(node.config.read_devices_s)


def admin_removes(node, start, gpu=0):
    with node.hardware.changing() as hardware:
        found = hardware.gpus[gpu]
        found.instances = [each for each in found.instances if each.start != start]


def admin_makes(node, profile, start, size, *, gpu=0, gi_id=11, uuid="MIG-of-the-admin"):
    with node.hardware.changing() as hardware:
        new = Instance(gi_id=gi_id, profile=profile, start=start, size=size, uuid=uuid)
        hardware.gpus[gpu].instances.append(new)


def changes(node):
    """What was done to the GPUs' layouts."""
    return [type(done) for done in node.own_done if isinstance(done, CHANGING)]
