"""Shares whose size is changed while they are used: which, when, and what the judge knows of sizes.

The judge adds up what processes may really use: what their container was started with, and never more than its
server let it have. And it counts what was granted, a second time: a share that was changed is as large as the largest
of its grants, until its agent has said that it is as ordered and that nothing larger is used any more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from msgspec.structs import replace as changed
from simulation.judges.share_limits import home_gives, width_of
from simulation.plans.pods import Pod
from simulation.world.hardware import Gpu, Machine, Process
from simulation.world.mps_daemons import clients_of

from sluice.contracts import messages as msg
from sluice.contracts.ids import RequestId
from sluice_allocator.core.events import AdjustAsked, AnswerAdjust
from sluice_allocator.core.resize.pending import Adjusted, Change, Field, Outcome

if TYPE_CHECKING:
    from simulation.plans.plan import Plan
    from simulation.world.manifest_folder import Kubelets
    from simulation.world.services import AllocatorHost

Sized = msg.SliceReady | msg.SliceFailed | msg.SliceDegraded
"""The messages that say whether more is used of a slice than was ordered last."""
RESIZING_SEEDS = 0.6
"""In so many of the seeds in which pods share, some shares are made larger and smaller."""
RESIZINGS_MEAN = 10
SIZES = (300, 900, 1500, 2400, 4000, 9000, 15000)
WIDTHS = (5, 10, 25, 40, 60)
LOOKED_AT_S = 8.0
"""So soon after its first message an agent has looked: older processes may count as ones that use the old size."""
RESTARTING = 0.6
"""So often its owner restarts the pod then, so that it uses what it has now."""


@dataclass(frozen=True, slots=True)
class Resizing:
    """An operator resizes the shares of a pod; `restart_s` later the pod is restarted (None: it is not)."""

    at: float
    pod: str
    memory_mib: int
    sm_partition: int | None = None
    restart_s: float | None = None


def with_resizings(plan: "Plan") -> "Plan":
    """In some seeds shares are changed: drawn apart. Not with quotas, whose judge counts what is booked only."""
    dice = Random(f"sizes {plan.seed}")
    sharing = [life for life in plan.pods if _shares(life.pod)]
    if dice.random() >= RESIZING_SEEDS or not sharing or plan.quotas:
        return plan
    found = []
    for _ in range(round(dice.gammavariate(3, RESIZINGS_MEAN / 3))):
        life = dice.choice(sharing)
        at = life.made_at + dice.expovariate(1 / 8)
        width = dice.choice(WIDTHS) if life.pod.ask.devices[0].modes == ("fractional",) else None
        restart = dice.uniform(0.5, 6.0) if dice.random() < RESTARTING else None
        if at < plan.faults_until:
            width = width if dice.random() < 0.6 else None
            found.append(Resizing(at, life.pod.name, dice.choice(SIZES), width, restart))
    return replace(plan, resizings=tuple(sorted(found, key=lambda each: each.at)))


def _shares(pod: Pod) -> bool:
    return any(mode != "exclusive" for device in pod.ask.devices for mode in device.modes)


class Resizer:
    """Asks one of the allocators, and restarts pods when that is done."""

    def __init__(self, allocators: Sequence["AllocatorHost"], kubelets: "Kubelets", dice: Random) -> None:
        self._allocators = allocators
        self._kubelets = kubelets
        self._dice = dice
        self._number = 0
        self._asked: dict[int, tuple[str, Resizing]] = {}
        self.outcomes: list[Outcome] = []
        for host in allocators:
            host.on_answer.append(self._answered)

    def resize(self, resizing: Resizing, requests: dict[str, msg.AllocationRequested]) -> None:
        request = next((each for each in reversed(requests) if requests[each].name == resizing.pod), None)
        alive = [host for host in self._allocators if host.alive]
        if request is None or not alive:
            return
        self._number += 1
        self._asked[self._number] = (request, resizing)
        values: dict[Field, int] = {"memory_mib": resizing.memory_mib}
        if resizing.sm_partition is not None:
            values["sm_partition"] = resizing.sm_partition
        change = Change(RequestId(request), "", values)
        self._dice.choice(alive).offer(AdjustAsked(self._number, change))

    def _answered(self, answer: AnswerAdjust) -> None:
        request, resizing = self._asked.pop(answer.number)
        self.outcomes.append(answer.outcome)
        if isinstance(answer.outcome, Adjusted) and resizing.restart_s is not None:
            self._kubelets.restart(request, after_s=resizing.restart_s)


@dataclass(slots=True)
class Sizes:
    """Per allocation the grants that it may still be used as, by revision; and how each was granted."""

    standing: dict[str, dict[int, msg.Booking]] = field(default_factory=dict)
    as_granted: dict[tuple[str, int], msg.Booking] = field(default_factory=dict)
    _since: dict[tuple[str, int], int] = field(default_factory=dict)
    """In which boot of its node each size was granted first."""
    changed: dict[str, None] = field(default_factory=dict)
    """What was granted more than once, ever."""
    told_at: dict[tuple[str, int], float] = field(default_factory=dict)
    """When an agent first said of a slice that it is as this revision ordered."""
    began: dict[tuple[str, int], float] = field(default_factory=dict)
    """When each process began, by its node and its id there."""
    _is_alone: dict[str, int] = field(default_factory=dict)
    """The revision beside which nothing older counts any more: so its agent showed, or wanted to say, if not told."""
    _announced: dict[str, msg.Grant] = field(default_factory=dict)
    """Orders that count as they are until answered, and were not, or by a ready slice only, which the revoking process
    may not have read. A late reader reports more than is used, and its revoke repeats it: that amount is neither
    granted nor used."""

    def granted(self, grant: msg.Grant, boots: int) -> None:
        """A size is in the ledger of a node in its `boots`-th boot.

        Of an agent's slice that is adopted, sizes do not count that it never heard of; nor, when it says that it counts
        nothing else, those of a life before, for no process and no ticket of then is left, and those beside which it
        wanted to say so in its own words, which a wiped broker may not have taken, or has shown so.
        """
        allocation, revision = grant.booking.allocation, grant.revision
        known = self.standing.setdefault(allocation, {})
        if grant.adopted:
            known = self._adopted(allocation, revision, boots if not grant.counts else None)
        if grant.counts:
            self._announced[allocation] = grant
        else:
            self._announced.pop(allocation, None)
        self._since.setdefault((allocation, revision), boots)
        known[revision] = self.as_granted[allocation, revision] = grant.booking
        if len(known) > 1:
            self.changed[allocation] = None

    def entered_as_revoked(self, revoke: msg.Revoke, boots: int) -> None:
        """What an agent unmakes is in the ledger of a new incarnation of the bus, as large as the agent says it is."""
        allocation, revision = revoke.booking.allocation, revoke.revision
        self._adopted(allocation, revision, boots)[revision] = revoke.booking
        self._since.setdefault((allocation, revision), boots)

    def _adopted(self, allocation: str, revision: int, boots: int | None) -> dict[int, msg.Booking]:
        """What may still count beside an agent's message; `boots`: it counts nothing else, in this boot of its node."""
        known = {each: booking for each, booking in self.standing.get(allocation, {}).items() if each <= revision}
        if boots is not None:
            alone = self._is_alone.get(allocation, 0)
            known = {
                each: booking
                for each, booking in known.items()
                if each >= alone and self._since.get((allocation, each)) == boots
            }
        self.standing[allocation] = known
        return known

    def wanted(self, word: Sized) -> None:
        """What an agent is about to say of a slice."""
        if not word.shrinking:
            self._is_alone[word.allocation] = word.revision

    def shown(self, snapshot: msg.NodeSnapshot) -> None:
        """What an agent shows when pulled: messages wait while the broker does not answer, this does not."""
        for report in snapshot.slices:
            if not report.counts:
                self._is_alone[report.booking.allocation] = report.revision

    def said(self, word: Sized, now: float) -> None:
        """An agent has said what a slice is now."""
        if isinstance(word, msg.SliceReady) or not word.shrinking:
            self.told_at.setdefault((word.allocation, word.revision), now)
        known = self.standing.get(word.allocation, {})
        if not word.shrinking and word.revision in known:
            self.standing[word.allocation] = {each: known[each] for each in known if each >= word.revision}
        announced = self._announced.get(word.allocation)
        ails = not isinstance(word, msg.SliceReady) and not word.shrinking
        if announced is not None and ails and word.revision >= announced.revision:
            del self._announced[word.allocation]

    def most(self, booking: msg.Booking) -> tuple[msg.DeviceGrant, ...]:
        """The devices of a booking, each share as large as it may still be used."""
        return self._devices(booking, _most)

    def least(self, booking: msg.Booking) -> msg.Booking:
        """The same with each share as small as it was ordered: less no server may let it have."""
        return changed(booking, devices=self._devices(booking, _least))

    def _devices(
        self, booking: msg.Booking, pick: Callable[[Sequence[msg.Share]], msg.Share]
    ) -> tuple[msg.DeviceGrant, ...]:
        announced, standing = self._announced.get(booking.allocation), self.standing.get(booking.allocation, {})
        is_only_said = announced is not None and announced.counts == booking.devices and bool(standing)
        every = [*standing.values()] if is_only_said else [booking, *standing.values()]
        found = []
        for number, device in enumerate(booking.devices):
            shares = [share for one in every if (share := one.devices[number].share) is not None]
            found.append(changed(device, share=pick(shares)) if shares else device)
        return tuple(found)

    def wrong_words(self, ready: msg.SliceReady) -> str:
        """What an agent says of a slice is what was granted with that revision; empty when it is."""
        booking = self.as_granted.get((ready.allocation, ready.revision))
        wants = _told(booking) if booking is not None else {}
        told = {one.container: one.memory_mib for one in ready.containers if one.container in wants}
        return f"{ready.allocation} {ready.revision} says {told}, granted {wants}" if told != wants else ""

    def wrong_limits(self, machine: Machine, ready: msg.SliceReady) -> str:
        """What an agent lacks of its server; nothing when the order is not the last one, which may be lost."""
        booking = self.as_granted.get((ready.allocation, ready.revision))
        if booking is None or ready.revision != max(self.standing.get(ready.allocation, {0: None})):
            return ""
        if machine.forgot_at and (ready.allocation, ready.revision + 1) in self.as_granted:
            return ""
        for device, state in zip(booking.devices, ready.devices, strict=True):
            gpu = machine.gpus[device.gpu]
            for daemon in machine.mps.serving(state.uuid) if device.share is not None else ():
                width = width_of(device.share, gpu.row, device.profile or "")
                if daemon.percent < width or daemon.memory_mib < device.share.memory_mib:
                    return f"{ready.allocation} says {device.share}, and its server allows {daemon.memory_mib} MiB"
        return ""

    def undone(self, bound: msg.Bound, booking: msg.Booking, processes: list[Process], machine: Machine) -> str:
        """What is missing until a changed share is published to its pod, and counts no more than is used."""
        wants = _told(booking)
        told = {one.container: one.memory_mib for one in bound.containers if one.container in wants}
        if told != wants:
            return f"{booking.name} is given {told}, and has {wants}"
        if len(self.standing.get(booking.allocation, {})) < 2:
            return ""
        shares = [share for device in booking.devices if (share := device.share) is not None]
        most = [share for device in self.most(booking) if (share := device.share) is not None]
        is_wider = [share.sm_partition for share in most] != [share.sm_partition for share in shares]
        least = 0 if is_wider else min(share.memory_mib for share in shares)
        last = max(self.standing[booking.allocation])
        since = max(self.told_at.get((booking.allocation, last), 0.0), machine.forgot_at)
        is_used = any(
            one.memory_mib > least or self.began[booking.node, one.pid] < _looked_at(machine, one.home, since)
            for one in processes
        )
        return "" if is_used else f"{booking.name} counts {self.most(booking)}, and does not use that"


