"""The hosts of the allocator, the inventory and the pod-watcher: their cores, and their shells' duties."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from simulation.judges.claims import admitted, as_asked
from simulation.judges.moves import COOLDOWN_S
from simulation.plans.pods import DEVICES_MAX
from simulation.world.agents import AgentHost
from simulation.world.broker import Broker
from simulation.world.host import Core, Host
from simulation.world.manifest_folder import Folder
from simulation.world.trace import Trace
from simulation.world.virtual_clock import VirtualClock

from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import NodeName, RunId
from sluice_allocator.core import config as allocator_rules
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.events import AgentEnsured, AnswerAdjust, EnsureAgent, LeaseChanged
from sluice_inventory.core import node as inventory_rules
from sluice_inventory.core.events import Pull, PullFailed, PullSucceeded
from sluice_inventory.core.inventory import Inventory
from sluice_pod_watcher.core.folder import events as folder_events
from sluice_pod_watcher.core.folder import events as watcher_rules
from sluice_pod_watcher.core.folder.watcher import READS, FolderWatcher

PULL_TIMEOUT_S = 1.5
DISK_S = 0.004
Readings = list[tuple[Stream, tuple[str, ...], NodeName | None]]


class AllocatorHost(Host):
    """One allocator, with or without the lease."""

    kind = "allocator"

    def __init__(
        self,
        name: str,
        rules: allocator_rules.SchedulerConfig,
        clockwork: VirtualClock,
        broker: Broker,
        dice: Random,
        trace: Trace,
    ) -> None:
        """It holds no lease until it is given one."""
        super().__init__(name, clockwork, broker, dice, trace)
        self.rules = rules
        self.holds_lease = False
        self.on_answer: list[Callable[[AnswerAdjust], None]] = []

    def make_core(self, run: RunId) -> Core:
        return Allocator(run, self.rules)

    def readings(self) -> Readings:
        return [(Stream.BOOK, (), None), (Stream.STATE, (), None)]

    def begin(self) -> None:
        self.offer(LeaseChanged(self.holds_lease))

    def lease(self, *, held: bool) -> None:
        """The lease was won or lost."""
        self.holds_lease = held
        self.offer(LeaseChanged(held))

    def execute(self, instruction: object) -> None:
        """Declare an agent's consumer, or report to the process that asked for a change."""
        if isinstance(instruction, AnswerAdjust):
            for hear in self.on_answer:
                hear(instruction)
            return
        assert isinstance(instruction, EnsureAgent), instruction
        node = instruction.node

        def ensure() -> None:
            broker = self.broker
            made = broker.up and self.name not in broker.cut and broker.values.has(Stream.BOOK)
            if made:
                broker.values.ensure_agent(node)
            self.later(0.002, lambda: self.offer(AgentEnsured(node, made=made)))

        self.clockwork.after(0.002, ensure)


class InventoryHost(Host):
    """The inventory; it pulls agents directly."""

    kind = "inventory"

    def __init__(
        self,
        agents: dict[str, AgentHost],
        rules: inventory_rules.InventoryConfig,
        clockwork: VirtualClock,
        broker: Broker,
        dice: Random,
        trace: Trace,
    ) -> None:
        """`agents` by node."""
        super().__init__("inventory", clockwork, broker, dice, trace)
        self.agents = agents
        self.rules = rules

    def make_core(self, run: RunId) -> Core:
        return Inventory(run, self.rules)

    def readings(self) -> Readings:
        """Nodes and what was said of them."""
        return [(Stream.STATE, ("sluice.node.>", "sluice.inventory.>"), None)]

    def execute(self, instruction: object) -> None:
        """Pull one node; within a bounded time there is an answer or none."""
        assert isinstance(instruction, Pull), instruction
        node, endpoint = instruction.node, instruction.endpoint
        sky = self.broker.sky
        if sky.chance("pull_failed", self.clockwork.now):
            self.later(PULL_TIMEOUT_S, lambda: self.offer(PullFailed(node, "no answer in time")))
            return
        back = sky.latency() + (min(sky.long(), PULL_TIMEOUT_S) if sky.chance("stall", self.clockwork.now) else 0.0)

        def arrive() -> None:
            answer = self.agents[node].pull(endpoint)
            event = PullFailed(node, answer) if isinstance(answer, str) else PullSucceeded(node, answer)
            self.later(back, lambda: self.offer(event))

        self.later(sky.latency(), arrive)


