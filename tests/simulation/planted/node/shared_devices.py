"""Bugs planted in what a node does about shares: homes, MPS daemons, and instances that are kept warm."""

from dataclasses import replace
from random import Random
from typing import Any

import msgspec.structs
from simulation.plans.plan import KEEP_WARM_S, Fault, Plan
from simulation.plans.pods import shared
from simulation.planted.bug import Bugs, PlantedBug, always

from sluice_allocator.core.placement.nodes.device_spec import DeviceSpecs
from sluice_node_agent.core import agent
from sluice_node_agent.core.instructions import DestroyGpuInstance, SetComputeMode, StopMps
from sluice_node_agent.core.recovery.discovered import Discovered
from sluice_node_agent.core.shared import lifecycle, mps_limits
from sluice_node_agent.core.slices import destroy, mig_instance
from sluice_node_agent.core.state.devices import Devices
from sluice_node_agent.core.state.node_state import NodeState

HOME_BUGS = Bugs()


def _sharing(plan: Plan) -> Plan:
    """All pods that are not refused share, each for a short time."""
    dice = Random(f"focus {plan.seed}")
    lives = tuple(
        replace(life, pod=shared(life.pod, dice), removed_at=life.removed_at or life.made_at + 8.0, edited_at=None)
        if dice.random() < 0.7
        else life
        for life in plan.pods
    )
    return replace(plan, pods=lives)


def _daemons_die(plan: Plan) -> Plan:
    """In every seed some daemons die."""
    plan = _sharing(plan)
    more = tuple(Fault(at, "daemon dies", node) for at in (9.0, 15.0, 21.0, 27.0) for node, _ in plan.nodes)
    return replace(plan, faults=tuple(sorted((*plan.faults, *more), key=lambda fault: fault.at)))


def _keeping_warm(plan: Plan) -> Plan:
    return replace(plan, keep_warm_s=KEEP_WARM_S)


# -- homes --------------------------------------------------------------------------------------------------------


@HOME_BUGS.plant(
    "home destroyed with its first tenant",
    ("undisturbed", "only a Revoke destroys", "MPS"),
    NodeState,
    "wants_home",
    _sharing,
)
def _unmade_with_the_first(original: Any, self: Any, key: Any) -> bool:
    """A home is unmade as soon as one of its tenants leaves. Loses everything that the others had on the device."""
    leaving = any(work.record.phase == "unmaking" for work, _, _ in self.tenants(key))
    return bool(original(self, key)) and not leaving


@HOME_BUGS.plant("daemon left running", ("LAW 3", "I3", "I4"), lifecycle, "_to_unmake", _sharing)
def _daemon_left_running(original: Any, home: Any, wish: Any, devices: Any, token: int) -> Any:
    """The daemon is not stopped with the last share. Loses capacity, for ever."""
    step = original(home, wish, devices, token)
    if isinstance(step, StopMps):
        home.stopped = True
        step = original(home, wish, devices, token)
    return step


@HOME_BUGS.plant("mode left behind", ("LAW 3", "MPS"), lifecycle, "_to_unmake", _sharing)
def _mode_left_behind(original: Any, home: Any, wish: Any, devices: Any, token: int) -> Any:
    """The GPU stays in compute mode EXCLUSIVE_PROCESS. Loses a whole GPU for more than one process."""
    step = original(home, wish, devices, token)
    if isinstance(step, SetComputeMode):
        return msgspec.structs.replace(home.record, daemon=False, pid=0, started_at=0)
    return step


def _stale_after_reboot(original: Any, record: Any, devices: Any, boot_id: str, claimed: Any) -> Any:
    """A home of an earlier boot is taken for one of this boot."""
    return original(msgspec.structs.replace(record, boot_id=boot_id), devices, boot_id, claimed)


def _not_held_against(_original: Any, record: Any, _found: Any) -> Any:
    """What the journal says of a daemon is believed."""
    return record


# -- daemons ------------------------------------------------------------------------------------------------------


@HOME_BUGS.plant("dead daemon not noticed", ("MPS", "I4"), lifecycle, "_seen", _daemons_die)
def _never_dead(original: Any, home: Any, what: Any) -> Any:
    """A daemon that died is not noticed. Loses a pod that never comes back."""
    return original(home, msgspec.structs.replace(what, alive=True))


def _ended_at_every_start(original: Any, event: Any, slices: Any, _homes: Any, claimed: Any) -> Any:
    """Homes that the journal knows are taken for left over."""
    return original(event, slices, [], claimed)


def _all_useless(_original: Any, self: Any, _devices: Any) -> Any:
    """An agent that starts ends every daemon that it finds."""
    every = list(self.homes.values())
    self.homes.clear()
    return every