def overused(gpu: Gpu, home: str, profile: str) -> str:
    """What the clients of a home may use together, when that is more than it has; empty when it is not."""
    memory_mib, _ = home_gives(gpu.row, profile)
    clients = clients_of(gpu, home)
    used = sum(process.memory_mib for process in clients)
    return f"{clients} may use {used} of {memory_mib} MiB" if used > memory_mib else ""


def _looked_at(machine: Machine, home: str, since: float) -> float:
    """When an agent has looked who is in a home: a daemon on a slow GPU answers late."""
    first = next((answered for asked, answered in machine.looks.get(home, ()) if asked >= since), 0.0)
    return max(first, since + LOOKED_AT_S)


def limit_mib(pinned_memory_limit: str) -> int:
    """The MiB of a container's limit, as written: `0=900M`."""
    return int(pinned_memory_limit.removeprefix("0=").removesuffix("M") or 0)


def _told(booking: msg.Booking) -> dict[str, int]:
    wants: dict[str, int] = {}
    for device in booking.devices:
        if device.share is not None:
            wants[device.container] = wants.get(device.container, 0) + device.share.memory_mib
    alone = {device.container for device in booking.devices if device.share is None}
    return {container: mib for container, mib in wants.items() if container not in alone}


def _most(shares: Sequence[msg.Share]) -> msg.Share:
    return changed(
        shares[0],
        memory_mib=max(share.memory_mib for share in shares),
        sm_partition=0 if any(not share.sm_partition for share in shares) else max(s.sm_partition for s in shares),
    )


def _least(shares: Sequence[msg.Share]) -> msg.Share:
    bounded = [share.sm_partition for share in shares if share.sm_partition]
    return changed(
        shares[0], memory_mib=min(share.memory_mib for share in shares), sm_partition=min(bounded, default=0)
    )
