"""The history checker: everything that must hold at every instant, by its own books; a violation ends the run."""

from collections.abc import Iterator, Mapping

from simulation.judges import shared_devices
from simulation.judges.books import ViolationError
from simulation.judges.gpu_tables import fits_in, overlap
from simulation.judges.node_judge import NodeJudge
from simulation.judges.share_limits import Held, grows, held_by
from simulation.world.agents import AgentHost
from simulation.world.hardware import OPERATOR, Gpu, Machine
from simulation.world.host import Host

from sluice.contracts import messages as msg
from sluice.contracts.bus.events import ReadLast, Write
from sluice.contracts.ids import OperationId, RequestId
from sluice_node_agent.core import instructions as do

__all__ = ["Judge", "ViolationError"]

PERIODIC = (do.ReadGpu, ReadLast, do.CompareTickets, do.CompareCdi, do.WatchMps, do.SaveJournal, do.DestroyGpuInstance)
"""What a calm agent may do at a tick: its checks, and what they find out of date; warm instances have a time, too."""
WRITES_PER_REQUEST_MAX = 400
HEADS_PER_NODE_MAX = 100
"""The most that any of 2,000 seeds had were 11."""
LIVING_S = 15.0
"""An agent that could publish for so long counts as alive at every process: nothing of its node is lost."""
SETTLED_PAST_S = 8.0
"""A request that appears so long after its pod was last touched is of that pod as it is now."""


