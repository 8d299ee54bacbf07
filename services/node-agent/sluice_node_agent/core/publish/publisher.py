"""Publishes the status of every slice and the state of the node, again when the bus lost it; changes no record."""

from collections.abc import Iterator, Sequence

from sluice.contracts import messages
from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RunId
from sluice.contracts.outbox import Outbox
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.events import AgentStarted
from sluice_node_agent.core.journal_records import NodeRecord, SliceRecord
from sluice_node_agent.core.publish import slice_status
from sluice_node_agent.core.recovery.discovered import Discovered
from sluice_node_agent.core.shared.controller import SharedDeviceController
from sluice_node_agent.core.state.devices import ShownFacts
from sluice_node_agent.core.state.in_flight import InFlight
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.core.state.tasks import SliceTask, numbered_devices
from sluice_node_agent.core.state.warm_pool import WarmPool

_WARNINGS_MAX = 8
"""The most warnings in a snapshot: every pull carries them."""


class SnapshotVersions:
    """The snapshot of one node and its generation."""

    def __init__(self, node: NodeName, run: RunId, config: AgentConfig) -> None:
        self._node = node
        self._run = run
        self.config = config
        self._start = AgentStarted("", "", ())
        self._warnings: tuple[str, ...] = ()
        self.hands_over = False
        self.why_not = ""
        self._generation = 0
        self._asked_upto = 0
        self._reserved_upto = 0
        self.snapshot: messages.NodeSnapshot | None = None

    def start(self, event: AgentStarted, generation: int) -> None:
        """A new run: no generation up to `generation` may be used again."""
        self._start = event
        if event.journal_problem:
            self._warnings = (f"rebuilt from devices and ledger: {event.journal_problem}",)
        left_out = (f"a GPU cannot read its UUID, so it gets no new slices: {why}" for why in event.nameless.values())
        self._warnings = (*self._warnings, *left_out)
        if event.has_pods and event.why_unseen:
            unseen = (
                f"slices of pods cannot be destroyed, because their processes cannot be checked: {event.why_unseen}"
            )
            self._warnings = (*self._warnings, unseen)
        self._generation = self._asked_upto = self._reserved_upto = generation

    def warn(self, sentences: Sequence[str]) -> None:
        """Warnings of this run, for operators; only the first few are kept."""
        more = len(sentences) - _WARNINGS_MAX
        rest = (f"and {more} more",) if more > 0 else ()
        self._warnings = (*self._warnings, *sentences[:_WARNINGS_MAX], *rest)

    def must_reserve(self) -> bool:
        """Whether the reserved generations run out."""
        return self._asked_upto - self._generation < self.config.generation_block // 2

    def reserve(self) -> int:
        """The highest generation to save in the journal."""
        self._asked_upto = self._generation + self.config.generation_block
        return self._asked_upto

    def reserved(self, upto: int) -> None:
        """The journal has saved it."""
        self._reserved_upto = max(self._reserved_upto, upto)

    def tells(
        self,
        gpus: tuple[messages.GpuReport, ...],
        slices: tuple[messages.SliceReport, ...],
        doubtful_tickets: tuple[str, ...],
    ) -> bool:
        """Whether the snapshot already shows exactly this."""
        told = self.snapshot
        if told is None or told.kubelet_hands_over != self.hands_over or told.warnings != self._all_warnings():
            return False
        return (told.gpus, told.slices, told.doubtful_tickets) == (gpus, slices, doubtful_tickets)

    def update(
        self,
        gpus: tuple[messages.GpuReport, ...],
        slices: tuple[messages.SliceReport, ...],
        doubtful_tickets: tuple[str, ...] = (),
    ) -> messages.NodeChanged | None:
        """Apply the current state. Returns a NodeChanged when a pull would show a difference."""
        if self.tells(gpus, slices, doubtful_tickets):
            return None
        if self._generation >= self._reserved_upto:
            return None  # published when the journal holds the next block
        self._generation += 1
        self.snapshot = messages.NodeSnapshot(
            node=self._node,
            boot_id=self._start.boot_id,
            agent_run=self._run,
            generation=self._generation,
            driver_version=self._start.driver_version,
            gpus=gpus,
            slices=slices,
            modes=self._start.modes,
            time_quota=self._start.time_quota,
            toolkit_version=self._start.toolkit_version,
            warnings=self._all_warnings(),
            kubelet_hands_over=self.hands_over,
            doubtful_tickets=doubtful_tickets,
        )
        return messages.NodeChanged(
            node=self._node,
            endpoint=self._start.endpoint,
            boot_id=self._start.boot_id,
            agent_run=self._run,
            generation=self._generation,
            gpus=tuple(_counts(gpu) for gpu in gpus),
            version=self._start.version,
            certificate=self._start.certificate,
        )

    def _all_warnings(self) -> tuple[str, ...]:
        why = (f"the kubelet cannot hand devices over: {self.why_not}",) if self.why_not else ()
        return (*self._warnings, *why)


