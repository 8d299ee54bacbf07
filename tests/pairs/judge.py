"""What must hold at every moment, from what lands on the bus and agents are about to do; by `tests/judges` alone."""

from collections.abc import Iterable, Mapping
from itertools import chain

import msgspec
from judges.amounts import amount_of
from judges.placements import NodeTruth, Truth
from pairs.bus import OTHERS, Bus
from properties.sharing_judge import Devices, largest, too_much

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Write
from sluice.contracts.ids import AllocationId, NodeName, RequestId


class ViolationError(Exception):
    """Something that must be so is not."""

    def __init__(self, rule: str, text: str) -> None:
        """`rule`: its name, by which the same is found again."""
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class Landed(msgspec.Struct, frozen=True):
    """What an allocator has written."""

    at: float
    by: str
    subject: str
    message: msg.AnyMessage

    def __str__(self) -> str:
        return f"{self.at:8.3f} {self.by} {self.subject} {brief(self.message)}"


class Judge:
    """Observes everything at once, and keeps the books."""

    def __init__(self, bus: Bus, snapshots: Mapping[NodeName, msg.NodeSnapshot], *, is_told: bool = False) -> None:
        """`is_told`: keep the lines of all that happens."""
        self.lines: list[str] | None = [] if is_told else None
        self.written: list[Landed] = []
        """By allocators."""
        self.evicted: list[tuple[float, RequestId, str]] = []
        """When, who, and the name under which it comes again."""
        self.blocked: list[tuple[float, RequestId]] = []
        """When, and which requests could not be evicted then."""
        self.failed: dict[AllocationId, None] = {}
        self.edited: list[tuple[float, RequestId]] = []
        """When the message of an edited request landed, again maybe."""
        self.made: dict[AllocationId, None] = {}
        """Allocations that were ready at any time."""
        self.of_allocation: dict[AllocationId, RequestId] = {}
        """The request of each allocation that is or was."""
        self.revoked_at: dict[AllocationId, float] = {}
        self.standing: dict[AllocationId, msg.Grant | msg.Revoke] = {}
        """What is booked and not gone."""
        self._bus = bus
        self._nodes = snapshots
        self._gpus = {gpu.uuid: gpu for node in snapshots.values() for gpu in node.gpus}
        self._after: dict[AllocationId, tuple[AllocationId, ...]] = {}
        self._granted_at: dict[AllocationId, int] = {}
        """By sequence: what was granted later was not known to who bound an earlier one."""
        self._limits: dict[str, tuple[int, msg.QuotaSet | msg.QuotaUnset]] = {}
        self._bound: dict[AllocationId, None] = {}
        self._uses: dict[AllocationId, Devices] = {}
        """The most that a tenant may be using, as far as its agent has published."""
        self._resized: dict[str, None] = {}
        """Namespaces in which a pod's size was changed."""
        bus.on_landed.append(self._landed)
        bus.on_refused.append(self._refused)

    # -- what agents and the source do -----------------------------------------------------------------------------

    def makes(self, booking: msg.Booking, there: Iterable[msg.Booking]) -> None:
        """An agent begins with a slice: it is in no request's way."""
        for other in there:
            if in_the_way(booking, other):
                raise ViolationError("made twice", f"{booking.devices} over {other.devices} of {other.allocation}")

    def unmakes(self, booking: msg.Booking, cause: str) -> None:
        """An agent takes a slice back: no living pod has it."""
        last = self._bus.values.last(subjects.request(booking.request).subject, self._bus.now)
        asked = last.message if last is not None else None
        has_it = isinstance(asked, msg.AllocationRequested) and asked.held is not None
        if has_it and asked.held.allocation == booking.allocation:
            raise ViolationError("taken from a pod", f"{booking.allocation}: {cause}")

    def binds(self, held: AllocationId, bound: msg.Bound) -> None:
        """The source reads a binding of a pod that has something."""
        if bound.allocation != held:
            raise ViolationError("bound twice", f"{bound.request} holds {held} and is bound to {bound.allocation}")

    def evicts(self, request: RequestId, name: str) -> None:
        self.evicted.append((self._bus.now, request, name))

    def counted(self) -> tuple[int, int]:
        """How many promises were exchanged, and for how many pods a place was booked to be moved to."""
        grants = [each.message for each in self.written if isinstance(each.message, msg.Grant) and each.message.after]
        own = [each for each in grants if self.of_allocation.get(each.after[0]) == each.booking.request]
        return sum(not each.evict for each in own), sum(each.evict for each in own)

    # -- what lands ------------------------------------------------------------------------------------------------

    def _refused(self, writer: str, write: Write) -> None:
        if self.lines is not None:
            self.lines.append(f"{self._bus.now:8.3f} {writer} REFUSED {write.subject} {brief(write.message)}")

    def _landed(self, writer: str, entry: Entry) -> None:
        message = entry.message
        landed = Landed(self._bus.now, writer, entry.subject, message)
        if self.lines is not None:
            self.lines.append(str(landed))
        if writer != OTHERS:
            self.written.append(landed)
        match message:
            case msg.Grant():
                self._granted(message, entry.sequence)
            case msg.EvictionBlocked():
                self.blocked.append((self._bus.now, message.request))
            case msg.Revoke():
                self.standing[message.booking.allocation] = message
                self.revoked_at.setdefault(message.booking.allocation, self._bus.now)
            case msg.Closed() | msg.SliceGone():
                self.standing.pop(message.allocation, None)
            case msg.SliceReady():
                self._is_ready(message)
            case msg.QuotaSet() | msg.QuotaUnset():
                self._limits[message.namespace] = (entry.sequence, message)
            case msg.Bound() if message.allocation not in self._bound:
                self._bound[message.allocation] = None
                self._is_within_limits(message.allocation)
            case _:
                self._excuses(entry)

    def _excuses(self, entry: Entry) -> None:
        """Why a place comes to nothing without a fault of the allocators."""
        if isinstance(entry.message, msg.SliceFailed):
            self.failed[entry.message.allocation] = None
        elif isinstance(entry.message, msg.AllocationRequested) and entry.message.revision > 1:
            self.edited.append((self._bus.now, RequestId(entry.subject.rpartition(".")[2])))

    def _granted(self, grant: msg.Grant, sequence: int) -> None:
        booking = grant.booking
        allocation = booking.allocation
        self.standing[allocation] = grant
        self.of_allocation[allocation] = booking.request
        self._granted_at.setdefault(allocation, sequence)
        self._uses[allocation] = largest(self._uses.get(allocation, booking.devices), booking.devices)
        if grant.revision > 1:
            self._resized[booking.namespace] = None
            return
        self._after[allocation] = grant.after
        self._is_patient(grant)
        self._is_given_once(booking)

    def _is_patient(self, grant: msg.Grant) -> None:
        """No other pod is evicted for a request that never preempts."""
        last = self._bus.values.last(subjects.request(grant.booking.request).subject, self._bus.now)
        asked = last.message if last is not None else None
        others = [
            each
            for each in grant.after
            if self.of_allocation.get(each) != grant.booking.request and not self._is_kept(each)
        ]
        if grant.evict and others and isinstance(asked, msg.AllocationRequested) and not asked.preempts:
            raise ViolationError("never preempts", f"{others} are evicted for {grant.booking.request}")

    def _is_kept(self, allocation: AllocationId) -> bool:
        """Whether it is a place kept for a moved pod's replacement, with no pod on it."""
        after, request = self._after.get(allocation, ()), self.of_allocation.get(allocation)
        return bool(after) and all(self.of_allocation.get(each) == request for each in after)

    def _is_ready(self, ready: msg.SliceReady) -> None:
        self.made[ready.allocation] = None
        granted = self.standing.get(ready.allocation)
        if granted is not None and granted.revision == ready.revision and not ready.shrinking:
            self._uses[ready.allocation] = granted.booking.devices

    def waits(self, allocation: AllocationId) -> bool:
        """Whether others must be gone before a booking is carried out."""
        return any(each in self.standing for each in self._after.get(allocation, ()))

    def _is_given_once(self, booking: msg.Booking) -> None:
        waiting = [each for each in self.standing if self.waits(each)]
        given_up = [each for each in waiting if isinstance(self.standing[each], msg.Revoke)]
        promised = [each for each in waiting if isinstance(self.standing[each], msg.Grant)]
        leaving = chain.from_iterable(self._after[each] for each in promised)
        for when, left_out in (("now", waiting), ("when others are gone", [*leaving, *given_up])):
            wrong = self.truth(booking.node, left_out).violations()
            if wrong:
                raise ViolationError("given twice", f"{when}, with {booking.allocation}: {wrong}")

    def truth(self, node: NodeName, left_out: Iterable[AllocationId] = ()) -> Truth:
        """What is booked on a node, by the most that each may be using."""
        out = dict.fromkeys(left_out)
        bookings = {
            each: msgspec.structs.replace(entry.booking, devices=self._uses[each])
            for each, entry in self.standing.items()
            if each not in out and entry.booking.node == node
        }
        return Truth({node: NodeTruth(self._nodes[node])}, bookings)

    def _is_within_limits(self, allocation: AllocationId) -> None:
        """What is bound of a namespace is within its limits, as far as it was granted under them."""
        granted = self.standing.get(allocation)
        if not isinstance(granted, msg.Grant):
            return
        namespace, mine = granted.booking.namespace, self._granted_at[allocation]
        said_at, quota = self._limits.get(namespace, (0, None))
        if not isinstance(quota, msg.QuotaSet) or mine < said_at or namespace in self._resized:
            return
        bookings = [
            entry.booking
            for each, entry in self.standing.items()
            if isinstance(entry, msg.Grant)
            and entry.booking.namespace == namespace
            and self._granted_at[each] <= mine
            and self._is_bound(entry.booking)
        ]
        over = too_much(quota.total, self._amounts(bookings), self._amounts([granted.booking]))
        if over:
            raise ViolationError("over its limits", f"{namespace}: {over} with {allocation}")

    def _is_bound(self, booking: msg.Booking) -> bool:
        last = self._bus.values.last(subjects.binding(booking.request).subject, self._bus.now)
        bound = last.message if last is not None else None
        return isinstance(bound, msg.Bound) and bound.allocation == booking.allocation

    def _amounts(self, bookings: Iterable[msg.Booking]) -> tuple[int, int, int]:
        devices, memory_mib, permille = 0, 0, 0
        for device in chain.from_iterable(each.devices for each in bookings):
            amount = amount_of(device, self._gpus[device.gpu])
            devices, memory_mib, permille = devices + amount[0], memory_mib + amount[1], permille + amount[2]
        return devices, memory_mib, permille