@HOME_BUGS.plant("all MPS clients terminated", "undisturbed", destroy, "_take_holders", _sharing)
def _all_let_go(original: Any, record: Any, result: Any, number: int, state: Any) -> Any:
    """When one tenant's processes linger, the server lets go of all its clients. Loses living training."""
    outcome = original(record, result, number, state)
    if not outcome.clients:
        return outcome
    return replace(outcome, clients=tuple(holder.pid for holder in result.holders if holder.kind == "compute"))


@HOME_BUGS.plant("home shared with another user", "I1", DeviceSpecs, "_plain", _sharing)
def _any_user(original: Any, self: Any, claim: Any, namespace: str, step: int) -> Any:
    """A share joins the home of another user of its namespace. Loses the wall between users."""
    want = original(self, claim, namespace, step)
    want.domain = (want.domain[0], 0)
    return want


# -- warm instances -----------------------------------------------------------------------------------------------


@HOME_BUGS.plant(
    "warm with its compute instance", ("LAW 3", "one tenant per device"), mig_instance, "step_to_unmake", _keeping_warm
)
def _warm_with_its_compute_instance(original: Any, place: Any, device: Any, token: int) -> Any:
    """An instance is kept warm with its compute instance, and so with its MIG UUID.
    Loses a device that a former tenant may still name."""
    if device.gi_id is not None and device.uuid and place.profile is not None:
        return DestroyGpuInstance(token, place.gpu, device.gi_id, place.start, place.size)
    return original(place, device, token)


# -- what makes a case frequent -----------------------------------------------------------------------------------


def _daemons_die_and_are_refused(plan: Plan) -> Plan:
    """And do not start again at once."""
    plan = _daemons_die(plan)
    dying = [fault for fault in plan.faults if fault.kind == "daemon dies"]
    refused = tuple(replace(fault, kind="mps start fails", number=1) for fault in dying)
    return replace(plan, faults=tuple(sorted((*plan.faults, *refused), key=lambda fault: fault.at)))


def _reboots(plan: Plan) -> Plan:
    plan = _sharing(plan)
    more = tuple(Fault(14.0, "reboot", node, 2.0, number % 2) for number, (node, _) in enumerate(plan.nodes))
    return replace(plan, faults=tuple(sorted((*plan.faults, *more), key=lambda fault: fault.at)))


def _agents_die(plan: Plan) -> Plan:
    plan = _sharing(plan)
    more = tuple(Fault(at, "crash", f"agent-{node}", 0.5) for at in (10.0, 20.0) for node, _ in plan.nodes)
    return replace(plan, faults=tuple(sorted((*plan.faults, *more), key=lambda fault: fault.at)))


def _silent_when_agents_start(plan: Plan) -> Plan:
    """GPUs do not answer when agents begin, and do a moment later."""
    plan = _sharing(plan)
    more = [
        fault
        for at in (10.0, 20.0)
        for node, _ in plan.nodes
        for fault in (Fault(at, "gpu lost", node, 3.0), Fault(at + 0.5, "crash", f"agent-{node}", 0.5))
    ]
    return replace(plan, faults=tuple(sorted((*plan.faults, *more), key=lambda fault: fault.at)))


HOME_BUGS.plant(
    "last share gone before its home", "LAW 3", destroy, "_is_being_unmade", _sharing, loses="the meaning of SliceGone"
)(always(False))
HOME_BUGS.plant("limits not raised", "MPS", mps_limits, "covers", _sharing, loses="memory and SMs that were granted")(
    always(True)
)
HOME_BUGS += [
    PlantedBug(
        "stale home after a reboot",
        "a tenant's daemon",
        ("MPS", "I4", "LAW 3"),
        ((lifecycle, "resume", _stale_after_reboot), (lifecycle, "held_against", _not_held_against)),
        _reboots,
    ),
    PlantedBug(
        "home destroyed by a refused start",
        "living training, with the instance that it is on",
        ("only a Revoke destroys", "undisturbed", "MPS"),
        ((lifecycle, "had_tenants", always(False)),),
        _daemons_die_and_are_refused,
    ),
    PlantedBug(
        "daemons ended at every start",
        "living training, when an agent is updated",
        ("undisturbed",),
        ((Discovered, "useless", _all_useless), (agent, "discover", _ended_at_every_start)),
        _agents_die,
    ),
    PlantedBug(
        "sizes guessed",
        "SMs that were granted, for as long as the processes live",
        ("MPS",),
        ((Devices, "is_unknown", always(False)),),
        _silent_when_agents_start,
    ),
]
