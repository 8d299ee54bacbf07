"""Bugs about handing devices over by ResourceClaim, planted on purpose."""

from dataclasses import replace
from typing import Any

import msgspec.structs
from simulation.judges.claims import with_claims
from simulation.plans.plan import Fault, Plan, with_late_openers
from simulation.plans.pods import Ask, Device
from simulation.planted.bug import Bugs, PlantedBug, always

from sluice_allocator.core.node import reconcile
from sluice_node_agent.core.events import TenantsListed
from sluice_node_agent.core.hand_over import controller
from sluice_node_agent.core.hand_over import controller as claims
from sluice_node_agent.core.hand_over.controller import HandOver, prepared_devices
from sluice_node_agent.core.instructions import AnswerCall, RemoveCdi
from sluice_node_agent.core.slices import destroy

HAND_OVER_BUGS = Bugs()


def _alternating(plan: Plan) -> Plan:
    """Pods ask for what is nowhere, or else for a slice."""
    nowhere = Ask((("sluice.dev/profile", "9g.90gb"),), ("main",), (Device("profile", profile="9g.90gb"),))
    pods = (
        replace(
            life,
            edit=None,
            edited_at=None,
            pod=replace(life.pod, ask=nowhere, by_claim=True, alternatives=("1g.5gb",), one_gpu=False),
        )
        for life in plan.pods
    )
    return replace(plan, hands_over=tuple(node for node, _ in plan.nodes), pods=tuple(pods), quotas=())


def _handing_over(plan: Plan) -> Plan:
    return with_claims(plan, 1.0)


def _late(plan: Plan) -> Plan:
    """Their pods go on for long after they were removed, and open their devices late."""
    late = with_claims(with_late_openers(replace(plan, kubelets=True)), 1.0)
    pods = (replace(life, pod=replace(life.pod, runs=True, lingers_s=6.0)) for life in late.pods)
    return replace(late, pods=tuple(pods))


@HAND_OVER_BUGS.plant("prepared claims not noted", "claims", HandOver, "_is_wanted", _handing_over)
def _unnoted(original: Any, self: Any, claim: Any, work: Any) -> bool:
    """Answered from what is known, and not noted. Loses a GPU shared with a pod that a lost journal forgot."""
    if original(self, claim, work) and claim.uid not in work.record.prepared:
        devices = prepared_devices(work.record.booking, claim)
        self._answers += [AnswerCall(call.asked.call, devices) for call in self._waiting.pop(claim.uid, [])]
        return False
    return original(self, claim, work)


@HAND_OVER_BUGS.plant("CDI file left to Unprepare", ("I3", "I4", "claims"), destroy, "_to_close", _handing_over)
def _file_kept(original: Any, record: Any, token: int) -> Any:
    """The CDI file of a slice that goes is left to Unprepare, which may be lost.
    Loses a pod that starts on another's device."""
    return original(msgspec.structs.replace(record, cdi_files=()), token)


@HAND_OVER_BUGS.plant("only Unprepare frees", ("I3", "I4"), destroy, "take_result", _handing_over)
def _only_unprepare_counts(original: Any, record: Any, sent: Any, result: Any, state: Any) -> Any:
    """A slice is kept until the kubelet has unprepared its claims, whatever became of their pods.
    Loses capacity, for ever, where an Unprepare is lost."""
    if isinstance(result, TenantsListed) and record.prepared:
        return destroy.Outcome(trouble="its claims are prepared", ends_by_itself=True)
    return original(record, sent, result, state)


@HAND_OVER_BUGS.plant("processes of claims not looked for", ("LAW 3", "I1"), destroy, "may_run", _late)
def _claims_have_no_processes(original: Any, work: Any, state: Any) -> bool:
    """The kubelet ends all pods with a claim: no look is needed. Loses a GPU shared with a dying pod."""
    return original(work, state) and not work.record.booking.resource_claims


@HAND_OVER_BUGS.plant("hand-over not noticed", "I4", reconcile, "_places_are_the_same", _handing_over)
def _places_alone(_original: Any, snapshot: Any, shown: Any) -> bool:
    """That a kubelet hands over now is no place. Loses a start: its nodes seem not to hand over."""
    places = (snapshot.gpus, snapshot.modes, snapshot.time_quota)
    return places == (shown.gpus, shown.modes, shown.time_quota)


@HAND_OVER_BUGS.plant("Prepare waits for ever", "claims", HandOver, "tick", _handing_over)
def _waits_for_ever(original: Any, self: Any, now: float, why: str) -> None:
    """A call is answered when there is something to answer. Loses a minute and a half of each start, and the reason."""
    waiting, self._waiting = self._waiting, {}
    original(self, now, why)
    self._waiting = waiting