def in_the_way(one: msg.Booking, other: msg.Booking) -> bool:
    """Whether two slices cannot be there at once; shares of one home of one user can."""
    same_user = one.namespace == other.namespace
    return any(_overlap(mine, its, same_user=same_user) for mine in one.devices for its in other.devices)


def _overlap(one: msg.DeviceGrant, other: msg.DeviceGrant, *, same_user: bool) -> bool:
    if one.gpu != other.gpu or one.start >= other.start + other.size or other.start >= one.start + one.size:
        return False
    same_place = (one.profile, one.start, one.size) == (other.profile, other.start, other.size)
    if one.share is None or other.share is None or not same_place:
        return True
    return not same_user or (one.share.uid, one.share.mode) != (other.share.uid, other.share.mode)


def brief(message: msg.AnyMessage) -> str:
    """A message in a line of the trace."""
    name = type(message).__name__
    match message:
        case msg.Grant(booking=booking):
            devices = [(d.gpu, d.profile, d.start, d.share.memory_mib if d.share else "") for d in booking.devices]
            evict = " evict" if message.evict else ""
            return f"{name} r{message.revision} {devices} after={message.after}{evict} {booking.instead_of}"
        case msg.Revoke():
            return f"{name} r{message.revision}: {message.cause}"
        case msg.Pending():
            return f"{name} {message.message[:120]}"
        case msg.AllocationRequested():
            claims = [(claim.profile, claim.gpus, claim.memory_mib) for claim in message.claims]
            held = message.held.allocation if message.held is not None else ""
            return f"{name} r{message.revision} {message.namespace} {claims} p{message.priority} {held}"
        case _:
            return f"{name} {message}"[:200]
