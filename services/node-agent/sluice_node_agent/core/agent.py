"""The node agent's core: reconciles the ledger's orders with the journal and the devices, all again after every event.
It acts only while the head of its ledger names this run; before that it reads and publishes what it has (PROTOCOL §5,
§6). Only a Revoke destroys; absence from the ledger is never an order."""

from msgspec.structs import replace

from sluice.contracts.bus import events as bus_events
from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RunId
from sluice.contracts.messages import Closed, NodeChanged, NodeRemoved, NodeSnapshot, Revoke
from sluice.contracts.outbox import Outbox
from sluice_node_agent.core import events, instructions, journal_records
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.hand_over.controller import DeviceHealth, HandOver, device_health
from sluice_node_agent.core.orders.reconcile import LedgerView, OrderReconciler
from sluice_node_agent.core.publish.publisher import Publisher, SnapshotVersions
from sluice_node_agent.core.publish.slice_status import Tombstones, stuck_on
from sluice_node_agent.core.recovery import orphaned_instances
from sluice_node_agent.core.recovery.discovered import discover, named_gpus
from sluice_node_agent.core.recovery.resume import claims_of, has_changed, resume
from sluice_node_agent.core.shared import lifecycle
from sluice_node_agent.core.shared.controller import SharedDeviceController
from sluice_node_agent.core.slices.controller import SliceController
from sluice_node_agent.core.state.devices import Devices
from sluice_node_agent.core.state.in_flight import HungDrivers, InFlight
from sluice_node_agent.core.state.node_state import NodeState, apply_result
from sluice_node_agent.core.state.tasks import SharedDeviceKey, SharedDeviceTask, SliceTask, Task
from sluice_node_agent.core.state.warm_pool import WarmInstance, WarmPool

WRITES = frozenset({"slice", "node"})
_NOT_OPEN = "the agent is not connected to the allocator yet; check both, and the broker"


