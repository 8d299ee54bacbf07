"""
The node agent's decisions: what the ledger orders, held against journal and devices.

Everything is derived again after every event, so a restart, a duplicate, a skipped value and a wiped broker need no
path of their own. It acts only when the head of its ledger names this run; before that it only reads, and tells what
it has (PROTOCOL §5, §6). Only a Revoke destroys; absence from the ledger is never an order.
"""

from msgspec.structs import replace

from sluice.contracts import subjects
from sluice.contracts.exchange import ExchangeEvent, LastRead, ReadingStarted, ReadLast, Stream, Ticked
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RunId
from sluice.contracts.messages import Closed, Grant, NodeSnapshot, PlacementReport, Revoke, SliceGone
from sluice.contracts.outbox import Outbox
from sluice_node_agent.core import making
from sluice_node_agent.core.bench import Bench
from sluice_node_agent.core.devices import Devices, InstanceKey
from sluice_node_agent.core.events import (
    GPU_INSTRUCTIONS,
    RESULTS,
    AgentStarted,
    DeviceRefused,
    Event,
    Instruction,
    ReadGpu,
    Result,
    SaveJournal,
)
from sluice_node_agent.core.graves import Graves
from sluice_node_agent.core.news import News
from sluice_node_agent.core.orders import Orders
from sluice_node_agent.core.records import Forgotten, NodeRecord, SliceRecord, Tombstone, Unclaimed
from sluice_node_agent.core.resuming import claims_of, resume, take_over
from sluice_node_agent.core.rules import Rules
from sluice_node_agent.core.words import is_stuck, report_of, word_of
from sluice_node_agent.core.work import Work, pairs


