"""Bugs about handing devices over by ResourceClaim, planted on purpose."""

from dataclasses import replace
from typing import Any

import msgspec.structs
from simulation.judges.claims import with_claims
from simulation.plans.plan import Plan, with_late_openers
from simulation.planted.bug import PlantedBug

from sluice_allocator.core import nodes
from sluice_node_agent.core.hand_over.claims import prepared_devices
from sluice_node_agent.core.hand_over.controller import HandOver
from sluice_node_agent.core.instructions import AnswerCall
from sluice_node_agent.core.slices import destroy
from sluice_node_agent.core.state.tasks import Awaits


def _unnoted(original: Any) -> Any:
    def is_wanted(self: Any, claim: Any, record: Any) -> bool:
        """Answered from what is known, without a note."""
        if original(self, claim, record) and claim.uid not in record.prepared:
            devices = prepared_devices(record.booking, claim)
            self._answers += [AnswerCall(call.asked.call, devices) for call in self._waiting.pop(claim.uid, [])]
            return False
        return original(self, claim, record)

    return is_wanted


def _file_kept(original: Any) -> Any:
    def to_close(record: Any, token: int) -> Any:
        """The CDI file of a slice that goes is left to Unprepare, which may be lost."""
        return original(msgspec.structs.replace(record, cdi_files=()), token)

    return to_close


def _only_unprepare_counts(original: Any) -> Any:
    def to_close(record: Any, token: int) -> Any:
        """A slice is kept until the kubelet has unprepared its claims, whatever became of their pods."""
        step = original(record, token)
        waits = step is None and record.revoked and record.prepared and not record.ignores_holders
        return Awaits("its claims are prepared") if waits else step

    return to_close


def _claims_have_no_processes(original: Any) -> Any:
    def may_run(work: Any, state: Any) -> bool:
        """A pod with a claim is ended by the kubelet, so no process is looked for."""
        return original(work, state) and not work.record.booking.resource_claims

    return may_run


def _places_alone(_original: Any) -> Any:
    def same(snapshot: Any, shown: Any) -> bool:
        """That a kubelet hands over now is no place."""
        places = (snapshot.gpus, snapshot.modes, snapshot.time_quota)
        return places == (shown.gpus, shown.modes, shown.time_quota)

    return same


def _handing_over(plan: Plan) -> Plan:
    return with_claims(plan, 1.0)


def _late(plan: Plan) -> Plan:
    """Their pods go on for long after they were removed, and open their devices late."""
    late = with_claims(with_late_openers(replace(plan, kubelets=True)), 1.0)
    pods = (replace(life, pod=replace(life.pod, runs=True, lingers_s=6.0)) for life in late.pods)
    return replace(late, pods=tuple(pods))


HAND_OVER_BUGS = (
    PlantedBug(
        "prepared claims not noted",
        "a GPU shared with a pod that a lost journal forgot",
        ("claims",),
        ((HandOver, "_is_wanted", _unnoted),),
        _handing_over,
    ),
    PlantedBug(
        "CDI file left to Unprepare",
        "a pod that starts on another's device",
        ("I3", "I4", "claims"),
        ((destroy, "_to_close", _file_kept),),
        _handing_over,
    ),
    PlantedBug(
        "only Unprepare frees",
        "capacity, for ever, where an Unprepare is lost",
        ("I3", "I4"),
        ((destroy, "_to_close", _only_unprepare_counts),),
        _handing_over,
    ),
    PlantedBug(
        "processes of claims not looked for",
        "a GPU shared with a dying pod",
        ("LAW 3", "I1"),
        ((destroy, "_may_run", _claims_have_no_processes),),
        _late,
    ),
    PlantedBug(
        "hand-over not noticed",
        "a start: its nodes seem not to hand over",
        ("I4",),
        ((nodes, "_places_are_the_same", _places_alone),),
        _handing_over,
    ),
)