class Agent:
    """The agent of one node. `handle` is the only way in; `snapshot` is what a pull returns."""

    def __init__(self, node: NodeName, run: RunId, config: AgentConfig) -> None:
        """Start empty; the first event must be `AgentStarted`."""
        self._node = node
        self._run = run
        self._config = config
        self._outbox = Outbox(run, WRITES, reading="last")
        self._ledger = LedgerView(node)
        self._state = NodeState()
        self._in_flight = InFlight()
        self._hung_drivers = HungDrivers(self._in_flight, config)
        self._warm = WarmPool(self._in_flight, config)
        self._garbage = orphaned_instances.GarbageCollector(config, self._in_flight)
        self._slices = SliceController(run, config, self._state, self._in_flight, self._warm)
        self._shared_devices = SharedDeviceController(run, config, self._state, self._in_flight, self._warm)
        self._hand_over = HandOver(config, self._state, self._in_flight)
        self._confirm_by: float | None = None
        """Until when the kubelet's way of an earlier run is assumed; None when it is known."""
        self._tombstones = Tombstones(config)
        self._snapshots = SnapshotVersions(node, run, config)
        self._publisher = Publisher(node, self._outbox, self._snapshots, self._tombstones, self._state)
        self._reconciler = OrderReconciler(
            self._ledger, self._tombstones, self._slices, self._shared_devices, self._publisher, garbage=self._garbage
        )
        self._orphans = orphaned_instances.OrphanedInstances(config, self._state, self._in_flight, self._shared_devices)
        self._due: dict[AllocationId, None] = {}
        self._homes_due: dict[SharedDeviceKey, None] = {}
        self._read_at: dict[GpuUuid, float] = {}
        """When to read each GPU next; absent while a reading is in flight."""
        self._looks: list[instructions.Instruction] = []
        self._was_forgotten = False
        """The bus lost this node's NodeChanged and the ledger was not read since: the node may no longer be open."""
        self._compare_at: float | None = 0.0
        """When to compare tickets next; None while a comparison is in flight."""
        self._look_at = 0.0
        """When to check next that the bus still has this node's NodeChanged."""
        self._is_open = False

    @property
    def started(self) -> bool:
        """Whether journal and devices were read, so that `snapshot` is complete."""
        return self._snapshots.snapshot is not None

    @property
    def is_open(self) -> bool:
        """Whether the node was opened for this run: orders are carried out."""
        return self._is_open

    @property
    def is_calm(self) -> bool:
        """Whether nothing waits for a time but what is checked every few seconds, however often it ticks."""
        waits = self._in_flight.busy or self._hand_over.has_waiting or self._garbage or self._orphans
        if waits or not self._is_open or self._was_forgotten or self._confirm_by is not None:
            return False
        if self._publisher.has_news or not self._outbox.is_settled:
            return False
        slices, homes = self._state.slices.values(), self._state.homes.values()
        return all(each.idle and each.record.phase == "ready" for each in slices) and all(
            each.idle and each.record.phase == "ready" for each in homes
        )

    def request_of(self, token: int) -> str:
        """The request that an instruction in flight is for, in its trace, or empty; of a home, the last tenant's."""
        match self._in_flight.job_of(token):
            case SliceTask(record=record):
                return record.booking.request
            case SharedDeviceTask(key=key):
                tenants = [work.record for work, _, _ in self._state.tenants(key)]
                waiting = [record for record in tenants if record.phase != "ready"]
                return (waiting or tenants)[-1].booking.request if tenants else ""
            case _:
                return ""

    def snapshot(self) -> NodeSnapshot:
        """All state of this node. Raises RuntimeError before `started`."""
        if self._snapshots.snapshot is None:
            raise RuntimeError(f"{self._node}: journal and devices have not been read yet")
        self._tell()
        return self._snapshots.snapshot

    def device_health(self) -> tuple[DeviceHealth, ...]:
        return device_health(self._state)

    def handle(self, event: events.Event, now: float) -> list[instructions.Instruction]:
        changed = False
        if isinstance(event, bus_events.Ticked):
            self._tick(now)
        elif isinstance(event, events.Result):
            self._take_result(event, now)
            changed = True
        elif isinstance(event, events.AgentStarted):
            self._start(event, now)
            changed = True
        elif isinstance(event, events.NodeEvent):
            changed = self._hear_node(event, now)
        elif isinstance(event, events.KubeletEvent):
            self._hear_kubelet(event, now)
        else:
            self._read_ledger(event, now)
        self._go_through_all(now, changed=changed)
        is_open = self._is_open
        may_wait = is_open and not self._was_forgotten
        if self._publisher.check_news(now, may_wait=may_wait, quiet=not self._in_flight.busy):
            self._tell()
            self._publisher.say_news(now, may_wait=may_wait)
        if is_open and self._reconciler.found.homes:
            self._stop(self._reconciler.found.deserted(self._reconciler.awaited()))
        if is_open:
            self._reconciler.clear_away()
        looks, self._looks = self._looks, []
        return [*self._in_flight.drain(), *looks, *self._hand_over.drain(), *self._outbox.drain()]

    def _hear_node(self, event: events.NodeEvent, now: float) -> bool:
        """News from beside the core; returns whether the snapshot may differ at once."""
        match event:
            case events.GpuTroubled():
                self._expect(event.gpu, now)
                self._read(event.gpu)
            case events.QuarantineReleased():
                self._release(event)
            case events.SlicesIdled():
                self._state.idle_since = event.since
        return isinstance(event, events.SlicesIdled)

    def _go_through_all(self, now: float, *, changed: bool) -> None:
        """Reconcile what an event touched, and publish. `changed`: the snapshot may differ although nothing is due."""
        changed = bool(self._state.boot_id) and (changed or bool(self._due or self._homes_due))
        if changed:
            self._settle(now)
        if self._is_open:
            self._orphans.look(self._reconciler.found, self._reconciler.awaited(), now)
        if changed:
            self._publisher.changed()

    def _tell(self) -> None:
        self._publisher.tell(self._reconciler.found, self._in_flight, self._shared_devices, self._warm)

    def _start(self, event: events.AgentStarted, now: float) -> None:
        """Compare the journal with the devices. Only publishes; nothing is carried out yet."""
        state = self._state
        state.boot_id, state.mps_root = event.boot_id, event.mps_root
        state.devices = Devices(event.gpus, event.marks, event.unmarked, event.nameless)
        for gpu in named_gpus(event):
            state.devices.expect(gpu)
        event = replace(event, gpus=tuple(state.devices.reports.values()))
        state.has_pods, state.time_quota = event.has_pods, event.time_quota
        self._read_at = dict.fromkeys(state.devices.reports, now + self._config.read_devices_s)
        slices = [record for record in event.records if isinstance(record, journal_records.SliceRecord)]
        lived_in = [record for record in event.records if isinstance(record, journal_records.SharedDeviceRecord)]
        claimed = claims_of(slices, lived_in, state.devices)
        for record in slices:
            resumed = resume(record, state.devices, event.boot_id, claimed)
            claimed.update(claims_of([resumed], [], state.devices))
            named = (claim.uid for claim in record.booking.resource_claims if claim.uid in event.cdi_claims)
            resumed = replace(resumed, cdi_files=tuple(dict.fromkeys((*resumed.cdi_files, *named))))
            work = state.enter(resumed)
            if has_changed(record, resumed):
                self._in_flight.save(resumed, work)
        for home in lived_in:
            resumed_home = lifecycle.resume(home, state.devices, event.boot_id, claimed)
            housed = self._shared_devices.enter_resumed(home, lifecycle.held_against(resumed_home, event.homes))
            claimed.update(claims_of([], [housed.record], state.devices))
        warm = [record for record in event.records if isinstance(record, journal_records.WarmRecord)]
        self._warm.resume(warm, state.devices, event.boot_id, claimed, now)
        for stone in event.records:
            if isinstance(stone, journal_records.Tombstone):
                self._tombstones.put(stone)
        self._reconciler.found = discover(event, slices, lived_in, claimed.keys() | self._warm.keys())
        self._stop(self._reconciler.found.useless(state.devices))
        before = next((record for record in event.records if isinstance(record, journal_records.NodeRecord)), None)
        self._snapshots.start(event, before.generation_upto if before is not None else 0)
        if event.hand_over and before is not None and before.hands_over and before.boot_id == event.boot_id:
            self._snapshots.hands_over = True
            self._confirm_by = now + self._config.registered_within_s
        if self._reconciler.found.speaking:
            self._publisher.reserve(
                self._reconciler.found, self._in_flight
            )  # first, so that a crash in the middle silences none of the rest
            self._snapshots.warn(self._reconciler.hear(event.found_tickets, self._node))
        self._due.update(dict.fromkeys(state.slices))
        self._homes_due.update(dict.fromkeys(state.homes))
        for gpu in state.devices.reports:
            self._look_for_users(gpu)
        self._see_whether_open()

    def _stop(self, homes: list[events.FoundMpsHome]) -> None:
        for home in homes:
            self._garbage.clear(home.home, instructions.StopMps(0, home.home, home.pid, home.started_at))

    def _read_ledger(self, event: bus_events.BusEvent, now: float) -> None:
        forgotten = self._is_forgotten(event)
        self._outbox.handle(event, now)
        was_open = self._is_open
        changed = self._ledger.handle(event)
        orders = (order for each in changed if (order := self._ledger.order(each)) is not None)
        for order in orders:
            for grant in order.booking.devices:  # of GPUs, too, that could not read their UUID at the start
                self._expect(grant.gpu, now)
        self._see_whether_open()
        if isinstance(event, bus_events.ReadingStarted) or forgotten:
            self._outbox.recheck()
            self._tombstones.recheck(now)
        self._was_forgotten = forgotten or (self._was_forgotten and not isinstance(event, bus_events.ReadingCaughtUp))
        for allocation in changed:
            if isinstance(self._ledger.entries.get(allocation), Closed):
                self._tombstones.closed_anew(allocation)
        if changed:
            self._look_again_at_planned()
        self._due.update(dict.fromkeys(changed))
        if self._is_open and not was_open:
            everything = (*self._state.slices, *self._tombstones.open_ones(), *self._standing_first())
            self._due.update(dict.fromkeys(everything))
            self._homes_due.update(dict.fromkeys(self._state.homes))

    def _expect(self, gpu: GpuUuid, now: float) -> None:
        """Register a GPU that a record, an order or the GPU itself names: lost until it is read."""
        if self._state.devices.expect(gpu):
            self._reconciler.found.expect(gpu)
            self._read_at[gpu] = now + self._config.read_devices_s

    def _see_whether_open(self) -> None:
        """Update `is_open`: only the start and the ledger change it, and every step reads it."""
        self._is_open = bool(self._state.boot_id) and self._ledger.is_open_for(self._run)

    def _standing_first(self) -> list[AllocationId]:
        """All orders; of two booked at one place, the one that stands comes first and keeps the devices."""
        entries = self._ledger.entries
        return sorted(entries, key=lambda each: isinstance(entries[each], Revoke))

    def _take_result(self, result: events.Result, now: float) -> None:
        taken = self._in_flight.take(result)
        if taken is None:
            return
        sent, job = taken
        was_lost = isinstance(sent, instructions.ReadGpu) and not self._state.devices.answers(sent.gpu)
        apply_result(self._state, sent, result, job)
        if isinstance(sent, instructions.CreateGpuInstance) and isinstance(result, events.GpuInstanceCreated):
            self._reconciler.found.made((sent.gpu, result.gi_id))
        if isinstance(sent, instructions.SaveJournal):
            self._saved(sent, now)
        else:
            self._go_on(job, sent, result, now)
        if job is not None and job.released and job.waits_for is None:
            released, job.released = job.released, {}
            for said in released:
                self._release(said)
        if isinstance(job, SliceTask):
            self._due[job.allocation] = None
        elif isinstance(job, SharedDeviceTask):
            self._look_at_home(job.key)
        if isinstance(sent, instructions.ReadGpu):
            self._gpu_read(sent.gpu, now, was_lost=was_lost)
        elif (
            isinstance(result, events.DeviceRefused)
            and isinstance(sent, instructions.GpuInstruction)
            and not (job is None and isinstance(sent, instructions.ListHolders))  # each reading lists them again
        ):
            self._read(sent.gpu)  # the devices differ from our records: read them

    def _hear_kubelet(self, event: events.KubeletEvent, now: float) -> None:
        match event:
            case events.PrepareAsked():
                self._due.update(dict.fromkeys(self._hand_over.prepare(event, now)))
            case events.UnprepareAsked():
                self._reconciler.found.cdi.pop(event.claim, None)
                self._due.update(dict.fromkeys(self._hand_over.unprepare(event)))
            case events.HandOverChanged(able=able, why=why):
                self._confirm_by = None
                self._set_hand_over(able, why)

    def _set_hand_over(self, able: bool, why: str) -> None:  # noqa: FBT001
        if (self._snapshots.hands_over, self._snapshots.why_not) != (able, why):
            self._snapshots.hands_over, self._snapshots.why_not = able, why
            self._publisher.changed()

    def _go_on(self, job: Task | None, sent: instructions.OwnInstruction, result: events.Result, now: float) -> None:
        match job:
            case SliceTask() | None if isinstance(
                sent, instructions.WriteCdi | instructions.RemoveCdi | instructions.CompareCdi
            ):
                self._due.update(dict.fromkeys(self._hand_over.take_result(job, sent, result, now)))
            case SliceTask():
                self._slices.take_result(job, sent, result, now)
            case SharedDeviceTask():
                self._shared_devices.take_result(job, sent, result, now)
            case orphaned_instances.OrphanedInstance():
                self._orphans.take_result(job, result, self._reconciler.found, self._reconciler.awaited(), now)
            case orphaned_instances.Garbage():
                self._garbage.take_result(job, result, now)
            case WarmInstance():
                self._warm.take_result(job, result, now)
                self._look_at_gpu(job.record.gpu)
            case None if isinstance(sent, instructions.CompareTickets):
                self._compare_at = now + self._config.compare_tickets_s
                wrong = result.wrong if isinstance(result, events.TicketsCompared) else ()
                self._due.update(dict.fromkeys(self._slices.tickets_compared(wrong)))

    def _saved(self, sent: instructions.SaveJournal, now: float) -> None:
        match sent.record:
            case journal_records.NodeRecord(generation_upto=upto):
                self._snapshots.reserved(upto)
            case journal_records.Tombstone() as stone:
                self._state.leave(stone.allocation)
                self._tombstones.put(stone)
                self._due[stone.allocation] = None
                self._look_again_at_planned()
            case journal_records.SliceRecord(phase="degraded") as record:
                self._state.slices[record.booking.allocation].retry_at = now + self._config.remake_retry_s
            case journal_records.SharedDeviceGone() as gone:
                key = self._shared_devices.gone(gone)
                if key is not None:
                    self._look_at_home(key)
                    self._look_at_gpu(key[0])
                self._look_again_at_planned()

    def _gpu_read(self, gpu: GpuUuid, now: float, *, was_lost: bool) -> None:
        self._read_at[gpu] = now + self._config.read_devices_s
        there = (w for w in self._state.slices.values() if any(d.gpu == gpu for d in w.record.booking.devices))
        self._slices.gpu_read([work for work in there if was_lost or work.trouble])
        self._shared_devices.gpu_read(gpu, was_lost=was_lost)
        self._warm.check(gpu, self._state.devices)
        self._reconciler.found.gpu_read(self._state.devices.reports[gpu])
        if gpu in self._reconciler.found.unseen:
            claimed = self._state.claims().keys() | self._warm.keys()
            if self._reconciler.found.see(self._state.devices.reports[gpu], claimed):
                self._due.update(dict.fromkeys(self._standing_first()))
        self._look_for_users(gpu)
        self._look_at_gpu(gpu)

    def _look_for_users(self, gpu: GpuUuid) -> None:
        """List the processes on unassigned instances of a fixed layout: only an empty one is handed out."""
        devices = self._state.devices
        if not devices.is_fixed(gpu) or not devices.answers(gpu):
            return
        claims = self._state.claims()
        for instance in devices.reports[gpu].instances:
            if instance.uuid and (gpu, instance.gi_id) not in claims:
                self._in_flight.send(instructions.ListHolders(self._in_flight.next_token, gpu, instance.uuid), None)

    def _look_at_gpu(self, gpu: GpuUuid) -> None:
        there = [a for a, work in self._state.slices.items() if any(d.gpu == gpu for d in work.record.booking.devices)]
        self._due.update(dict.fromkeys(there))
        self._homes_due.update(dict.fromkeys(key for key in self._state.homes if key[0] == gpu))

    def _look_at_home(self, key: SharedDeviceKey) -> None:
        self._homes_due[key] = None
        self._due.update(dict.fromkeys(work.allocation for work, _, _ in self._state.tenants(key)))

    def _release(self, event: events.QuarantineReleased) -> None:
        work = self._state.slices.get(event.allocation)
        stuck = stuck_on(work, self._state, self._config) if work is not None else None
        if work is None or stuck is None:
            return
        busy = next((job for job in (stuck, work) if job.waits_for is not None), None)
        if busy is not None:
            busy.released[event] = None
            return
        stuck.retry_at = None
        if event.ignore_holders and isinstance(stuck, SharedDeviceTask):
            self._shared_devices.vouch(stuck)
        if event.ignore_holders and work.record.revoked:
            self._slices.save(replace(work.record, ignores_holders=True))
        self._due[work.allocation] = None
        self._homes_due.update(dict.fromkeys(work.homes))

    def _is_forgotten(self, event: bus_events.BusEvent) -> bool:
        """Whether the bus lost a NodeChanged that it had acknowledged, or a message declares this node absent. A wiped
        broker starts no reading, and the allocator learns of the node only from that NodeChanged."""
        snapshots = subjects.node(self._node)
        if not isinstance(event, bus_events.LastRead) or event.subject != snapshots.subject:
            return False
        known = self._outbox.current(snapshots)
        if known is None:
            return False
        if event.entry is None or isinstance(event.entry.message, NodeRemoved):
            return True
        return self._is_of_before(event.entry, known)

    def _is_of_before(self, entry: bus_events.Entry, known: bus_events.Entry) -> bool:
        """Whether an older NodeChanged than ours has arrived late on an empty subject. A later one of another run is of
        an agent that took over; an older one of our own comes from a lagging server, before the last that we published
        there."""
        theirs, ours = entry.message, known.message
        if not isinstance(theirs, NodeChanged) or not isinstance(ours, NodeChanged) or ours.agent_run != self._run:
            return False
        is_later = theirs.agent_run != self._run or entry.sequence > known.sequence
        return is_later and theirs.generation < ours.generation

    def _tick(self, now: float) -> None:
        self._outbox.tick(now)
        if self.started and self._look_at <= now:
            self._look_at = now + self._config.look_s
            self._looks.append(bus_events.ReadLast(bus_events.Stream.STATE, subjects.node(self._node).subject))
        for allocation, work in self._state.slices.items():
            if work.retry_at is not None and work.retry_at <= now:
                work.retry_at = None
                self._due[allocation] = None
        self._homes_due.update(dict.fromkeys(self._shared_devices.tick(now)))
        self._garbage.tick(now)
        self._hand_over.tick(now, "" if self._is_open else _NOT_OPEN)
        if self._confirm_by is not None and self._confirm_by <= now:
            self._confirm_by = None
            self._set_hand_over(False, "")
        if self._is_open:
            self._warm.tick(now)
            self._compare_tickets(now)
        for gpu, why in self._hung_drivers.look(now).items():
            if self._state.devices.answers(gpu):  # it is read when the call returns
                self._state.devices.lose(gpu, why)
                self._look_at_gpu(gpu)
        for gpu in [gpu for gpu, at in self._read_at.items() if at <= now]:
            self._read(gpu)
        for allocation in self._tombstones.forget_old(now):
            self._in_flight.save(journal_records.ForgottenTombstone(allocation=allocation), None)

    def _compare_tickets(self, now: float) -> None:
        if self._compare_at is None or self._compare_at > now or not self._config.compare_tickets_s:
            return
        tickets = self._slices.tickets_to_compare()
        if tickets:
            self._compare_at = None
            self._in_flight.send(instructions.CompareTickets(self._in_flight.next_token, tickets), None)

    def _read(self, gpu: GpuUuid) -> None:
        if self._read_at.pop(gpu, None) is not None:
            self._in_flight.read(gpu)

    def _look_again_at_planned(self) -> None:
        planned = (a for a, work in self._state.slices.items() if work.record.phase == "planned")
        self._due.update(dict.fromkeys(planned))

    def _settle(self, now: float) -> None:
        while self._due or self._homes_due:
            while self._due:
                allocation = next(iter(self._due))
                del self._due[allocation]
                self._settle_slice(allocation, now)
            if self._homes_due:
                key = next(iter(self._homes_due))
                del self._homes_due[key]
                if self._is_open and self._shared_devices.advance(key, now):
                    self._look_at_home(key)
                for work, _, _ in self._state.tenants(key):
                    self._publisher.say(work)

    def _settle_slice(self, allocation: AllocationId, now: float) -> None:
        if self._is_open:
            self._reconciler.take(allocation, now)
        work = self._state.slices.get(allocation)
        if work is None:
            return
        self._hand_over.advance(work)  # also while no order can be read: the slice is there
        if self._is_open:
            self._slices.advance(work, now, is_next=self._reconciler.is_next(work.record))
        if work.homes:
            self._homes_due.update(dict.fromkeys(work.homes))
        self._publisher.say(work)
