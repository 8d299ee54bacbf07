"""The judge's rules about nodes: what is let in and out, what is destroyed, and what is gone before that is said."""

from simulation.judges import shared_devices
from simulation.judges.books import Books
from simulation.judges.gpu_tables import Span, overlap
from simulation.judges.sizes import overused
from simulation.world.hardware import OPERATOR, DeviceRefusedError, Gpu, Instance, Machine, Process, Ticket
from simulation.world.mps_daemons import Daemon

from sluice.contracts.messages import Booking, DeviceGrant, Revoke, SliceGone, SliceReady
from sluice_node_agent.core.instructions import CreateGpuInstance, DestroyGpuInstance
from sluice_node_agent.core.journal_records import SliceRecord, Tombstone


class NodeJudge(Books):
    """Observes everything that happens on nodes."""

    # -- what is said to be gone ----------------------------------------------------------------------------------

    def is_gone(self, allocation: str) -> bool:
        """Whether an agent has journalled or wanted to publish that a slice is gone; it may wait (W3)."""
        booking = self.bookings.get(allocation)
        if allocation in self.said_gone or booking is None:
            return allocation in self.said_gone
        if self.went_with_disk(allocation):
            self.check_gone(self.machines[booking.node], allocation)
            return True
        machine = self.machines[booking.node]
        if not any(isinstance(record, Tombstone) and record.allocation == allocation for record in machine.journal):
            return False
        self.check_gone(machine, allocation)
        return True

    def check_on_disk(self, machine: Machine, said: SliceReady | SliceGone) -> None:
        """What is published of a slice is on its node's disk: it stays true after a power cut a moment later."""
        there = machine.journal[machine.on_disk - 1 :: -1] if machine.on_disk else []  # the latest first: it is there
        if isinstance(said, SliceReady):
            records = (r for r in there if isinstance(r, SliceRecord) and r.phase == "ready")
            known = any(
                r.ticket == said.ticket or (not said.ticket and r.booking.allocation == said.allocation)
                for r in records
            )
        else:  # the final message of an unknown slice needs no record
            known = said.closing or any(isinstance(r, Tombstone) and r.allocation == said.allocation for r in there)
        if not known:
            self.fail("on disk", f"{type(said).__name__} of {said.allocation} is said before it is on disk")

    def check_gone(self, machine: Machine, allocation: str) -> None:
        """SliceGone is said: no ticket, no process of the tenant, no instance, and of a last share no daemon."""
        booking = self.bookings.get(allocation)
        if booking is None:
            return
        if any(ticket.allocation == allocation for ticket in machine.tickets.values()):
            self.fail("LAW 3", f"{allocation} is said to be gone and its ticket is there")
        if self._names_no_devices(machine, allocation):
            return
        self._check_claims_are_over(machine, booking)
        for device in booking.devices:
            gpu, span = machine.gpus[device.gpu], (device.start, device.size)
            for process in gpu.processes:
                at = gpu.span_of(process.device)
                if process.owner != booking.owner or at is None or not overlap(at, span):
                    continue
                if not self._is_of_another(machine, process, booking, device):
                    self.fail("LAW 3", f"{allocation} is said to be gone and {process} runs")
            self._check_no_late_opening(machine, booking, device)
            self._check_place_is_empty(machine, booking, device)

    def _check_claims_are_over(self, machine: Machine, booking: Booking) -> None:
        """Its claims are unprepared, or no process of its pod is left, its sandbox included."""
        prepared = [c.uid for c in booking.resource_claims if self.kubelets.plugin.prepared(machine, c.uid) is not None]
        left = machine.of_pod(booking.owner)
        others = [
            one
            for one in self.bookings.values()
            if one.owner == booking.owner and one.allocation != booking.allocation
            if one.allocation not in self.said_gone
        ]
        if prepared and left and not others:
            self.fail("LAW 3", f"{booking.allocation} is said to be gone, {prepared} are prepared, and {left} is there")

    def _check_no_late_opening(self, machine: Machine, booking: Booking, device: DeviceGrant) -> None:
        """No process of its pod is left that was given the device and has not opened it yet."""
        for process in machine.waiting:
            was_given = booking.allocation in self.told_devices.get(process.device, {})
            if process.owner != booking.owner or process.file[0] != device.gpu or not was_given:
                continue
            if not self._is_of_another(machine, process, booking, device):
                self.fail("LAW 3", f"{booking.allocation} is said to be gone and {process} may open its device yet")

    def _names_no_devices(self, machine: Machine, allocation: str) -> bool:
        """Whether the agent could not know what was booked: its journal was lost, and the order comes from a forgotten
        incarnation of the bus. It answers for a name; it removes what is left (ADR 0050)."""
        entry = self.ledger.get(machine.node, {}).get(allocation)
        known = any(
            isinstance(record, SliceRecord) and record.booking.allocation == allocation and record.booking.devices
            for record in machine.journal
        )
        is_bare = isinstance(entry, Revoke) and not entry.booking.devices
        return is_bare and not known and machine.node in self.journals_lost

    def _is_of_another(self, machine: Machine, process: Process, booking: Booking, device: DeviceGrant) -> bool:
        """
        Whether it may be of another slice of the same pod: of a share of the same home, of what a promise of this place
        was exchanged for, when this slice never had the device, or of one that has the device since. That this one is
        gone may be said long after it was, and after the broker was wiped (see `is_gone`)."""
        others = {
            other.allocation: other.devices
            for other in self.bookings.values()
            if other.owner == booking.owner
            and other.allocation != booking.allocation
            and other.allocation not in self.said_gone
        }
        passes_on = device.profile is None or machine.gpus[device.gpu].layout is not None
        tickets = machine.tickets.values() if passes_on else ()
        if any(each.allocation in others and process.device in each.devices for each in tickets):
            return True
        told = self.told_devices.get(process.device, {})
        if booking.allocation not in told and any(each in told for each in others):
            return True
        return device.share is not None and any(
            (one.gpu, one.start, one.size) == (device.gpu, device.start, device.size)
            for devices in others.values()
            for one in devices
        )

    def _check_place_is_empty(self, machine: Machine, booking: Booking, device: DeviceGrant) -> None:
        allocation, gpu, span = booking.allocation, machine.gpus[device.gpu], (device.start, device.size)
        if device.share is not None:
            if self._lives_on(machine, gpu, span, allocation):
                return
            left = shared_devices.left_behind(machine, gpu, span)
            if left:
                self.fail("LAW 3", f"{allocation}, the last of its home, is said to be gone and {left}")
        for instance in gpu.instances.values() if device.profile is not None else ():
            is_warm = self.keeps_warm and not instance.uuid
            if instance.maker == OPERATOR or is_warm or not overlap(instance.span, span):
                continue
            if not self._is_anothers(instance, machine.node, gpu, allocation):
                self.fail("LAW 3", f"{allocation} is said to be gone and {instance} is there")

    def _lives_on(self, machine: Machine, gpu: Gpu, span: Span, allocation: str) -> bool:
        """Whether another tenant has a share there and has not left. A wiped ledger does not say: bookings do."""
        return any(
            device.gpu == gpu.uuid and (device.start, device.size) == span and device.share is not None
            for other, booking in self.bookings.items()
            if booking.node == machine.node and other != allocation and not self._has_left(machine, other)
            for device in booking.devices
        )

    def _has_left(self, machine: Machine, allocation: str) -> bool:
        """Whether a slice was said to be gone, and its agent has not taken it up again after its journal was lost."""
        if allocation not in self.said_gone or machine.node not in self.journals_lost:
            return allocation in self.said_gone
        of_it = (
            record
            for record in reversed(machine.journal)
            if (isinstance(record, SliceRecord) and record.booking.allocation == allocation)
            or (isinstance(record, Tombstone) and record.allocation == allocation)
        )
        return not isinstance(next(of_it, None), SliceRecord)

    def _is_anothers(self, instance: Instance, node: str, gpu: Gpu, allocation: str) -> bool:
        told = self.told_devices.get(instance.uuid)
        if told is not None:
            return any(other != allocation for other in told)
        tickets = self.machines[node].tickets.values()
        if any(instance.uuid in ticket.devices and ticket.allocation != allocation for ticket in tickets):
            return True  # handed to the next tenant already, only not said yet
        others = self.held(node, besides=(allocation,))
        if any(one.gpu == gpu.uuid and overlap(one.span, instance.span) for one in others):
            return True
        # a promised place belongs to its request as soon as it is empty, before the message; and of a promise that
        # is given up, those whom it was to come after are there still. Of a wiped ledger too
        near = [each for each, after in self.after.items() if allocation in after]
        near += self.after.get(allocation, ())
        # so does one being created there, though a ledger that was wiped once more lacks it: its agent remembers
        near += [
            record.booking.allocation
            for record in self.machines[node].journal
            if isinstance(record, SliceRecord) and record.phase != "planned" and record.booking.allocation != allocation
        ]
        return any(
            device.gpu == gpu.uuid and overlap((device.start, device.size), instance.span)
            for each in near
            if each in self.bookings and each not in self.said_gone
            for device in self.bookings[each].devices
        )

    # -- who is let in --------------------------------------------------------------------------------------------

    def ticket(self, what: str, machine: Machine, ticket: Ticket) -> None:
        """A ticket directory was made or removed: where a place changes hands."""
        if what == "removed":
            self._ticket_removed(machine, ticket)
            return
        self.boots[ticket.name] = machine.boot_id
        if ticket.allocation in self.gone:
            self.fail("I6", f"{ticket.allocation} is handed out after it was said to be gone")
        mine = self._places(machine, ticket)
        for other in machine.tickets.values():
            for gpu, span in self._places(machine, other) if other.allocation != ticket.allocation else ():
                if not any(gpu is own and overlap(span, at) for own, at in mine):
                    continue
                if not self.live_together(ticket.allocation, other.allocation, gpu, span):
                    self.fail("I1", f"{ticket.allocation} and {other.allocation} are both handed {span} of {gpu.uuid}")
        booking = self.bookings.get(ticket.allocation)
        handed = ticket.allocation, ticket.devices, ticket.homes
        is_as_before = ticket.name in self.told_tickets and self.handed.get(ticket.name) == handed
        self.handed[ticket.name] = handed
        if is_as_before and not all(machine.mps.alive(home) for home in ticket.homes):
            return  # made again as it was, while a daemon of its homes is away: it lets in who was let in before
        if booking is not None and (wrong := shared_devices.wrong_ticket(machine, ticket, self.sizes.least(booking))):
            self.fail("MPS", wrong)

    def _ticket_removed(self, machine: Machine, ticket: Ticket) -> None:
        allocation = self.told_tickets.get(ticket.name)
        boot = self.boots.pop(ticket.name, machine.boot_id)
        if allocation is None or boot != machine.boot_id or allocation in self.failed:
            return
        there = all(machine.gpu_with(uuid) for uuid in ticket.devices)
        there = there and all(machine.mps.alive(home) for home in ticket.homes)
        if allocation not in self.revoked and allocation not in self.sizes.changed and there:
            self.fail("only a Revoke destroys", f"ticket of {allocation} removed")

    def _places(self, machine: Machine, ticket: Ticket) -> list[tuple[Gpu, Span]]:
        found = []
        for uuid in ticket.devices:
            gpu = machine.gpu_with(uuid)
            span = gpu.span_of(uuid) if gpu is not None else None
            if gpu is not None and span is not None:
                found.append((gpu, span))
        return found

    # -- hardware -------------------------------------------------------------------------------------------------

    def hardware(self, what: str, gpu: Gpu, instance: Instance) -> None:
        """A GPU or compute instance was made or destroyed by an agent."""
        if what in {"gi made", "ci made"} and gpu.layout is not None:
            self.fail("fixed layout", f"{instance} is made on {gpu.uuid}, which is its administrator's")
        if what == "gi made":
            self.in_the_way.pop((gpu.uuid, instance.span), None)
        if what in {"ci destroyed", "gi destroyed"} and instance.maker == OPERATOR:
            self.fail("I13", f"foreign instance {instance} of {gpu.uuid} destroyed")
        for allocation in self.told_devices.get(instance.uuid, ()) if what == "ci destroyed" else ():
            is_over = allocation in self.revoked or allocation in self.failed or self.is_ambiguous(allocation)
            if not is_over:
                self.fail("only a Revoke destroys", f"{instance.uuid} of {allocation} destroyed")

    def refused(self, machine: Machine, gpu: Gpu, instruction: object, refusal: DeviceRefusedError) -> None:
        match instruction:
            case CreateGpuInstance():
                span = (instruction.start, instruction.size)
                self.in_the_way.pop((gpu.uuid, span), None)  # the latest refusal is why it fails, if it does
                if refusal.kind != "InsufficientResources" or refusal.planned:
                    return
                wrong = shared_devices.in_the_way(gpu, instruction.profile_id, span, self.held(machine.node))
                if wrong and not any(uuid == gpu.uuid for uuid, _ in self.stuck):
                    self.in_the_way[gpu.uuid, span] = wrong, self._may_have_begun_at(machine, gpu, span)
            case DestroyGpuInstance():
                self.stuck[gpu.uuid, instruction.gi_id] = None
            case _:
                pass

    def _may_have_begun_at(self, machine: Machine, gpu: Gpu, span: Span) -> set[str]:
        """The request for which a place may be created now: booked there, existing, and waiting for no other."""
        return {
            one.allocation
            for one in self.bookings.values()
            if one.node == machine.node
            and one.allocation not in self.said_gone
            and all(each in self.said_gone for each in self.after.get(one.allocation, ()))
            and any((device.gpu, (device.start, device.size)) == (gpu.uuid, span) for device in one.devices)
        }

    def daemon(self, what: str, machine: Machine, daemon: Daemon) -> None:
        """An agent has started a daemon, or is about to stop it."""
        if what == "started" and (wrong := shared_devices.wrong_start(machine, daemon)):
            self.fail("MPS", wrong)
        if what == "stopping" and (wrong := shared_devices.wrong_stop(machine, daemon)):
            self.fail("undisturbed", wrong)

    def terminated(self, machine: Machine, daemon: Daemon, owner: str) -> None:
        """An agent has a server let go of a client."""
        theirs = [
            one.allocation
            for one in self.bookings.values()
            if one.owner == owner
            # One that was only promised, or never taken, has no clients; nor has one of before a reboot.
            and self.ready_in.get(one.allocation) == machine.boots
            and one.allocation not in self.went_with_node
            and any(shared_devices.is_home_of(daemon, machine, device) for device in one.devices)
        ]
        if any(allocation not in self.revoked and allocation not in self.failed for allocation in theirs):
            self.fail("undisturbed", f"a client of {owner} is let go by {daemon}, and its share is not revoked")

    def _shares_with(self, machine: Machine, process: Process, ticket: Ticket) -> bool:
        """Whether a process may come late into the home of others: its ticket is gone, and its share of it is not."""
        gpu = machine.gpu_with(process.device)
        span = gpu.span_of(process.device) if gpu is not None else None
        if gpu is None or span is None or not process.home:
            return False
        mine = [
            each
            for each in self.told_devices.get(process.device, ())
            if self.bookings[each].owner == process.owner and each not in self.said_gone
        ]
        return any(self.live_together(allocation, ticket.allocation, gpu, span) for allocation in mine)

    def began(self, machine: Machine, process: Process) -> None:
        """A process has what its container was started with, and may not have opened its device yet."""
        self.sizes.began.setdefault((machine.node, process.pid), self.clockwork.now)

    def started(self, machine: Machine, process: Process) -> None:
        self.began(machine, process)
        others = {
            ticket.owner
            for ticket in machine.tickets.values()
            if process.device in ticket.devices and not self._shares_with(machine, process, ticket)
        }
        if others and process.owner not in others:
            self.fail("I1", f"{process} has opened what was handed to {', '.join(sorted(others))}")
        for gpu, other in machine.processes():
            together = process.home and process.home == other.home
            if other.owner not in {process.owner, OPERATOR} and other.device == process.device and not together:
                self.fail("I1", f"{process} and {other} share {process.device} of {gpu.uuid}")
        for ticket in machine.tickets.values():
            if ticket.owner == process.owner and process.device in ticket.devices:
                wrong = shared_devices.wrong_client(machine, process, self.bookings[ticket.allocation])
                if wrong:
                    self.fail("MPS", wrong)
        daemon, gpu = machine.mps.alive(process.home), machine.gpu_with(process.device)
        if daemon is not None and gpu is not None:
            names = [one.profile.name for one in gpu.instances.values() if one.uuid == process.device]
            if wrong := overused(gpu, process.home, names[0] if names else ""):
                self.fail("I2", wrong)