class Agent:
    """One node's agent. `handle` is the only way in; `snapshot` is what the pull serves."""

    def __init__(self, node: NodeName, run: RunId, rules: Rules) -> None:
        """Begin knowing nothing; `AgentStarted` comes first."""
        self._node = node
        self._run = run
        self._rules = rules
        self._outbox = Outbox(run, frozenset({"slice", "node"}), reading="last")
        self._orders = Orders(node)
        self._bench = Bench(run, rules)
        self._graves = Graves(rules)
        self._news = News(node, run, rules)
        self._unclaimed: dict[InstanceKey, str] = {}
        """Instances (and their MIG UUIDs) found when the journal was found lost: perhaps ours."""
        self._loose_tickets: tuple[str, ...] = ()
        """Tickets found that no record names: made before the journal was lost."""
        self._due: dict[AllocationId, None] = {}
        """What has to be looked at."""
        self._read_at: dict[GpuUuid, float] = {}
        """When each GPU shall be read next; absent while a reading is out."""
        self._looks: list[Instruction] = []
        self._look_at = 0.0
        """When to look whether the bus still has the news of this node."""

    @property
    def started(self) -> bool:
        """Whether journal and devices were read, so that `snapshot` tells the truth."""
        return self._news.snapshot is not None

    @property
    def is_open(self) -> bool:
        """Whether the node was opened for this run, so that orders are carried out."""
        return bool(self._bench.boot_id) and self._orders.is_open_for(self._run)

    def snapshot(self) -> NodeSnapshot:
        """Everything known of this node. Raises RuntimeError before `started`."""
        if self._news.snapshot is None:
            raise RuntimeError(f"{self._node}: journal and devices have not been read yet")
        return self._news.snapshot

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take in one event; returns what to do."""
        if isinstance(event, AgentStarted):
            self._start(event, now)
        elif isinstance(event, RESULTS):
            self._take_result(event, now)
        elif isinstance(event, Ticked):
            self._tick(now)
        else:
            self._read_ledger(event, now)
        if self._bench.boot_id:
            self._settle(now)
            self._tell()
        looks, self._looks = self._looks, []
        return [*self._bench.drain(), *looks, *self._outbox.drain()]

    # -- events ---------------------------------------------------------------------------------------------------

    def _start(self, event: AgentStarted, now: float) -> None:
        """Hold what the journal says against what is there. Nothing is done yet but to tell it."""
        bench = self._bench
        bench.boot_id = event.boot_id
        bench.devices = Devices(event.gpus)
        self._read_at = dict.fromkeys(bench.devices.reports, now + self._rules.read_devices_s)
        slices = [record for record in event.records if isinstance(record, SliceRecord)]
        claimed = claims_of(slices)
        for record in slices:
            resumed = resume(record, bench.devices, event.boot_id, claimed)
            claimed.update(claims_of([resumed]))
            bench.works[record.booking.allocation] = Work(resumed)
        for stone in event.records:
            if isinstance(stone, Tombstone):
                self._graves.put(stone)
        named = {ticket for record in slices for ticket in (record.ticket, *record.stale_tickets)}
        self._loose_tickets = tuple(ticket for ticket in event.tickets if ticket not in named)
        before = next((record for record in event.records if isinstance(record, NodeRecord)), None)
        self._unclaimed = _unclaimed(event, before, claimed)
        self._news.start(event, before.generation_upto if before is not None else 0)
        self._due.update(dict.fromkeys(bench.works))

    def _read_ledger(self, event: ExchangeEvent, now: float) -> None:
        forgotten = self._is_forgotten(event)
        self._outbox.handle(event, now)
        was_open = self.is_open
        changed = self._orders.handle(event)
        if isinstance(event, ReadingStarted) or forgotten:
            self._outbox.recheck()
            self._graves.recheck(now)
        if changed:
            self._look_again_at_planned()
        self._due.update(dict.fromkeys(changed))
        if self.is_open and not was_open:
            everything = (*self._bench.works, *self._graves.open_ones(), *self._orders.entries)
            self._due.update(dict.fromkeys(everything))

    def _take_result(self, result: Result, now: float) -> None:
        taken = self._bench.take_result(result, now)
        if taken is None:
            return
        sent, touched = taken
        self._due.update(dict.fromkeys(touched))
        match sent:
            case SaveJournal(record=NodeRecord(generation_upto=upto)):
                self._news.reserved(upto)
            case SaveJournal(record=Tombstone() as stone):
                self._bench.works.pop(stone.allocation, None)
                self._graves.put(stone)
                self._due[stone.allocation] = None
                self._look_again_at_planned()
            case SaveJournal(record=SliceRecord(phase="degraded") as record):
                self._bench.works[record.booking.allocation].retry_at = now + self._rules.remake_retry_s
            case ReadGpu(gpu=gpu):
                self._read_at[gpu] = now + self._rules.read_devices_s
            case _:
                if isinstance(result, DeviceRefused) and isinstance(sent, GPU_INSTRUCTIONS):
                    self._read(sent.gpu)  # something is not as we thought: look

    def _is_forgotten(self, event: ExchangeEvent) -> bool:
        """
        Whether the bus has forgotten news that it had acknowledged.

        A wiped broker has forgotten the durable of the ledger too: nothing can be read, so no reading starts, and the
        allocator, which makes the durable, does not know of the node before its news are there again.
        """
        news = subjects.node(self._node)
        is_none = isinstance(event, LastRead) and event.subject == news.subject and event.entry is None
        return is_none and self._outbox.current(news) is not None

    def _tick(self, now: float) -> None:
        self._outbox.tick(now)
        if self.started and self._look_at <= now:
            self._look_at = now + self._rules.look_s
            self._looks.append(ReadLast(Stream.STATE, subjects.node(self._node).subject))
        for allocation, work in self._bench.works.items():
            if work.retry_at is not None and work.retry_at <= now:
                work.retry_at = None
                self._due[allocation] = None
        for gpu in [gpu for gpu, at in self._read_at.items() if at <= now]:
            self._read(gpu)
        for allocation in self._graves.forget_old(now):
            self._bench.save(Forgotten(allocation=allocation))

    def _read(self, gpu: GpuUuid) -> None:
        if self._read_at.pop(gpu, None) is not None:
            self._bench.read(gpu)

    # -- orders ---------------------------------------------------------------------------------------------------

    def _look_again_at_planned(self) -> None:
        """Something may be gone that a planned slice has to come after."""
        planned = (a for a, work in self._bench.works.items() if work.record.phase == "planned")
        self._due.update(dict.fromkeys(planned))

    def _settle(self, now: float) -> None:
        """Look at everything of which something changed."""
        is_open = self.is_open
        while self._due:
            allocation = next(iter(self._due))
            del self._due[allocation]
            if is_open:
                self._take_order(allocation, now)
            work = self._bench.works.get(allocation)
            if work is not None and is_open:
                self._bench.advance(work, is_next=self._is_next(work.record))
            if work is not None:
                self._say(work)

    def _take_order(self, allocation: AllocationId, now: float) -> None:
        """Compare the ledger's order with what is known, and take it if it is newer."""
        order = self._orders.order(allocation)
        work = self._bench.works.get(allocation)
        if work is not None:
            if order is not None and order.revision > work.record.revision and work.waits_for is None:
                self._take_newer(work, order)
        elif allocation in self._graves:
            stone = self._graves[allocation]
            if order is not None and order.revision > stone.revision:
                self._bench.save(replace(stone, revision=order.revision))
            else:
                self._say_gone(allocation, now)
        elif order is not None:
            self._take_first(order)
        elif isinstance(self._orders.entries.get(allocation), Closed):
            self._say_closed(allocation)

    def _take_first(self, order: Grant | Revoke) -> None:
        """An order of which the journal knows nothing."""
        bench = self._bench
        record = take_over(order, bench.devices, self._unclaimed, self._loose_tickets, bench.boot_id)
        if record.phase == "planned" and self._is_next(record):
            record = making.begin(record, bench.boot_id, bench.new_ticket(record.booking.allocation))
        for key in claims_of([record]):
            self._unclaimed.pop(key, None)
        bench.save(record)

    def _take_newer(self, work: Work, order: Grant | Revoke) -> None:
        """What is revoked stays revoked. A place never moves: a Grant that names another one is not taken."""
        record = work.record
        if isinstance(order, Revoke) or record.revoked:
            cause = order.cause if isinstance(order, Revoke) else record.cause
            record = replace(record, phase="unmaking", revision=order.revision, cause=cause)
        elif order.booking.devices == record.booking.devices:
            phase = "planned" if record.phase == "failed" else record.phase
            record = replace(record, phase=phase, revision=order.revision, booking=order.booking, after=order.after)
        else:
            return
        work.retry_at = None
        self._bench.save(record)

    def _is_next(self, record: SliceRecord) -> bool:
        """Whether everything that a planned slice has to come after is gone."""
        return all(
            other not in self._bench.works and (other in self._graves or self._orders.is_closed(other))
            for other in record.after
        )

    # -- words ----------------------------------------------------------------------------------------------------

    def _say(self, work: Work) -> None:
        """Keep the word of a slice on the bus. What is not in the journal yet is not said."""
        if work.saving:
            return
        address = subjects.slice_(self._node, work.allocation)
        word = word_of(work, self._bench.devices, self._rules)
        if word is None:
            self._outbox.forget(address)
        else:
            self._outbox.keep(address, word, request=word.request)

    def _say_gone(self, allocation: AllocationId, now: float) -> None:
        word = self._graves.word(allocation, closed=self._orders.is_closed(allocation), now=now)
        if word is not None:
            gone, ttl_s = word
            self._outbox.keep(subjects.slice_(self._node, allocation), gone, request=gone.request, ttl_s=ttl_s)

    def _say_closed(self, allocation: AllocationId) -> None:
        """Closed, and we remember nothing of it: what may still be said of it on the bus must not stay for ever."""
        closed = self._orders.entries[allocation]
        assert isinstance(closed, Closed)
        gone = SliceGone(
            allocation=allocation, request=closed.request, revision=closed.revision, cause=closed.cause, closing=True
        )
        address = subjects.slice_(self._node, allocation)
        self._outbox.keep(address, gone, request=gone.request, ttl_s=self._rules.closing_ttl_s)

    def _tell(self) -> None:
        """Serve what is true now, and say so when it changed."""
        bench = self._bench
        if self._news.must_reserve():
            unclaimed = tuple(Unclaimed(gpu=key[0], gi_id=key[1], uuid=uuid) for key, uuid in self._unclaimed.items())
            upto = self._news.reserve()
            bench.save(NodeRecord(node=self._node, boot_id=bench.boot_id, generation_upto=upto, unclaimed=unclaimed))
        claims: dict[InstanceKey, AllocationId] = {}
        quarantined: dict[GpuUuid, tuple[PlacementReport, ...]] = {}
        for allocation, work in bench.works.items():
            for _, grant, device in pairs(work.record):
                if device.gi_id is not None:
                    claims[grant.gpu, device.gi_id] = allocation
                if is_stuck(work, self._rules):
                    span = PlacementReport(start=grant.start, size=grant.size)
                    quarantined[grant.gpu] = (*quarantined.get(grant.gpu, ()), span)
        slices = tuple(report_of(work, bench.devices, self._rules) for work in bench.works.values())
        changed = self._news.update(bench.devices.shown(claims, quarantined), slices)
        if changed is not None:
            self._outbox.keep(subjects.node(self._node), changed)


def _unclaimed(
    event: AgentStarted, before: NodeRecord | None, claimed: dict[InstanceKey, None]
) -> dict[InstanceKey, str]:
    """Which instances may be ours although no record says so: those found when the journal was found lost."""
    found: list[tuple[InstanceKey, str]] = []
    if event.journal_problem:
        found = [((gpu.uuid, instance.gi_id), instance.uuid) for gpu in event.gpus for instance in gpu.instances]
    elif before is not None and before.boot_id == event.boot_id:
        found = [((instance.gpu, instance.gi_id), instance.uuid) for instance in before.unclaimed]
    return {key: uuid for key, uuid in found if key not in claimed}