def _counts(gpu: messages.GpuReport) -> messages.GpuCounts:
    return messages.GpuCounts(
        uuid=gpu.uuid,
        model=gpu.model,
        instances=len(gpu.instances),
        creatable=gpu.creatable,
        creatable_total=sum(gpu.creatable.values()),
    )


class Publisher:
    """The agent's outbox on the bus, and the snapshot for pulls."""

    def __init__(
        self,
        node: NodeName,
        outbox: Outbox,
        snapshots: SnapshotVersions,
        tombstones: slice_status.Tombstones,
        state: NodeState,
    ) -> None:
        self._node = node
        self._config = snapshots.config
        self._outbox = outbox
        self._snapshots = snapshots
        self._tombstones = tombstones
        self._state = state
        self._untold = False
        """Whether the node may differ from the snapshot."""
        self._unsaid: messages.NodeChanged | None = None
        """The NodeChanged of the snapshot that was not published yet."""
        self._unsaid_since = 0.0
        self._say_at = 0.0
        """When the next NodeChanged of an open node may be published."""
        self._reported: dict[AllocationId, tuple[SliceRecord, messages.SliceReport]] = {}
        """The last report of each slice, and the record that it was made from."""
        self._reports_last: tuple[messages.SliceReport, ...] = ()
        self._hands_over_saved = False
        self._told_last: tuple[object, ...] | None = None
        """The inputs of the current snapshot; None where it is incomplete."""

    def say(self, work: SliceTask) -> None:
        """Keep the status of a slice on the bus. What is not in the journal yet is not published."""
        if work.saving:
            return
        address = subjects.slice_(self._node, work.allocation)
        word = slice_status.status_message(work, self._state, self._config)
        if word is None:
            self._outbox.forget(address)
        else:
            self._outbox.keep(address, word, request=word.request)

    def say_gone(self, allocation: AllocationId, now: float, *, is_closed: bool) -> None:
        """Publish the last status of a slice: for good, or until its readers have acknowledged it (`is_closed`)."""
        word = self._tombstones.word(allocation, closed=is_closed, now=now)
        if word is not None:
            gone, ttl_s = word
            self._outbox.keep(subjects.slice_(self._node, allocation), gone, request=gone.request, ttl_s=ttl_s)

    def say_closed(self, closed: messages.Closed) -> None:
        """Closed, and no record of it: remove its leftover status from the bus."""
        gone = slice_status.gone_message(closed, closing=True)
        address = subjects.slice_(self._node, closed.allocation)
        self._outbox.keep(address, gone, request=gone.request, ttl_s=self._config.closing_ttl_s)

    def reserve(self, found: Discovered, in_flight: InFlight) -> None:
        """Reserve generations in the journal when they run out. `found` and the kubelet's way are saved with them."""
        if self._snapshots.must_reserve() or self._hands_over_saved != self._snapshots.hands_over:
            self._hands_over_saved = self._snapshots.hands_over
            record = NodeRecord(
                node=self._node,
                boot_id=self._state.boot_id,
                generation_upto=self._snapshots.reserve(),
                unclaimed=found.unclaimed_records(),
                unseen=tuple(found.unseen),
                seen=found.seen(self._state.devices),
                tickets=found.speaking,
                hands_over=self._hands_over_saved,
            )
            in_flight.save(record, None)

    def changed(self) -> None:
        """The node may differ from the snapshot now."""
        self._untold = True

    def tell(
        self, found: Discovered, in_flight: InFlight, shared_devices: SharedDeviceController, warm: WarmPool
    ) -> None:
        """Make the snapshot current. It costs as much as the node is full, so it runs only before it is published."""
        if not self._untold:
            return
        state = self._state
        self.reserve(found, in_flight)
        made_of = self._all_that_is_told(found, warm)
        if made_of == self._told_last:  # usually the same objects
            self._untold = False
            return
        quarantined: dict[GpuUuid, tuple[messages.PlacementReport, ...]] = {}
        for gpu, span in [*self._stuck(), *shared_devices.out_of_use(), *warm.stuck(), *self._served(found)]:
            if span not in quarantined.get(gpu, ()):
                quarantined[gpu] = (*quarantined.get(gpu, ()), span)
        seen = ShownFacts(state.claims(), quarantined, shared_devices.daemons(), warm.in_nobodys_way())
        gpus, slices = state.devices.shown(seen), self._reports()
        changed = self._snapshots.update(gpus, slices, found.doubtful)
        if changed is not None:
            self._unsaid = changed
        self._untold = not self._snapshots.tells(gpus, slices, found.doubtful)  # else: no generation was left
        self._told_last = made_of if not self._untold else None

    def _all_that_is_told(self, found: Discovered, warm: WarmPool) -> tuple[object, ...]:
        """All inputs of the snapshot; equal while it stays the same. Tenants of homes follow from the slices."""
        state = self._state
        slices = [(work.record, work.failures) for work in state.slices.values()]
        homes = [(home.record, home.seen, home.trouble, home.failures) for home in state.homes.values()]
        hand_over = (self._snapshots.hands_over, self._snapshots.why_not)
        rest = (warm.in_nobodys_way(), found.doubtful, found.served_gpus(), hand_over, state.idle_since)
        return slices, homes, state.devices.known(), *rest

    @property
    def has_news(self) -> bool:
        """Whether the node may differ from what was published last."""
        return self._untold or self._unsaid is not None

    def check_news(self, now: float, *, may_wait: bool, quiet: bool) -> bool:
        """Note since when the node differs from what was published. Returns whether to publish it: at once while the
        node is not open, because the allocator has to know all of it first (PROTOCOL §6). Of an open node (`may_wait`),
        when nothing is in flight (`quiet`) or the interval is over: a burst of slices is one message."""
        if not self.has_news:
            self._unsaid_since = now
            return False
        if not may_wait:
            return True
        return self._say_at <= now and (quiet or now - self._unsaid_since >= self._config.news_every_s)

    def say_news(self, now: float, *, may_wait: bool) -> None:
        """Publish the node's state if it differs from the last one published."""
        if self._unsaid is not None:
            self._outbox.keep(subjects.node(self._node), self._unsaid)
            self._unsaid = None
            if may_wait:  # the first after opening does not wait for earlier ones
                self._say_at = now + self._config.news_every_s
        if not self._untold:
            self._unsaid_since = now

    def _reports(self) -> tuple[messages.SliceReport, ...]:
        slices, reported = self._state.slices, self._reported
        changed = len(slices) != len(reported)
        for allocation, work in slices.items():
            record, state = work.record, slice_status.slice_state(work, self._state, self._config)
            known, idle_since = reported.get(allocation), self._state.idle_since.get(allocation, 0)
            if known is None or known[0] is not record or (known[1].state, known[1].idle_since) != (state, idle_since):
                reported[allocation] = record, slice_status.slice_report(record, state, idle_since)
                changed = True
        if changed:
            self._reported = {allocation: reported[allocation] for allocation in slices}
            self._reports_last = tuple(report for _, report in self._reported.values())
        return self._reports_last

    def _served(self, found: Discovered) -> Iterator[tuple[GpuUuid, messages.PlacementReport]]:
        """Whole GPUs with a daemon of an unknown tenant: no instance shows that they are not free."""
        homed = {gpu for gpu, _, _ in self._state.homes}
        for gpu in found.served_gpus():
            report = self._state.devices.reports.get(gpu)
            if report is not None and gpu not in homed:
                yield gpu, messages.PlacementReport(start=0, size=max(1, report.memory_slices))

    def _stuck(self) -> list[tuple[GpuUuid, messages.PlacementReport]]:
        return [
            (grant.gpu, messages.PlacementReport(start=grant.start, size=grant.size))
            for work in self._state.slices.values()
            if work.failures and slice_status.stuck_on(work, self._state, self._config) is work
            for _, grant, _ in numbered_devices(work.record)
        ]