class WatcherHost(Host):
    """The pod-watcher on the folder; `identities` is its disk."""

    kind = "pod-watcher"

    def __init__(
        self,
        folder: Folder,
        rules: watcher_rules.FolderConfig,
        clockwork: VirtualClock,
        broker: Broker,
        dice: Random,
        trace: Trace,
        *,
        evicts: bool = True,
    ) -> None:
        """Watch one folder. Without `evicts` it gets no order to evict: another watcher carries them out."""
        super().__init__("pod-watcher", clockwork, broker, dice, trace)
        self.evicts = evicts
        self.admits = False
        """Whether admission adds ResourceClaims to what it asks for."""
        self.folder = folder
        self.rules = rules
        self.identities: tuple[folder_events.IdentityRecord, ...] = ()
        self._saving: Callable[[], None] | None = None
        self._read: dict[str, folder_events.ManifestFile] = {}
        """Files as they were read last: the shell, too, reads only those again that have changed."""
        folder.on_change.append(self._changed)

    def make_core(self, run: RunId) -> Core:
        return FolderWatcher(run, self.rules)

    def offer(self, event: object) -> None:
        """It observes nothing of what admission adds."""
        super().offer(as_asked(event) if self.admits else event)

    def _carry_out(self, instruction: object) -> None:
        super()._carry_out(admitted(instruction, self.folder) if self.admits else instruction)

    def readings(self) -> Readings:
        """What the core says that it has to read."""
        orders = () if self.evicts else ("sluice.eviction.>",)
        return [(stream, tuple(each for each in filters if each not in orders), None) for stream, filters in READS]

    def begin(self) -> None:
        self.offer(folder_events.IdentitiesLoaded(self.identities))

    def end(self) -> None:
        """The file that was being written is written whole or not at all."""
        if self._saving is not None and self.dice.random() < 0.5:
            self._saving()
        self._saving = None

    def execute(self, instruction: object) -> None:
        """Save, list, or report."""
        match instruction:
            case folder_events.SaveIdentities():
                self._save(instruction)
            case folder_events.ListFolder():
                self.later(DISK_S * self.dice.random(), self._list)
            case folder_events.WriteLogLine():
                pass
            case _:
                raise AssertionError(f"no handler for {instruction!r}")

    def _save(self, save: folder_events.SaveIdentities) -> None:
        def write() -> None:
            self.identities = save.records

        def happen() -> None:
            write()
            self._saving = None
            self.later(DISK_S * self.dice.random(), lambda: self.offer(folder_events.IdentitiesSaved(save.version)))

        self._saving = write
        self.later(DISK_S * self.dice.random(), happen)

    def _list(self) -> None:
        for name, text in self.folder.files.items():
            known = self._read.get(name)
            if known is None or known.text != text:
                self._read[name] = folder_events.ManifestFile(name, text)
        files = tuple(self._read[name] for name in sorted(self.folder.files))
        self.later(DISK_S * self.dice.random(), lambda: self.offer(folder_events.FolderListed(files)))

    def _changed(self) -> None:
        if self.alive:
            self.later(0.05 * self.dice.random(), lambda: self.offer(folder_events.FolderChanged()))


def quick_allocator(closing_ttl_s: int) -> allocator_rules.SchedulerConfig:
    """The allocator's rules, in a hurry; and one event is worth so little that most work goes on with later ones."""
    return replace(
        allocator_rules.SchedulerConfig(),
        max_gpus_per_node=DEVICES_MAX,
        settle_batch=3,
        node_worth=1,
        wake_tries=3,
        new_tries=2,
        pending_refresh_batch=3,
        orphan_grace_s=4.0,
        removed_grace_s=15.0,
        closing_ttl_s=closing_ttl_s,
        pending_refresh_s=2.0,
        ensure_retry_s=1.0,
        retry_first_s=0.5,
        retry_max_s=8.0,
        group_patience_s=4.0,
        group_steps=2,
        eviction_patience_s=4.0,
        eviction_gone_s=20.0,
        spare_first_s=2.0,
        spare_max_s=8.0,
        promise_after_s=3.0,
        promises_percent=30,
        promise_retry_s=1.0,
        promise_retry_max_s=4.0,
        move_cooldown_s=COOLDOWN_S,
        moves_per_minute=60,
        move_patience_s=3.0,
        move_leaving_s=20.0,
        move_kept_s=3.0,
        defragment=True,
        defragment_arrivals=2,
    )


def quick_inventory() -> inventory_rules.InventoryConfig:
    return replace(inventory_rules.InventoryConfig(), pull_interval_s=5.0, stale_after_s=12.0, retry_max_s=3.0)


def quick_watcher(closing_ttl_s: int) -> watcher_rules.FolderConfig:
    return replace(watcher_rules.FolderConfig(), relist_s=3.0, closing_ttl_s=closing_ttl_s)