@HAND_OVER_BUGS.plant("journal trusted for CDI files", "claims", HandOver, "prepare", _handing_over)
def _trusts_its_journal(original: Any, self: Any, asked: Any, now: float) -> Any:
    """What was written once is there. Loses every pod of a node after its reboot."""
    for work in self._slices_of(asked.claim):
        claim = next(each for each in work.record.booking.resource_claims if each.uid == asked.claim)
        if asked.claim in work.record.cdi_files and not work.record.revoked:
            self._answers.append(AnswerCall(asked.call, prepared_devices(work.record.booking, claim)))
            return []
    return original(self, asked, now)


@HAND_OVER_BUGS.plant("CDI file removed when read", "claims", HandOver, "advance", _handing_over)
def _file_removed_when_read(original: Any, self: Any, work: Any) -> None:
    """The pod has its devices, so that the file is of no more use. Loses a pod whose container restarts."""
    answered = len(self._answers)
    original(self, work)
    if len(self._answers) > answered and work.idle:
        for claim in work.cdi:
            self._in_flight.send(RemoveCdi(self._in_flight.next_token, claim), None)


@HAND_OVER_BUGS.plant("Unprepare waits for the slice", "claims", HandOver, "take_result", _late)
def _unprepare_waits(original: Any, self: Any, work: Any, sent: Any, result: Any, now: float) -> Any:
    """Unprepare is answered when its slice is gone, as if the kubelet could do something about that.
    Loses the end of a pod, which the slice may wait for."""
    asked = self._removing.get(sent.token) if isinstance(sent, RemoveCdi) else None
    if asked is not None and self._slices_of(asked.claim):
        del self._removing[sent.token]
        again = RemoveCdi(self._in_flight.next_token, asked.claim)
        self._removing[again.token] = asked
        self._in_flight.send(again, None)
        return []
    return original(self, work, sent, result, now)


@HAND_OVER_BUGS.plant("answered by the alternative's name", "claims", controller, "prepared_devices", _alternating)
def _named_with_its_alternative(_original: Any, booking: Any, claim: Any) -> Any:
    """A request has the name that the allocation says. Loses a start: the kubelet knows no such request."""
    found = prepared_devices(booking, claim)
    granted = {grant.container for grant in booking.devices}
    keys = [key for key, container in sorted(claim.requests.items()) if container in granted]
    return tuple(msgspec.structs.replace(each, request=key) for each, key in zip(found, keys, strict=True))


@HAND_OVER_BUGS.plant("one answer to two calls", "claims", HandOver, "prepare", _handing_over)
def _one_answer(original: Any, self: Any, asked: Any, now: float) -> Any:
    """A kubelet calls once at a time. Loses a start, after the kubelet was restarted."""
    self._waiting.pop(asked.claim, None)
    return original(self, asked, now)


@HAND_OVER_BUGS.plant("device names used again", "claims", claims, "device_names", _handing_over)
def _names_of_claims(_original: Any, _allocation: str, claims: Any) -> dict[tuple[str, str], str]:
    """A claim has one device of a kind: it needs no other name.
    Loses a device in use that the scheduler counts as free."""
    return {(claim.uid, key): f"gpu-{n}" for claim in claims for n, key in enumerate(sorted(claim.requests))}


def _owning(plan: Plan) -> Plan:
    """Every claim has another pod, too, and its pods open their devices late."""
    plan = _late(plan)
    return replace(plan, pods=tuple(replace(life, pod=replace(life.pod, shares_claim=True)) for life in plan.pods))


def _losing(plan: Plan) -> Plan:
    """CDI files are lost, and containers restart."""
    plan = with_claims(replace(plan, kubelets=True), 1.0)
    lost = [Fault(at, "tickets lost", node) for node, _ in plan.nodes for at in (12.0, 20.0, 28.0, 36.0)]
    pods = (replace(life, pod=replace(life.pod, runs=True)) for life in plan.pods)
    return replace(plan, faults=tuple(sorted((*plan.faults, *lost), key=lambda fault: fault.at)), pods=tuple(pods))


HAND_OVER_BUGS += [
    PlantedBug(
        "CDI files not compared",
        "a pod whose container restarts, after its file was lost",
        ("I4",),
        ((HandOver, "_compare", always(None)),),
        _losing,
    ),
    PlantedBug(
        "other pods of a claim not looked for",
        "a GPU shared with a pod that opens it late",
        ("LAW 3", "I1"),
        ((destroy, "shared_claims", always(())),),
        _owning,
    ),
]
