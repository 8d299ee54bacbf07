"""Bugs about GPUs whose layout an administrator fixed."""

from dataclasses import replace
from random import Random
from typing import Any

from simulation.judges.moves import with_moves
from simulation.plans.plan import Fault, Plan
from simulation.plans.pods import Ask, Device
from simulation.planted.bug import Bugs, PlantedBug, always
from simulation.world.fixed_layouts import draw_layouts

from sluice.contracts.reasons import WaitReason
from sluice.mig.fixed_layout_table import FixedLayoutTable
from sluice_allocator.core.placement.nodes import gpu
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec
from sluice_node_agent.core.slices import mig_instance as fixed_layouts

FIXED_BUGS = Bugs()


def _fixed(plan: Plan) -> Plan:
    """Half of the GPUs are an administrator's; nodes reboot now and then."""
    dice = Random(f"planted fixed {plan.seed}")
    reboots = tuple(
        Fault(dice.uniform(5.0, 30.0), "reboot", node, dice.uniform(0.1, 2.0), dice.randrange(2))
        for node, _ in plan.nodes
    )
    calm = tuple(life for life in plan.pods if not any("group" in key for key, _ in life.pod.ask.annotations))
    return replace(plan, layouts=draw_layouts(dice, plan.nodes), faults=reboots, pods=calm, quotas=())


def _in_pairs(plan: Plan) -> Plan:
    """The same, and many pods want two devices, which larger profiles may serve."""
    keys = (("sluice.dev/profile", "2g.10gb"), ("sluice.dev/gpus", "2"))
    pair = Ask(keys, ("main",), (Device("profile", profile="2g.10gb"),) * 2)
    pods = tuple(
        replace(life, pod=life.pod.asking(pair), edited_at=None, edit=None) if number % 2 else life
        for number, life in enumerate(_fixed(plan).pods)
    )
    return with_moves(replace(_fixed(plan), pods=pods), 1.0)


@FIXED_BUGS.plant("gives one instance of a fixed layout to two", "I1", FixedLayoutTable, "state", _fixed)
def _bookings_do_not_count(original: Any, self: Any, _instances: Any, *, blocked: Any = ()) -> Any:
    """An existing instance is available, also if it has an owner. Loses a device of its own."""
    return original(self, (), blocked=blocked)


@FIXED_BUGS.plant("rounds up on each GPU by itself", "one size", DeviceSpec, "_in_layout", _in_pairs)
def _rounded_up_on_each(original: Any, self: Any, gpu: Any, shape: Any) -> Any:
    """What may be larger is rounded up on each GPU by itself, as a size is.
    Loses a job whose devices are to be alike: one of them is slower, or fuller, than the other."""
    if gpu.layout is None or self.step == 0:
        return original(self, gpu, shape)
    there = {each.profile for each in gpu.layout}
    sizes = [gpu.model.profile(self.claim.profile), *self.larger_on(gpu)]
    enough = (each for each in sizes if each is not None and each.name in there)
    return next(enough, WaitReason.GPU_NOT_IN_LAYOUT)


FIXED_BUGS += [
    PlantedBug(
        "destroys an instance of a fixed layout",
        "the partitioning of a GPU that the user owns",
        ("I13",),
        ((fixed_layouts, "is_kept", always(False)),),
        _fixed,
    ),
    PlantedBug(
        "creates on a GPU with a fixed layout",
        "the place where the administrator's instance was to be, with the pod that waits for it",
        ("fixed layout",),
        ((fixed_layouts, "is_to_be_taken", always(False)),),
        _fixed,
    ),
    PlantedBug(
        "cuts up a fixed layout",
        "an answer, for the granted place is never created",
        ("I2",),
        ((gpu, "layout_of", always(None)),),
        _fixed,
    ),
]