class Judge(NodeJudge):
    """Observes everything that is written, too."""

    # -- the bus --------------------------------------------------------------------------------------------------

    def landed(self, write: Write, _sequence: int) -> None:
        """A value is the last one of its subject now."""
        self.checks += 1
        message: msg.AnyMessage = write.message
        if wrong := self.given_up.landed(write, self.clockwork.now):
            self.fail("taken until settled", wrong)
        match message:
            case msg.AllocationRequested() | msg.RequestRejected() | msg.RequestWithdrawn():
                self._request(write.subject.rpartition(".")[2], message)
            case msg.SliceReady() | msg.SliceGone() | msg.SliceFailed() | msg.SliceDegraded():
                self._slice(message)
            case msg.NodeOpened() | msg.NodeClosed() | msg.NodeRemoved() | msg.NodeChanged() | msg.NodeInventory():
                self._of_node(message)
            case msg.Grant():
                self._granted(message)
            case msg.Revoke():
                self._revoked(message)
            case msg.Closed():
                self._closed(message, write.operation)
            case msg.Bound():
                self._bound(message, write.operation)
            case msg.Released():
                self._released(message, write.operation)
            case _:
                pass

    def _of_node(
        self, said: msg.NodeOpened | msg.NodeClosed | msg.NodeRemoved | msg.NodeChanged | msg.NodeInventory
    ) -> None:
        match said:
            case msg.NodeOpened():
                self.opened[said.node] += not self.compete()
                if self.opened[said.node] > HEADS_PER_NODE_MAX:
                    self.fail("I11", f"{said.node} is opened more than {HEADS_PER_NODE_MAX} times")
                self.heads[said.node] = said
            case msg.NodeClosed():
                self.heads.pop(said.node, None)
            case msg.NodeRemoved():
                self.removed[said.node] = None
            case msg.NodeChanged():
                self.spoke[said.node] = None
            case msg.NodeInventory():
                self.shown[said.snapshot.node] = None

    def is_of_this_life(self, order: msg.EvictionOrdered) -> bool:
        """Whether an eviction was ordered in this incarnation of the bus. A late one has no sender."""
        return order.incarnation in {"", self.life_of_state()}

    def wiped(self, life: str) -> None:
        """Nothing is on the bus any more: that life of it is over. What happened has happened, but a binding that its
        source never read was never acted on, and counts as unsaid. So does that a slice went with its node, of which
        its request was not told: its agent may be back in the next life."""
        self.bound = {request: bound for request, bound in self.bound.items() if request in self.kubelets.bound}
        self.ledger.clear()
        self.adopted_revoked.clear()
        self.heads.clear()
        self.over.add(life)
        told = self.lost.keys() | self.ended.keys()
        self.went_with_node = {each: None for each in self.went_with_node if self.bookings[each].request in told}
        self.ended_here.clear()
        self.spoke.clear()
        self.shown.clear()
        self.given_up.wiped(life)

    def forgot(self, words: Mapping[str, msg.AnyMessage]) -> None:
        """A broker lost its latest messages; later processes may request again, older ones publish the end again."""
        ended = {request for request, word in words.items() if isinstance(word, msg.RequestWithdrawn)}
        self.ended_here = {request: None for request in self.ended_here if request in ended}
        self.given_up.forgot({RequestId(request) for request in ended})

    def remembered_by_the_bus_alone(self, words: Mapping[str, msg.AnyMessage], unheard: set[str]) -> None:
        """The source's book is lost; the bus has these requests, and nothing of the unheard ones in the book. What a
        broker forgot before is unknown: it is requested again until the source has listed its pods."""
        self.forgot(words)
        self.unheard.update(dict.fromkeys(unheard))

    def _granted(self, grant: msg.Grant) -> None:
        booking = grant.booking
        book = self.ledger.setdefault(booking.node, {})
        known = book.get(booking.allocation)
        if known is not None and not isinstance(known, msg.Closed) and grant.revision < known.revision:
            self.fail("I6", f"{booking.allocation}: Grant {grant.revision} lands over revision {known.revision}")
        self.sizes.granted(grant, self.machines[grant.booking.node].boots)
        if not grant.adopted:
            self.after[booking.allocation] = grant.after
            if booking.node not in self.heads and grant.incarnation not in self.over:
                self.fail("opened before use", f"{booking.allocation} on {booking.node}, which has no head")
            self._check_place(grant, is_new=not isinstance(known, msg.Grant) or grows(known.booking, booking))
        book[booking.allocation] = grant
        self.bookings[booking.allocation] = booking

    def _check_place(self, grant: msg.Grant, *, is_new: bool) -> None:
        """I1 and I2 for a booking: the place exists, is free, and no foreign process is on it. Not (`is_new`) for an
        allocation that keeps its place: processes left in its shared device when records were lost live beside it."""
        booking = grant.booking
        machine = self.machines[booking.node]
        heirs = self.promises(booking.node) if grant.revision > 1 else ()  # of one that is changed: nothing is made
        held = self.held(booking.node, besides=(booking.allocation, *grant.after, *heirs))
        for at in self._moments(grant):
            self._check_possible(booking, list(at))
        for device in self.sizes.most(booking):
            gpu, mine = machine.gpus[device.gpu], held_by(booking, device)
            other = shared_devices.overlapping(held, mine)
            if other is not None:
                self.fail("I1", f"{booking.allocation} is granted {device} which {other} holds")
            on_it = [one for one in held if one.gpu == device.gpu]
            if device.share is not None and (wrong := shared_devices.wrong_neighbours(gpu, mine, on_it)):
                self.fail("I2", wrong)
            if is_new and not grant.after:
                self._check_tenants(booking, gpu, mine, on_it)
            held.append(mine)

    def _moments(self, grant: msg.Grant) -> Iterator[list[Held]]:
        """What is held beside a new booking: now, before anything is made that was promised; and then, after that."""
        node, own = grant.booking.node, grant.booking.allocation
        promises = {name: other for name, other in self.promises(node).items() if name != own}
        awaited = [each for name in promises for each in self.after[name]]
        if not grant.after:
            yield self.held(node, besides=(own, *promises))
        if own not in awaited:  # else it is gone by then: it is only changed
            yield self.held(node, besides=(own, *grant.after, *awaited))

    def _check_possible(self, booking: msg.Booking, held: list[Held]) -> None:
        """I2 for the layouts of GPUs."""
        for device in booking.devices:
            gpu, mine = self.machines[booking.node].gpus[device.gpu], held_by(booking, device)
            on_gpu = shared_devices.instances_of([one for one in held if one.span != mine.span], device.gpu)
            if device.profile is not None:
                row = gpu.row.profile(device.profile)
                if not gpu.mig or row is None or not fits_in(gpu.row, on_gpu, row, mine.span):
                    self.fail("I2", f"{booking.allocation}: {device} is not possible beside {on_gpu}")
                if gpu.layout is not None and (device.profile, mine.span) not in gpu.layout:
                    self.fail("I2", f"{booking.allocation}: {device} is not in the layout {gpu.layout}")
            elif gpu.mig:
                self.fail("I2", f"{booking.allocation}: whole GPU granted on a GPU in MIG mode")
            held.append(mine)

    def _check_tenants(self, booking: msg.Booking, gpu: Gpu, mine: Held, held: list[Held]) -> None:
        """No process is left except tenants of the same shared device, not even former clients of its daemon (LAW 3).

        If a slice was lost with journal and ledger, nothing on a whole GPU, or an instance of a fixed layout, shows
        that it existed: the place can be granted, but is not handed out while its process is there (ADR 0047), which
        `started` checks.
        """
        others = [one.allocation for one in held if one.span == mine.span and one.allocation != booking.allocation]
        together = {self.bookings[other].owner for other in others}
        nothing_is_made = not gpu.mig or gpu.layout is not None
        for process in gpu.processes:
            at = gpu.span_of(process.device)
            if at is None or not overlap(at, mine.span) or process.owner in {booking.owner, OPERATOR, *together}:
                continue
            is_shown = bool(process.home) and gpu.layout is None
            if nothing_is_made and not is_shown and self.is_orphaned(booking.node, process):
                continue
            self.fail("I1", f"{booking.allocation} is granted {mine.span} of {gpu.uuid} where {process} still runs")

    def _revoked(self, revoke: msg.Revoke) -> None:
        booking = self.known_as(revoke.booking)
        bound = self.bound_to(booking.request)
        is_bound = bound is not None and bound.allocation == booking.allocation
        unwanted = booking.request in self.ended or booking.request in self.rejected
        unwanted = unwanted or not self.folder.wants(booking.request, booking.name)
        unwanted = unwanted or booking.allocation in self.went_with_node or booking.allocation in self.declined
        unwanted = unwanted or self.let_go_late.get(booking.request, booking.allocation) != booking.allocation
        if self.went_with_disk(booking.allocation):
            self.ended_with_disk[booking.allocation] = None
        unwanted = unwanted or booking.allocation in self.ended_with_disk
        if not revoke.booking.devices and self.is_ambiguous(booking.allocation):
            self.revoked_by_name[booking.allocation] = None
        unwanted = unwanted or booking.allocation in self.revoked_by_name
        is_bound = is_bound and not self._says_nothing_here(booking)
        if is_bound and not unwanted and booking.allocation not in self.never_made:
            self.fail("undisturbed", f"{booking.allocation} is bound and wanted, and revoked: {revoke.cause}")
        if booking.devices and self._is_entered_again(booking):
            self.adopted_revoked[booking.allocation] = None
            self.sizes.entered_as_revoked(revoke, self.machines[booking.node].boots)
        self.revoked[booking.allocation] = None
        self.bookings[booking.allocation] = booking
        self.ledger.setdefault(booking.node, {})[booking.allocation] = revoke

    def _is_entered_again(self, booking: msg.Booking) -> bool:
        """
        Whether no order of this life of the bus stands for a slice that its agent has: none at all, one of an earlier
        life that landed late, or that it went with its node, which is back."""
        entry = self.ledger.get(booking.node, {}).get(booking.allocation)
        return entry is None or isinstance(entry, msg.Closed) or entry.incarnation in self.over

    def _closed(self, closed: msg.Closed, operation: OperationId) -> None:
        if closed.removed and closed.incarnation in self.over:
            return  # it lands late: a process that acts on it will be blamed
        is_said_again = closed.allocation in self.went_with_node and closed.allocation in self.gone
        if closed.removed and not is_said_again:
            self._goes_with_node(closed.node, closed.allocation, operation)
        elif closed.allocation not in self.gone:
            self.fail("LAW 3", f"{closed.allocation} is closed before its agent said SliceGone")
        if closed.allocation in self.adopted_revoked:
            self.taken_back_at[closed.allocation] = self.clockwork.now
        self.ledger.setdefault(closed.node, {})[closed.allocation] = closed

    def _goes_with_node(self, node: str, allocation: str, operation: OperationId) -> None:
        """Only for a node that is not adopted, and whose agent had time to publish.

        Measured at the first attempt: an unanswered write is repeated as it was (W3), whatever was published since.
        """
        if node in self.heads:
            self.fail("opened before use", f"{allocation} goes with {node}, which is open")
        if operation in self.closed_while_living:
            self.fail("undisturbed", f"{allocation} goes with {node}, whose agent lives")
        self.went_with_node[allocation] = None

    def _answering(self, answer: msg.Bound | msg.Released, operation: OperationId, life: str) -> None:
        """
        The incarnation in which an answer was decided; and whether the released slice is unknown to all, after a wipe,
        and its node was removed: decided now.

        A slice that its agent released needs no word, though the message may still be published after the wipe. Without
        an answer it is repeated as it was (W3), whatever was published since.
        """
        is_said_again = operation in self.decided_in
        self.decided_in.setdefault(operation, life)
        if isinstance(answer, msg.Bound) or is_said_again:
            return
        bound = self.bound_to(answer.request)
        if bound is None or bound.allocation in self.said_gone:
            return
        is_told = bound.allocation in self.ledger.get(bound.node, {})
        if bound.node in self.removed and not is_told:
            if self.able_for(bound.node) >= LIVING_S:
                self.fail("undisturbed", f"{bound.allocation} goes with {bound.node}, whose agent lives")
            self.released_with_node[operation] = None

    def _bound(self, bound: msg.Bound, operation: OperationId) -> None:
        if bound.allocation not in self.ready:
            self.fail("bound when ready", f"{bound.request}: {bound.allocation} was never said to be ready")
        before = self.bound_to(bound.request)
        if before is not None and (self.is_over(before) or self._says_nothing_here(before)):
            before = None
        if before is not None and before.allocation != bound.allocation:
            if self.decided_in[operation] in self.over:
                return  # decided before another binding landed that went with the broker: its pod stays where it is
            if before.allocation == self.let_go_late.get(bound.request):
                return  # its pod stays where it is, which its source sees now
            if not self._stays_where_it_is(bound):
                self.fail("bound once", f"{bound.request}: {bound.allocation} after {before.allocation}")
        self.bound[bound.request] = bound
        self.bound_late[bound.request] = self.decided_in[operation] in self.over

    def _says_nothing_here(self, bound: msg.Bound | msg.Booking) -> bool:
        """Whether a binding was decided in an earlier incarnation than it landed in, and no process follows it."""
        asked, given = self.requests.get(bound.request), self.kubelets.bound.get(bound.request)
        held = asked.held if asked is not None else None
        has_it = any(each is not None and each.allocation == bound.allocation for each in (held, given))
        return self.bound_late.get(bound.request, False) and not has_it

    def _stays_where_it_is(self, bound: msg.Bound) -> bool:
        """Whether a pod's source remembers its binding: it was let go by a call of a source that has died since."""
        asked = self.requests.get(bound.request)
        remembers = asked is not None and asked.held is not None and asked.held.allocation == bound.allocation
        return remembers and self.let_go_late.get(bound.request) == bound.allocation

    def _is_unknown(self, bound: msg.Bound) -> bool:
        """Whether the bus was wiped, the node's slices were not published since (its agent may be dead), and the source
        does not remember the binding: it died before it read it, or a lagging API server shows the pod without. Then
        the slice is unknown, and an orphan when its node appears."""
        in_ledger = bound.allocation in self.ledger.get(bound.node, {})
        remembered = self.held_at_end.get(bound.request) is not None or bound.request not in self.held_at_end
        is_dead = bound.node not in self.spoke and self.able_for(bound.node) < LIVING_S
        return (is_dead or bound.node not in self.shown) and not in_ledger and not remembered

    def _released(self, released: msg.Released, operation: OperationId) -> None:
        bound = self.bound_to(released.request)
        if self.decided_in[operation] in self.over:
            if bound is not None and self._is_as_true_in_every_life(bound):
                self.lost[released.request] = None
                self.went_with_node[bound.allocation] = None  # or with its disk: the process that finds it revokes it
            return  # it lands late: a process that acts on another will be blamed
        if bound is not None and operation in self.released_with_node:
            self.went_with_node[bound.allocation] = None
        if bound is not None and bound.allocation in self.went_with_node:
            self.lost[released.request] = None
            return  # its state is unknown: that is what the message says
        if bound is not None and self._is_gone_with_disk(bound):
            self.lost[released.request] = None
        if bound is not None and self.is_ambiguous(bound.allocation):
            self.lost[released.request] = None
            return
        if bound is not None and self._is_unknown(bound):
            return
        if bound is not None and not self.is_gone(bound.allocation):
            self.fail("LAW 3", f"{released.request} is released before {bound.allocation} is gone")
        asked = self.requests.get(released.request)
        if asked is not None and self.processes_of(asked.owner):
            self.fail("LAW 3", f"{released.request} is released while its processes run")

    def _is_as_true_in_every_life(self, bound: msg.Bound) -> bool:
        """Whether a slice was removed with its node, of which nothing was published since, or is gone with its disk."""
        is_removed = bound.node in self.removed and self.able_for(bound.node) < LIVING_S
        return is_removed or self._is_gone_with_disk(bound)

    def _is_gone_with_disk(self, bound: msg.Bound) -> bool:
        return bound.allocation in self.ended_with_disk or self.went_with_disk(bound.allocation)

    def _slice(self, said: msg.SliceReady | msg.SliceGone | msg.SliceFailed | msg.SliceDegraded) -> None:
        if not isinstance(said, msg.SliceGone):
            self.sizes.said(said, self.clockwork.now)
        match said:
            case msg.SliceReady():
                self._ready(said)
            case msg.SliceGone():
                self.gone[said.allocation] = None
            case msg.SliceFailed():
                self._failed(said)
            case _:
                self.failed[said.allocation] = None

    def _failed(self, said: msg.SliceFailed) -> None:
        self.failed[said.allocation] = self.never_made[said.allocation] = None
        booking = self.bookings.get(said.allocation)
        for device in booking.devices if booking is not None else ():
            wrong, of_whom = self.in_the_way.get((device.gpu, (device.start, device.size)), ("", set()))
            if said.allocation in of_whom:
                self.fail("warm in the way", f"{said.allocation} has failed: {wrong}")

    def _ready(self, ready: msg.SliceReady) -> None:
        self.ready[ready.allocation] = ready
        if ready.allocation in self.bookings:
            self.ready_in[ready.allocation] = self.machines[self.bookings[ready.allocation].node].boots
        if wrong := self.sizes.wrong_words(ready):
            self.fail("told", wrong)
        self.told_tickets[ready.ticket] = ready.allocation
        for device in ready.devices:
            told = self.told_devices.setdefault(device.uuid, {})
            if device.profile is None:
                told[ready.allocation] = None
                continue
            gpu = self.machines[self.bookings[ready.allocation].node].gpus[device.gpu]
            for other in told if gpu.layout is None else ():  # what is there already has the UUID that it has
                if other != ready.allocation and not self.live_together(
                    other, ready.allocation, gpu, (device.start, device.size)
                ):
                    self.fail("one tenant per device", f"{device.uuid} of {other} is given to {ready.allocation}")
            told[ready.allocation] = None

    def _request(
        self, request: str, message: msg.AllocationRequested | msg.RequestRejected | msg.RequestWithdrawn
    ) -> None:
        self.asked_at.setdefault(request, self.clockwork.now)
        if isinstance(message, msg.AllocationRequested):
            if request in self.ended_here:
                self.fail("I5", f"{request} is asked for again after it was withdrawn")
            self.requests[request] = self.asked[request, message.revision] = message
            self.rejected.pop(request, None)
        elif isinstance(message, msg.RequestWithdrawn):
            self._check_withdrawn(request)
            self.held_at_end[request] = message.held
            self.ended[request] = self.ended_here[request] = None
        else:
            self.rejected[request] = None

    def _check_withdrawn(self, request: str) -> None:
        """
        A living pod's request is withdrawn only by its evictor, or when it was released because its node was removed or
        lost its disk while the bus was wiped: the slice is gone for good (PROTOCOL §6), and its pod is requested under
        another id. Also if the source heard of it only after losing its book, or bound it as requested before an edit.
        """
        asked = self.requests.get(request)
        if asked is None or request in self.ended or not self.folder.wants(request, asked.name):
            return
        if request in self.sent_away or request in self.lost:
            return
        bound = self.bound_to(request)
        if bound is not None and bound.request_revision < asked.revision:
            return
        if request in self.unheard and self.is_asked_for_as_another(request, asked):
            return
        is_settled = self.asked_at[request] > self.folder.since[asked.name] + SETTLED_PAST_S
        if is_settled or self.folder.is_untouched(asked.name):
            self.fail("undisturbed", f"{request} of {asked.name} is withdrawn, and the pod is still in the folder")

    # -- agents ---------------------------------------------------------------------------------------------------

    def instructed(self, host: Host, instruction: object) -> None:
        if isinstance(host, AgentHost) and host.calm and not isinstance(instruction, PERIODIC):
            self.fail("calm", f"{instruction} of {host.name} was due while it called itself calm")
        if not isinstance(instruction, Write):
            return
        self.given_up.sent(host.run, instruction, host.reads)
        if instruction.request and not (host.kind == "allocator" and self.compete()):
            self.writes[instruction.request] += 1
            if self.writes[instruction.request] > WRITES_PER_REQUEST_MAX:
                self.fail("I11", f"over {WRITES_PER_REQUEST_MAX} writes for {instruction.request}")
        message = instruction.message
        if isinstance(message, msg.AllocationRequested):
            self.said[instruction.request] = message
        if isinstance(message, msg.Closed) and instruction.attempt == 1 and self.able_for(message.node) >= LIVING_S:
            self.closed_while_living[instruction.operation] = None
        if isinstance(message, (msg.Bound, msg.Released)):
            self._answering(message, instruction.operation, host.reads)
        if isinstance(host, AgentHost):
            self._said_by_agent(host.machine, message, is_new=instruction.attempt == 1)

    def _said_by_agent(self, machine: Machine, message: msg.AnyMessage, *, is_new: bool) -> None:
        if isinstance(message, msg.SliceGone) and message.allocation not in self.said_gone:
            self.check_gone(machine, message.allocation)
            self.said_gone[message.allocation] = None
        if isinstance(message, (msg.SliceReady, msg.SliceGone)):
            self.check_on_disk(machine, message)
        if isinstance(message, (msg.SliceReady, msg.SliceFailed, msg.SliceDegraded)) and is_new:
            self.sizes.wanted(message)
        if isinstance(message, msg.SliceReady) and is_new:
            wrong = self.sizes.wrong_limits(machine, message)
            if wrong and message.allocation not in self.revoked:
                self.fail("MPS", wrong)
