"""Pods whose devices their kubelet hands over by ResourceClaim, those with alternatives and those that need one GPU.

Which they are in which seeds, what admission adds to their requests, and the judge of where they are put. It knows
which nodes hand over from the plan, and compares what was granted with what was asked, message by message.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec.structs
from simulation.judges.books import Books
from simulation.judges.gpu_tables import GpuRow, Span, fits_in
from simulation.plans.pods import Device, Pod
from simulation.world.device_steps import home_of
from simulation.world.hardware import Machine, Process
from simulation.world.kubelet_plugin import SHARED
from simulation.world.manifest_folder import Folder

from sluice.contracts.bus.events import LastRead, Observed, Write
from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import AllocationRequested, Booking, Bound, Claim, Grant, ResourceClaimRef, Revoke
from sluice_node_agent.core.instructions import AnswerCall, CdiDevice
from sluice_node_agent.core.journal_records import SliceRecord

if TYPE_CHECKING:
    from simulation.plans.plan import Plan, PodLife

CLAIM_SEEDS = 0.35
CLAIM_PODS = 0.5
SHARED_BY = 0.25
"""Of the claims, so many are used by another pod than the one that asked, too."""
HANDS_OVER = 0.7
"""Of the nodes in such a seed, so many hand over."""
_PLAIN = {"sluice.dev/profile", "sluice.dev/priority", "sluice.dev/preemptible"}
ALTERNATIVES = (("3g.20gb",), ("2g.10gb", "1g.5gb"), ("1g.6gb",), ("2g.12gb", "1g.5gb", "1g.6gb"))


def with_claims(plan: "Plan", seeds: float = CLAIM_SEEDS) -> "Plan":
    """In some seeds some pods have claims: drawn apart, so that all else of a seed stays what it is without."""
    dice = Random(f"claims {plan.seed}")
    if dice.random() >= seeds or plan.cluster:
        return plan
    nodes = [node for node, _ in plan.nodes]
    hands_over = tuple(node for node in nodes if dice.random() < HANDS_OVER) or (nodes[0],)
    chosen = (
        replace(life, pod=_claiming(life.pod, dice, limited=bool(plan.quotas))) if dice.random() < CLAIM_PODS else life
        for life in plan.pods
    )
    return replace(plan, hands_over=hands_over, pods=tuple(chosen))


def claiming_in_cluster(
    nodes: Sequence[str], lives: "Sequence[PodLife]", dice: Random
) -> "tuple[tuple[str, ...], tuple[PodLife, ...]]":
    """The nodes that hand over, and the pods: some with the claim that admission adds. Not those of a job."""
    hands_over = tuple(node for node in nodes if dice.random() < HANDS_OVER) or (nodes[0],)
    chosen = []
    for life in lives:
        in_job = any(key.startswith("sluice.dev/group") for key, _ in life.pod.ask.annotations)
        claims = dice.random() < CLAIM_PODS and not in_job
        chosen.append(replace(life, pod=replace(life.pod, by_claim=True)) if claims else life)
    return hands_over, tuple(chosen)


def _claiming(pod: Pod, dice: Random, *, limited: bool) -> Pod:
    """The same pod with claims. Not one of a job, whose judge counts all GPUs; limits are judged by first choices."""
    by_claim, has_others, close = dice.random() < 0.8, dice.random() < 0.4, dice.random() < 0.7
    keys = {key for key, _ in pod.ask.annotations}
    if any(key.startswith("sluice.dev/group") for key in keys):
        return pod
    others: tuple[str, ...] = ()
    plain = "sluice.dev/profile" in keys and keys <= _PLAIN
    if plain and pod.ask.end == "bound" and has_others and not limited:
        others = dice.choice(ALTERNATIVES)
    return replace(pod, by_claim=by_claim, alternatives=others, one_gpu=close, shares_claim=dice.random() < SHARED_BY)


def devices_of(pod: Pod) -> list[tuple[Device, ...]]:
    """What serves a pod: its first choice, and each alternative."""
    return [pod.ask.devices, *((Device("profile", profile=name),) for name in pod.alternatives)]


def fit_together(row: GpuRow, held: Sequence[tuple[str, Span]], devices: Sequence[Device]) -> bool:
    """Whether instances for all of these would fit on one GPU beside what is there: every way is tried."""
    if not devices:
        return True
    profile = row.profile(devices[0].profile_on(row, mig=True) or "")
    if profile is None:
        return False
    return any(
        fit_together(row, [*held, (profile.name, span)], devices[1:])
        for span in profile.placements
        if fits_in(row, list(held), profile, span)
    )


def admitted(instruction: object, folder: Folder) -> object:
    """What a source asks for, with what admission adds: the source's core does not know of it."""
    if not isinstance(instruction, Write) or not isinstance(instruction.message, AllocationRequested):
        return instruction
    asked = instruction.message
    pod = next(reversed(folder.written.get(asked.name, {})), None)
    if pod is None:
        return instruction
    alternatives = tuple(
        (Claim(container=f"main/{number}", profile=name),) for number, name in enumerate(pod.alternatives, start=1)
    )
    keys = [claim.container for claims in (asked.claims, *alternatives) for claim in claims]
    uid = f"{asked.owner}{SHARED if pod.shares_claim else '-claim'}"
    named = {key: key for key in keys}
    claims = (ResourceClaimRef(uid=uid, name=f"sluice-{asked.name}", requests=named, shared=pod.shares_claim),)
    exclusive = all(claim.modes == ("exclusive",) for claim in asked.claims)
    message = msgspec.structs.replace(
        asked,
        resource_claims=claims if pod.by_claim else (),
        alternatives=alternatives,
        same_gpu=(tuple(keys[: len(asked.claims)]),) if pod.one_gpu and exclusive else (),
    )
    return msgspec.structs.replace(instruction, message=message)


