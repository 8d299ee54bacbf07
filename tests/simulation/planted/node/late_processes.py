"""Bugs about what an agent takes for granted: a tenant that holds no device is gone, and a ticket is where it was."""

from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replace_in
from simulation.plans.plan import Plan, with_late_openers
from simulation.planted.bug import Bugs, PlantedBug, bug
from simulation.world.mps_daemons import MPS_ROOT

from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.events import TenantsListed, TenantsUnseen
from sluice_node_agent.core.instructions import MakeTicket
from sluice_node_agent.core.slices import destroy
from sluice_node_agent.core.slices.controller import SliceController

LINGERING_BUGS = Bugs()


def _all_open_late(plan: Plan) -> Plan:
    """Every pod that goes leaves processes behind for some time, and most have not opened their devices by then."""
    plan = with_late_openers(plan)
    pods = [replace(life, pod=replace(life.pod, runs=True, lingers_s=4.0)) for life in plan.pods]
    soon = [replace(life, removed_at=life.made_at + 3.0 + number % 3) for number, life in enumerate(pods)]
    return replace(plan, pods=tuple(soon))


@bug("empty device is enough", ("LAW 3", "I1"), destroy, "_to_empty", _all_open_late)
def empty_is_enough(_original: Any, work: Any, number: int, state: Any, token: int) -> Any:
    """Section 5 broken: processes are looked up, and one that has not opened the device yet is missed.
    Loses its device, to a process of the pod before."""
    return destroy._to_empty_device(work, number, state, token) if number not in work.free_of_holders else None


@LINGERING_BUGS.plant("unreadable processes count as none", ("LAW 3", "I1"), destroy, "take_result", _all_open_late)
def _unseen_is_gone(original: Any, record: Any, sent: Any, result: Any, state: Any) -> Any:
    """A failed lookup counts as no process. Loses its device, to an invisible process."""
    if isinstance(result, TenantsUnseen):
        result = TenantsListed(result.token, ())
    return original(record, sent, result, state)


@bug("ticket not restored", "I4", SliceController, "tickets_compared")
def written_once(_original: Any, _self: Any, _wrong: Any) -> list[Any]:
    """A ticket that was made is there until it is removed. Loses its container's next start, for ever."""
    return []


@bug("a ticket of another home", "MPS", SliceController, "_next_step")
def another_home(original: Any, self: Any, work: Any, **how: Any) -> Any:
    """A ticket that is made again names a home that its tenant was never in.
    Loses its container, to a daemon that is not there, or a stranger's."""
    step = original(self, work, **how)
    if work.record.phase != "ready" or not isinstance(step, MakeTicket):
        return step
    containers = tuple(replace_in(each, mps_pipe_directory=f"{MPS_ROOT}/other/pipe") for each in step.containers)
    return replace_in(step, containers=containers)


CALM_WHILE_DUE = PlantedBug(
    "calm while a retry is due",
    "the place that its predecessor left, for seconds",
    ("calm",),
    ((Agent, "is_calm", property(lambda agent: agent.is_open)),),
    _all_open_late,
)
LINGERING_BUGS.extend((CALM_WHILE_DUE, empty_is_enough))
