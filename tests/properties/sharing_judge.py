"""What must hold of all that lands on the bus and of what stands at rest, from scratch, with no shared code."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from judges.amounts import Amount, amount_of
from judges.placements import NodeTruth, Truth
from properties.sharing_facts import Facts

from sluice.contracts import messages as msg
from sluice.contracts.bus.events import Entry
from sluice.contracts.bus.subjects import parse
from sluice.contracts.ids import RunId

if TYPE_CHECKING:
    from sluice.contracts.messages import Share

Devices = tuple[msg.DeviceGrant, ...]


def largest(one: Devices, other: Devices) -> Devices:
    """Each device with the larger of two shares, dimension by dimension."""
    return tuple(
        msgspec.structs.replace(a, share=_largest_share(a.share, b.share)) if a.share and b.share else a
        for a, b in zip(one, other, strict=True)
    )


def _largest_share(one: "Share", other: "Share") -> "Share":
    names = ("memory_mib", "sm_partition", "quota_request_permille", "quota_limit_permille")
    return msgspec.structs.replace(one, **{name: max(getattr(one, name), getattr(other, name)) for name in names})


def most_important(asked: msg.AllocationRequested, sequence: int) -> tuple[int, int]:
    return -asked.priority, sequence


class SharingJudge:
    """Observes what lands, and looks at what stands."""

    def __init__(self, facts: Facts, nodes: dict[str, msg.NodeSnapshot], *, alone: bool) -> None:
        """Nothing has landed. `alone`: there is one allocator, which always knows all there is."""
        self.facts = facts
        self.nodes = nodes
        self.gpus = {gpu.uuid: gpu for node in nodes.values() for gpu in node.gpus}
        self.alone = alone
        self.after: dict[str, tuple[str, ...]] = {}
        """What each grant was to come after."""
        self.uses: dict[str, Devices] = {}
        """The most that the tenant of an allocation may be using, as far as its agent has published."""
        self.asked_at: dict[str, int] = {}
        """The message that gives each request its turn: its first, or the last there was when its allocator began."""
        self.not_the_same: dict[str, None] = {}
        """Requests that were edited while two allocators work: each counts from the first message that it knows."""
        self.failed: dict[str, None] = {}
        """Requests of which a slice could not be made: they may avoid a GPU for a while."""
        self.begun: dict[tuple[str, str], None] = {}
        """Groups of which a member was ever bound."""
        self.ever_of: dict[tuple[str, str], dict[str, None]] = {}
        """All members a group ever had."""
        self.had_slice: dict[str, None] = {}
        """Requests that ever had a slice that was ready."""
        self.adjusted: dict[str, None] = {}
        """Namespaces in which a pod's size was changed."""
        self.first_bound: dict[str, None] = {}
        self.new_grants: list[msg.Grant] = []
        """Since it was last looked at what stands."""
        self.orders: dict[str, msg.EvictionOrdered | None] = {}
        """The last message about each pod's eviction."""

    def begins_anew(self) -> None:
        """The allocator was killed: its successor finds the last message of an edited request, not the first."""
        if self.alone:
            self.asked_at |= self.facts.at["request"]

    # -- what lands ------------------------------------------------------------------------------------------------

    def landed(self, entry: Entry, run: RunId | None) -> None:
        """One value; the facts know it already."""
        message, key = entry.message, parse(entry.subject).key[-1]
        match message:
            case msg.AllocationRequested():
                self._asked(key, message, entry.sequence)
            case msg.SliceFailed():
                self.failed[message.request] = None
            case msg.SliceReady():
                self._ready(key, message)
            case msg.Grant():
                self._granted(message)
            case msg.Bound() if message.allocation not in self.first_bound:
                self.first_bound[message.allocation] = None
                self._is_together(message)
                self._is_within_limits(message)
            case _:
                pass
        if parse(entry.subject).kind == "eviction":
            order = message if isinstance(message, msg.EvictionOrdered) else None
            again = run is not None and order is not None and self.orders.get(key) == order
            assert not (self.alone and again), f"{key} is ordered out twice: {order}"
            self.orders[key] = order

    def _asked(self, request: str, asked: msg.AllocationRequested, sequence: int) -> None:
        if self.asked_at.setdefault(request, sequence) != sequence and not self.alone:
            self.not_the_same[request] = None
        if asked.group is not None:
            self.ever_of.setdefault((asked.namespace, asked.group.name), {})[request] = None

    def _ready(self, allocation: str, ready: msg.SliceReady) -> None:
        self.had_slice[ready.request] = None
        granted = self.facts.of["ledger"][allocation]
        if granted.revision == ready.revision and not ready.shrinking:
            self.uses[allocation] = granted.booking.devices

    def _granted(self, grant: msg.Grant) -> None:
        booking = grant.booking
        known = self.uses.get(booking.allocation, booking.devices)
        self.uses[booking.allocation] = largest(known, booking.devices)
        if grant.revision > 1:
            self.adjusted[booking.namespace] = None
            return
        if grant.evict and self.alone:
            self._keeps_guarantees(grant)
        self.after[booking.allocation] = grant.after
        self.new_grants.append(grant)
        cordon = self.facts.of["cordon"].get(booking.node)
        for device in booking.devices if isinstance(cordon, msg.Cordoned) else ():
            shut = not cordon.gpus or device.gpu in cordon.gpus
            assert not shut, f"{booking.allocation} is put on what is cordoned"
        self._is_in_turn(booking)

    def _keeps_guarantees(self, grant: msg.Grant) -> None:
        """An eviction for another namespace leaves the victim's its guarantee, when all victims are gone."""
        live = self.facts.live()
        evicting = [each for each in live.values() if isinstance(each, msg.Grant) and each.evict]
        going = {each for promise in evicting for each in promise.after}
        lost = [entry.booking for each, entry in live.items() if each in grant.after]
        for namespace in {booking.namespace for booking in lost} - {grant.booking.namespace}:
            quota = self.facts.of["quota"].get(namespace)
            of_it = [entry.booking for entry in live.values() if entry.booking.namespace == namespace]
            stay = [
                each for each in of_it if isinstance(live[each.allocation], msg.Grant) and each.allocation not in going
            ]
            takes = self.amounts([each for each in lost if each.namespace == namespace])
            sure = _limits(quota.guaranteed) if isinstance(quota, msg.QuotaSet) else (None, None, None)
            for least, left, taken in zip(sure, self.amounts(stay), takes, strict=True):
                short = least is not None and taken > 0 and left < least
                assert not short, f"{namespace} has {left} left of {least} for {grant.booking.allocation}"

    def _is_in_turn(self, booking: msg.Booking) -> None:
        mine = self._turn(booking.request)
        for promise in self.promises():
            other = promise.booking
            if promise.evict or other.request == booking.request or mine is None:
                continue
            theirs = self._turn(other.request)
            overlap = any(_in_the_way(one, another) for one in booking.devices for another in other.devices)
            if overlap and theirs is not None and theirs[0] <= mine[0] and theirs[1] < mine[1]:
                raise AssertionError(f"{booking.allocation} is put where {other.allocation} was promised a place")

    def _turn(self, request: str) -> tuple[int, int] | None:
        """None where no request is left, or where it is not known to all since when one waits."""
        asked = self.facts.living().get(request)
        known = asked is not None and request not in self.not_the_same
        return most_important(asked, self.asked_at[request]) if known and asked is not None else None

    def _is_together(self, bound: msg.Bound) -> None:
        """No pod of a group begins before there is a slice for each; once it has begun, further ones may."""
        asked = self.facts.living().get(bound.request)
        if asked is None or asked.group is None:
            return
        key = (asked.namespace, asked.group.name)
        if self.alone:
            others = [each for each in self._members(key) if each != bound.request and each in self.facts.bound()]
            has_begun = bool(others)
            ready = [each for each in self._members(key) if self._has_slice(each)]
        else:  # a member that is gone since may not be known to have gone by the one that said so
            has_begun = key in self.begun
            ready = [each for each in self.ever_of.get(key, ()) if each in self.had_slice]
        assert has_begun or len(ready) >= asked.group.size, f"{bound.request} is bound, and of {key} only {ready} ready"
        self.begun[key] = None

    def _has_slice(self, request: str) -> bool:
        slices = self.facts.of["slice"]
        return any(
            isinstance(slices.get(each.booking.allocation), msg.SliceReady) for each in self.facts.granted(request)
        )

    def _members(self, key: tuple[str, str]) -> list[str]:
        living = self.facts.living().items()
        return [each for each, asked in living if asked.group and (asked.namespace, asked.group.name) == key]

    def _is_within_limits(self, bound: msg.Bound) -> None:
        """What is bound of a namespace is within its limits, as far as it was granted under them."""
        grant = self.facts.of["ledger"].get(bound.allocation)
        if not isinstance(grant, msg.Grant):
            return
        namespace = grant.booking.namespace
        quota = self.facts.of["quota"].get(namespace)
        said_at = self.facts.at["quota"].get(namespace, 0)
        if not isinstance(quota, msg.QuotaSet) or self.facts.at["ledger"][bound.allocation] < said_at:
            return
        if not self.alone and namespace in self.adjusted:
            return  # who is bound and made larger was not among what another process has read before it bound
        bookings = [each.booking for each in self.facts.bound().values() if each.booking.namespace == namespace]
        over = too_much(quota.total, self.amounts(bookings), self.amounts([grant.booking]))
        assert not over, f"{namespace} has {over} bound with {bound.allocation}"

    def amounts(self, bookings: Iterable[msg.Booking]) -> Amount:
        """What bookings come to, by the most that each may be using."""
        parts = [amount_of(device, self.gpus[device.gpu]) for each in bookings for device in self.devices(each)]
        found = [sum(column) for column in zip(*parts, strict=True)] or [0, 0, 0]
        return found[0], found[1], found[2]

    def devices(self, booking: msg.Booking) -> Devices:
        return self.uses.get(booking.allocation, booking.devices)

    # -- what stands -----------------------------------------------------------------------------------------------

    def promises(self) -> list[msg.Grant]:
        """Grants that still wait for others to be gone."""
        return [
            each
            for each in self.facts.live().values()
            if isinstance(each, msg.Grant) and not all(self.facts.is_gone(other) for other in each.after)
        ]

    def truth(self, left_out: Iterable[str] = ()) -> Truth:
        """Everything that is booked, by the most that it may be using."""
        nodes = {}
        for name, snapshot in self.nodes.items():
            cordon = self.facts.of["cordon"].get(name)
            gpus = frozenset(gpu.uuid for gpu in snapshot.gpus)
            shut = frozenset(cordon.gpus or gpus) if isinstance(cordon, msg.Cordoned) else frozenset()
            nodes[name] = NodeTruth(snapshot, cordoned=shut)
        out = dict.fromkeys(left_out)
        bookings = {
            each: msgspec.structs.replace(entry.booking, devices=self.devices(entry.booking))
            for each, entry in self.facts.live().items()
            if each not in out
        }
        return Truth(nodes, bookings)

    def waits_for_others(self, allocation: str) -> bool:
        """Whether a place was to be had after others who are still there, be it revoked by now."""
        return not all(self.facts.is_gone(each) for each in self.after.get(allocation, ()))

    def places(self) -> None:
        """Nothing is given twice: now, and when those have gone who are waited for."""
        live = self.facts.live()
        waiting = [each for each in live if self.waits_for_others(each)]
        wrong = self.truth(waiting).violations()
        assert not wrong, wrong
        given_up = [each for each in waiting if isinstance(live[each], msg.Revoke)]
        leaving = [each for promise in self.promises() for each in promise.after]
        wrong = self.truth([*leaving, *given_up]).violations()
        assert not wrong, f"when {leaving} have gone: {wrong}"

    def halves(self) -> None:
        """At rest: no group that has not begun holds a place."""
        bound = self.facts.bound()
        placed: Counter[tuple[str, str]] = Counter()
        for request, asked in self.facts.living().items():
            if asked.group is not None and self.facts.granted(request):
                placed[asked.namespace, asked.group.name] += 1
        for key, count in placed.items():
            begun = any(each in bound for each in self._members(key))
            assert begun, f"{count} pods of {key} have had places for very long, and none is bound"


def too_much(limits: msg.Amounts, has: Amount, takes: Amount) -> str:
    """Which limits the namespace would exceed, of those that the new one counts towards; empty where none."""
    rows = zip(("devices", "MiB", "permille"), _limits(limits), has, takes, strict=True)
    return ", ".join(f"{h} of {m} {n}" for n, m, h, t in rows if m is not None and t > 0 and h > m)


def _limits(amounts: msg.Amounts) -> tuple[int | None, int | None, int | None]:
    slices = amounts.compute_slices
    return amounts.gpus, amounts.memory_mib, slices * 1000 if slices is not None else None


def _in_the_way(one: msg.DeviceGrant, other: msg.DeviceGrant) -> bool:
    """Whether two devices cannot both be there: shares of one home can, as far as there is room."""
    if one.gpu != other.gpu or one.start >= other.start + other.size or other.start >= one.start + one.size:
        return False
    same_home = (one.profile, one.start, one.size) == (other.profile, other.start, other.size)
    return one.share is None or other.share is None or not same_home