def as_asked(event: Any) -> Any:
    """What a source's core observes: its own messages, without what admission added."""
    entry = event.entry if isinstance(event, Observed | LastRead) else None
    if entry is None or not isinstance(entry.message, AllocationRequested):
        return event
    message = msgspec.structs.replace(entry.message, resource_claims=(), alternatives=(), same_gpu=())
    return msgspec.structs.replace(event, entry=msgspec.structs.replace(entry, message=message))


def device_names_of(booking: Booking, claim: str) -> list[str]:
    """The names of a claim's devices, counted apart: no two allocations have one in common."""
    digest = sha256(booking.allocation.encode()).hexdigest()[:16]
    wanted = [(one.uid, request) for one in booking.resource_claims for request in sorted(one.requests)]
    return [f"{digest}-{number}" for number, (uid, _) in enumerate(wanted) if uid == claim]


class ClaimJudge:
    """Observes what lands on the bus, after the judge did."""

    def __init__(self, books: Books, hands_over: Sequence[str]) -> None:
        self._books = books
        self.prepared_on: Callable[[Machine, str], object] = lambda _machine, _claim: None
        """The devices of a claim that a node's kubelet knows as prepared; None where it is not."""
        self.by_claim: Callable[[], Collection[str]] = tuple
        """Owners whose devices are handed over by claim."""
        self._hands_over = hands_over
        self._asked: dict[tuple[AllocationId, int], AllocationRequested] = {}
        """What each was booked for: after a wipe its request may name another claim in the same revision."""

    def landed(self, write: Write, _sequence: int) -> None:
        """A booking names the claims that were asked with, on a node that hands over, and its groups are on one GPU; a
        pod is bound to a booking of its claims, if not by a message of before a wipe, which is void."""
        books = self._books
        match write.message:
            case (Grant() | Revoke()) as entry if entry.booking.devices:
                self._check(entry.booking)
            case Bound() as bound if bound.allocation in books.bookings and bound.incarnation not in books.over:
                asked = books.asked.get((bound.request, bound.request_revision))
                self._check_claims(books.bookings[bound.allocation], asked)
            case _:
                pass

    def _check_claims(self, booking: Booking, asked: AllocationRequested | None) -> None:
        if asked is None:
            return
        is_forgotten = asked.held is not None and not asked.resource_claims  # its claim is gone while it runs
        if booking.resource_claims != asked.resource_claims and not is_forgotten:
            text = f"{booking.allocation} has {booking.resource_claims}, and was asked with {asked.resource_claims}"
            self._books.fail("claims", text)

    def _check(self, booking: Booking) -> None:
        key = booking.allocation, booking.request_revision
        asked = self._asked.get(key) or self._books.asked.get((booking.request, booking.request_revision))
        self._check_claims(booking, asked)
        if asked is None:
            return
        self._asked[key] = asked
        if booking.resource_claims and booking.node not in self._hands_over:
            self._books.fail("claims", f"{booking.allocation} is on {booking.node}, which hands none over")
        for names in asked.same_gpu:
            gpus = {device.gpu for device in booking.devices if device.container in names}
            if len(gpus) > 1:
                self._books.fail("one GPU", f"{booking.allocation} has {names} on {sorted(gpus)}")
        keys = {device.container for device in booking.devices}
        sets = [{claim.container for claim in claims} for claims in (asked.claims, *asked.alternatives)]
        if keys not in sets:
            self._books.fail("claims", f"{booking.allocation} is for {sorted(keys)}, and these were asked: {sets}")

    def prepared(self, machine: Machine, claim: str, answer: AnswerCall) -> None:
        """An agent hands a claim over: journalled, its file there with existing devices of a standing booking."""
        records = {each.booking.allocation: each for each in machine.journal if isinstance(each, SliceRecord)}
        named = [each for each in records.values() if claim in each.prepared]
        file = {device.name: device for device in machine.cdi.get(claim, ())}
        names = {device.name for device in answer.devices}
        if any("/" in device.request for device in answer.devices):
            self._books.fail("claims", f"{machine.node} names requests of {claim} that its kubelet lacks: {answer}")
        if not names <= file.keys():
            self._books.fail("claims", f"{machine.node} hands over {names} of {claim}, and its file has {file}")
        of = [each for each in named if names <= set(device_names_of(each.booking, claim))]
        if not of:
            self._books.fail("claims", f"{machine.node} hands over {names} of {claim}, which its journal lacks")
        if all(each.booking.allocation in self._books.said_gone for each in of):
            self._books.fail("claims", f"{machine.node} hands over {claim}, of which it said that it is gone")
        for name in names:
            for part in file[name].parts:
                is_fixed = machine.gpus[part.gpu].layout is not None  # its administrator may just have removed it
                if machine.gpu_with(part.uuid) is None and not is_fixed:
                    self._books.fail("claims", f"{machine.node} hands over {part.uuid} for {claim}, which is not there")

    def hangs(self, machine: Machine, claim: str) -> None:
        """A call of the kubelet is not answered within its bound."""
        self._books.fail("claims", f"{machine.node} does not answer its kubelet about {claim}")

    def file_changed(self, machine: Machine, claim: str, before: Sequence[CdiDevice]) -> None:
        """While a claim is prepared and its slice stands, containers may start: its file is there."""
        books = self._books
        if not before or claim in machine.cdi or self.prepared_on(machine, claim) is None:
            return
        for booking in [one for one in books.bookings.values() if one.node == machine.node]:
            named = claim in {one.uid for one in booking.resource_claims}
            over = booking.allocation in books.revoked or booking.allocation in books.failed
            if not named or over or books.is_ambiguous(booking.allocation):
                continue
            stands = all(machine.behind(p.gpu, p.gi_id) == p.uuid for device in before for p in device.parts)
            homes = {home_of(device.container.mps_pipe_directory) for device in before} - {""}
            if stands and all(machine.mps.alive(home) for home in homes) and booking.allocation in books.ready:
                books.fail("claims", f"{machine.node} removes the file of {claim}, and its pod may start containers")

    def started(self, machine: Machine, process: Process) -> None:
        """A process opens a device by claim: one of a slice that names a claim of its pod."""
        books = self._books
        told = books.told_devices.get(process.device, {})
        owners = {books.bookings[each].owner for each in told}
        may = process.owner in owners or self._shares(machine, process)
        if process.owner in self.by_claim() and told and not may:
            books.fail("claims", f"{process} has opened a device of {sorted(owners)}")

    def _shares(self, machine: Machine, process: Process) -> bool:
        """Whether its pod shares the device: its claim may be prepared before its own `SliceReady` is stored."""
        gpu = machine.gpu_with(process.device)
        span = gpu.span_of(process.device) if gpu is not None else None
        return gpu is not None and any(
            device.share is not None and (device.gpu, (device.start, device.size)) == (gpu.uuid, span)
            for allocation, booking in self._books.bookings.items()
            if (booking.node, booking.owner) == (machine.node, process.owner) and allocation not in self._books.gone
            for device in booking.devices
        )

    def lets(self, pod: Pod, node: str) -> bool:
        """Whether a pod may be on a node, as far as its claims go."""
        return not pod.by_claim or node in self._hands_over
