"""Bugs about GPUs whose layout an administrator fixed."""

from dataclasses import replace
from random import Random
from typing import Any

from simulation.fixed_layouts import draw_layouts
from simulation.plan import Fault, Plan
from simulation.planting import Planted

from sluice.mig.fixed import FixedTable
from sluice_allocator.core.placement import fleet
from sluice_node_agent.core import fixed_layouts


def _fixed(plan: Plan) -> Plan:
    """Half of the GPUs are an administrator's; nodes reboot now and then."""
    dice = Random(f"planted fixed {plan.seed}")
    reboots = tuple(
        Fault(dice.uniform(5.0, 30.0), "reboot", node, dice.uniform(0.1, 2.0), dice.randrange(2))
        for node, _ in plan.nodes
    )
    calm = tuple(life for life in plan.pods if not any("group" in key for key, _ in life.pod.ask.annotations))
    return replace(plan, layouts=draw_layouts(dice, plan.nodes), faults=reboots, pods=calm, quotas=())


def _nothing_is_kept(_original: Any) -> Any:
    def is_kept(*_arguments: Any) -> bool:
        """What a tenant leaves is destroyed, whoever made it."""
        return False

    return is_kept


def _nothing_is_taken(_original: Any) -> Any:
    def is_to_be_taken(*_arguments: Any) -> bool:
        """Every grant is made, as on any GPU."""
        return False

    return is_to_be_taken


def _bookings_do_not_count(original: Any) -> Any:
    def state(self: Any, _instances: Any, *, blocked: Any = ()) -> Any:
        """What is there can be had, whoever has it."""
        return original(self, (), blocked=blocked)

    return state


def _fixed_or_not(_original: Any) -> Any:
    def layout_of(*_arguments: Any) -> None:
        """The allocator takes the GPU for one that it may cut up."""
        return

    return layout_of


FIXED_BUGS = (
    Planted(
        "destroys an instance of a fixed layout",
        "the partitioning of a GPU that is his own",
        ("I13",),
        ((fixed_layouts, "is_kept", _nothing_is_kept),),
        _fixed,
    ),
    Planted(
        "creates on a GPU with a fixed layout",
        "the place where his administrator's instance was to be, with the pod that waits for it",
        ("fixed layout",),
        ((fixed_layouts, "is_to_be_taken", _nothing_is_taken),),
        _fixed,
    ),
    Planted(
        "gives one instance of a fixed layout to two",
        "a device that is his alone",
        ("I1",),
        ((FixedTable, "state", _bookings_do_not_count),),
        _fixed,
    ),
    Planted(
        "cuts up a fixed layout",
        "an answer, for the place that he is granted is never made",
        ("I2",),
        ((fleet, "layout_of", _fixed_or_not),),
        _fixed,
    ),
)
