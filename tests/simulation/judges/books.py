"""The judge's own records of everything published and done; shares only message types with the system."""

from collections import Counter
from collections.abc import Callable

from simulation.judges import shared_devices
from simulation.judges.given_up import GivenUp
from simulation.judges.gpu_tables import Span
from simulation.judges.share_limits import Held, held_by
from simulation.judges.sizes import Sizes
from simulation.world.hardware import Gpu, Machine, Process
from simulation.world.manifest_folder import Folder, Kubelets
from simulation.world.virtual_clock import VirtualClock

from sluice.contracts.ids import OperationId
from sluice.contracts.messages import AllocationRequested, Booking, Bound, Closed, Grant, NodeOpened, Revoke, SliceReady
from sluice.contracts.messages import Held as HeldByPod
from sluice_node_agent.core.journal_records import SliceRecord, Tombstone


class ViolationError(Exception):
    """An invariant does not hold. `rule` names it."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule
        self.text = text


class Books:
    """All that is known."""

    def __init__(
        self, clockwork: VirtualClock, machines: dict[str, Machine], folder: Folder, kubelets: Kubelets
    ) -> None:
        self.clockwork = clockwork
        self.machines = machines
        self.folder = folder
        self.kubelets = kubelets
        self.bookings: dict[str, Booking] = {}
        self.ledger: dict[str, dict[str, Grant | Revoke | Closed]] = {}
        self.heads: dict[str, NodeOpened] = {}
        self.compete: Callable[[], bool] = lambda: False
        """Whether two allocators work now: they may repeat themselves while one of them reads late (ADR 0071)."""
        self.opened: Counter[str] = Counter()
        """How often each node was opened while one allocator worked."""
        self.adopted_revoked: dict[str, None] = {}
        """Entered in this incarnation of the bus as being revoked already, or revoked when its pod was let go late."""
        self.taken_back_at: dict[str, float] = {}
        """Of those, when the ledger closed them: a process that ordered their pods to go may not have read that."""
        self.over: set[str] = set()
        """The incarnations of the bus that were ended by a wipe: no agent acts on an order of theirs."""
        self.after: dict[str, tuple[str, ...]] = {}
        """The allocations that each one was granted to wait for."""
        self.gone: dict[str, None] = {}
        self.said_gone: dict[str, None] = {}
        """What agents wanted to publish is gone, and was (checked then): a wiped broker may never have had it."""
        self.revoked: dict[str, None] = {}
        self.failed: dict[str, None] = {}
        self.never_made: dict[str, None] = {}
        """Those of them that came to nothing; others have lost what they had, and are their pods' nevertheless."""
        self.were_on_lost_disk: dict[str, None] = {}
        """What was not gone on a node that was switched off and came back with an empty disk."""
        self.ended_with_disk: dict[str, None] = {}
        """Revoked when no record was left that they are gone."""
        self.revoked_by_name: dict[str, None] = {}
        """Those that were revoked as orphans: their agents know no more than the name."""
        self.journals_lost: dict[str, None] = {}
        """Nodes whose agents have lost a journal, or could not trust it."""
        self.went_with_node: dict[str, None] = {}
        """Closed because their node was removed: no agent has said that they are gone."""
        self.closed_while_living: dict[OperationId, None] = {}
        """Messages that close slices, published first when the agent of their node had been able to speak for long."""
        self.lost: dict[str, None] = {}
        """Requests released for that: their sources withdraw them and request their pods again."""
        self.released_with_node: dict[OperationId, None] = {}
        """Messages that requests are released because their nodes were removed, wherever they land."""
        self.is_drained: Callable[[str], bool] = lambda _request: False
        """Whether a request is bound where an operator drains, or drained a moment ago."""
        self.removed: dict[str, None] = {}
        """Nodes that were said to be gone at some time: a process that reads late may still act on it."""
        self.able_for: Callable[[str], float] = lambda _node: 0.0
        """For how many seconds a node's agent has been able to publish."""
        self.ready: dict[str, SliceReady] = {}
        self.told_devices: dict[str, dict[str, None]] = {}
        """
        Device -> whose it was, from every SliceReady that landed: a MIG device of one, or of several shares of a home;
        a whole GPU of one after the other."""
        self.told_tickets: dict[str, str] = {}
        self.handed: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {}
        """Ticket -> whose it was when it was made last, its devices and its homes."""
        self.bound: dict[str, Bound] = {}
        self.declined: dict[str, None] = {}
        """Slices with which their pods were not let go, as their source says."""
        self.decided_in: dict[OperationId, str] = {}
        """The incarnation of the bus that each binding and release was decided in, as far as its allocator knew."""
        self.bound_late: dict[str, bool] = {}
        """Whether the binding of a request had been decided in an earlier incarnation than it landed in."""
        self.let_go_late: dict[str, str] = {}
        """Slices with which a since dead or stale source let pods go after a wipe: its successor had requested them
        again, and could not know."""
        self.asked_at: dict[str, float] = {}
        self.unheard: dict[str, None] = {}
        """Requests that the bus lacked when their source lost its book, or several for one pod: which one is the pod's
        is unknown."""
        self.said: dict[str, AllocationRequested] = {}
        """What sources said last of each pod, on the bus or on its way there."""
        self.requests: dict[str, AllocationRequested] = {}
        self.asked: dict[tuple[str, int], AllocationRequested] = {}
        """What each request said in each of its revisions."""
        self.ended: dict[str, None] = {}
        self.ended_here: dict[str, None] = {}
        """The same in this incarnation of the broker: where nothing is stored, no guard keeps an old duplicate out."""
        self.held_at_end: dict[str, HeldByPod | None] = {}
        """What their sources remembered when they withdrew them."""
        self.spoke: dict[str, None] = {}
        """Nodes whose agents have published in this incarnation of the broker."""
        self.shown: dict[str, None] = {}
        """Nodes of which an inventory was published in this incarnation of the broker."""
        self.life_of_state: Callable[[], str | None] = lambda: None
        self.sent_away: dict[str, None] = {}
        """Requests whose pods were ordered to be evicted."""
        self.rejected: dict[str, None] = {}
        self.writes: Counter[str] = Counter()
        self.ready_in: dict[str, int] = {}
        """In which boot of its node each slice became ready last: no process outlives a reboot."""
        self.boots: dict[str, str] = {}
        """Ticket -> the boot in which it was made."""
        self.stuck: dict[tuple[str, int], None] = {}
        """Instances that could not be destroyed when that was wanted."""
        self.in_the_way: dict[tuple[str, Span], tuple[str, set[str]]] = {}
        """Where an instance could not be made because of a warm one, when that was tried last, and for which one."""
        self.keeps_warm = False
        self.given_up = GivenUp()
        self.sizes = Sizes()
        self.checks = 0

    def held(self, node: str, besides: tuple[str, ...] = ()) -> list[Held]:
        """What the ledger of a node books."""
        return [
            held_by(entry.booking, device)
            for allocation, entry in self.ledger.get(node, {}).items()
            if not isinstance(entry, Closed) and allocation not in self.gone and allocation not in besides
            for device in self.sizes.most(entry.booking)
        ]

    def bound_to(self, request: str) -> Bound | None:
        """What a pod is bound to, also by a message of before a wipe that its source acted on later (its kubelet)."""
        return self.bound.get(request) or self.kubelets.bound.get(request)

    def let_go(self, request: str, node: str, allocation: str) -> None:
        """A pod is let go late, with what may be surplus by now and is being taken back."""
        self.let_go_late[request] = allocation
        if isinstance(self.ledger.get(node, {}).get(allocation), Revoke):
            self.adopted_revoked[allocation] = None

    def loses_what_it_holds(self, request: str) -> bool:
        """Whether a request's slice is being revoked since before the last wipe of the bus: its pod goes (ADR 0034)."""
        asked = self.requests.get(request)
        held = asked.held if asked is not None else None
        if held is None or held.allocation not in self.adopted_revoked:
            return False
        return isinstance(self.ledger.get(held.node, {}).get(held.allocation), Revoke)

    def lost_what_it_held(self, request: str, within_s: float) -> bool:
        """Whether that is so, or was so a moment ago: an order that follows from it may land when it is over."""
        asked = self.requests.get(request)
        held = asked.held if asked is not None else None
        closed_at = self.taken_back_at.get(held.allocation, -1e9) if held is not None else -1e9
        return self.loses_what_it_holds(request) or self.clockwork.now - closed_at <= within_s

    def promises(self, node: str) -> dict[str, Grant | Revoke]:
        """The entries of a node for what waits for others to be gone, or was revoked while it did: nothing is made."""
        return {
            allocation: entry
            for allocation, entry in self.ledger.get(node, {}).items()
            if isinstance(entry, (Grant, Revoke)) and allocation not in self.gone and self.waits(node, allocation)
        }

    def waits(self, node: str, allocation: str) -> bool:
        """Whether a holder is still there after whom an allocation has its place."""
        book = self.ledger.get(node, {})
        after = self.after.get(allocation, ())
        return any(each not in self.gone and isinstance(book.get(each), (Grant, Revoke)) for each in after)

    def disk_lost(self, node: str) -> None:
        """A node was switched off, and comes back with an empty disk: its hardware holds nothing, and it knows that."""
        here = (each for each, booking in self.bookings.items() if booking.node == node and each not in self.gone)
        self.were_on_lost_disk.update(dict.fromkeys(here))

    def went_with_disk(self, allocation: str) -> bool:
        """Whether a slice is gone and no record of that is left: its node was switched off and came back empty, and the
        ledger was wiped with its broker.

        While the ledger has it, its agent has to answer for it (PROTOCOL §5), or makes it again. A grant of an earlier
        incarnation of the bus that landed late orders nothing.
        """
        booking = self.bookings.get(allocation)
        if booking is None or allocation not in self.were_on_lost_disk:
            return False
        journal = self.machines[booking.node].journal
        known = any(isinstance(record, SliceRecord) and record.booking.allocation == allocation for record in journal)
        entry = self.ledger.get(booking.node, {}).get(allocation)
        is_ordered = entry is not None and not (isinstance(entry, Grant) and entry.incarnation in self.over)
        return not known and not is_ordered

    def is_over(self, bound: Bound) -> bool:
        """
        Whether a binding was for a slice that failed or went with its node or its disk, or for a pod whose request has
        ended, and whose slice is gone.

        A wiped broker keeps no guard: an old duplicate of such a request can land there, and have a slice until its
        source withdraws it once more. And an allocator that has not read the end yet binds it to another slice of it
        that is found then. That its first one is gone is all that can be demanded.
        """
        went = bound.allocation in self.failed.keys() | self.went_with_node.keys() | self.declined.keys()
        went = went or self.went_with_disk(bound.allocation) or self.is_ambiguous(bound.allocation)
        return went or (bound.request in self.ended and bound.allocation in self.gone)

    def is_ambiguous(self, allocation: str) -> bool:
        """Whether no record of a slice is left: journal and ledger were lost, and it has no ticket.

        It was being created or destroyed at that moment. Its agent removes what is left (ADR 0050) and cannot tell the
        owner, so reporting the request as over is no error. Other rules demand that its place stays free while
        something is on it.

        A message about it that lands late has it revoked by name (PROTOCOL §8). That adds no knowledge.
        """
        if allocation in self.revoked_by_name:
            return True
        booking = self.bookings.get(allocation)
        if booking is None or booking.node not in self.journals_lost or allocation in self.ledger.get(booking.node, {}):
            return False
        machine = self.machines[booking.node]
        if any(ticket.allocation == allocation for ticket in machine.tickets.values()):
            return False
        return not any(
            (isinstance(record, SliceRecord) and record.booking.allocation == allocation)
            or (isinstance(record, Tombstone) and record.allocation == allocation)
            for record in machine.journal
        )

    def is_orphaned(self, node: str, process: Process) -> bool:
        """Whether the slice that a process runs on is an orphan by now."""
        of_pod = (one for one in self.bookings.values() if (one.node, one.owner) == (node, process.owner))
        by_name = self.revoked_by_name
        left = [one.allocation for one in of_pod if one.allocation not in self.said_gone or one.allocation in by_name]
        return bool(left) and all(self.is_ambiguous(allocation) for allocation in left)

    def is_asked_for_as_another(self, request: str, asked: AllocationRequested) -> bool:
        """Whether a pod has another request that stands, be it on its way."""
        pod = (asked.origin, asked.namespace, asked.name)
        others = [other for other in self.said if other != request and other not in self.ended]
        return any((each.origin, each.namespace, each.name) == pod for each in (self.said[other] for other in others))

    def known_as(self, booking: Booking) -> Booking:
        """What was booked, if an order for a lost slice names no devices."""
        return booking if booking.devices else self.bookings.get(booking.allocation, booking)

    def processes_of(self, owner: str) -> list[Process]:
        return [p for machine in self.machines.values() for _, p in machine.processes() if p.owner == owner]

    def live_together(self, one: str, other: str, gpu: Gpu, span: Span) -> bool:
        """Whether two allocations have shares of the same home."""
        mine, theirs = self.bookings.get(one), self.bookings.get(other)
        return mine is not None and theirs is not None and shared_devices.live_together(mine, theirs, gpu, span)

    def fail(self, rule: str, text: str) -> None:
        """An invariant does not hold. Raises ViolationError."""
        raise ViolationError(rule, text)
