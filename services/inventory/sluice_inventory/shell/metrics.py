"""What the inventory shows of the fleet: nodes by how far they can be trusted, GPUs and memory slices by model, and
what its recorder sums up by namespace. Read from the core at each scrape. What a node comes to is kept as long as
its snapshot is the same, so a look costs a walk over the nodes, not over their GPUs."""

from collections import Counter
from collections.abc import Iterator, Mapping

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import NodeSnapshot
from sluice.runtime.clock import Clock
from sluice.runtime.prometheus.metrics import SERIES_MAX, Metric, Sample
from sluice_inventory.core.counts import SlotState, gpu_uses
from sluice_inventory.core.inventory import Inventory
from sluice_inventory.recorder import amounts, usage_recorder

NODES = Metric(
    "sluice_inventory_nodes", "gauge", "Nodes by state: fresh, stale (no answer), unread (never pulled).", ("state",)
)
OLDEST = Metric(
    "sluice_inventory_oldest_answer_seconds", "gauge", "Age of the oldest usable answer over all nodes.", ()
)
GPUS = Metric(
    "sluice_gpus", "gauge", "GPUs by model and health: healthy, unhealthy, lost (no answer).", ("model", "health")
)
MEMORY_SLICES = Metric(
    "sluice_gpu_memory_slices",
    "gauge",
    "Memory slices of GPUs: total, ordered, in_use, returning, quarantined, foreign, broken, unusable.",
    ("model", "state"),
)
DAEMONS = Metric(
    "sluice_mps_daemons", "gauge", "MPS daemons by state: starting, ready, fault, down, stopping.", ("state",)
)
_OF_TEAM = ("namespace", "model")
GRANTED = Metric(
    "sluice_namespace_gpu_seconds_total",
    "counter",
    "GPUs granted (report.md), times seconds. A minute late; what the recorder catches up with is only in reports.",
    _OF_TEAM,
)
USED = Metric("sluice_namespace_gpu_used_seconds_total", "counter", "Of these, while a kernel ran.", _OF_TEAM)
IDLE = Metric(
    "sluice_namespace_gpu_idle_seconds_total", "counter", "Of these, of slices unused for half an hour.", _OF_TEAM
)
TEAM_WAITS = Metric("sluice_namespace_waiting", "gauge", "Pods waiting in the last minute, on average.", ("namespace",))
_SUMMED: Mapping[str, Metric] = {"allocated": GRANTED, "used": USED, "idle": IDLE}

Tally = Counter[tuple[Metric, tuple[str, ...]]]


class FleetMetrics:
    """What one inventory knows, as samples."""

    def __init__(self, core: Inventory, clock: Clock) -> None:
        """Nothing is counted before the first scrape. `clock` is the one that drives the core."""
        self._core, self._clock = core, clock
        self._kept: dict[NodeName, tuple[NodeSnapshot, Tally]] = {}

    def now(self) -> Iterator[Sample]:
        total: Tally = Counter({(NODES, (state,)): 0 for state in ("fresh", "stale", "unread")})
        kept = {}
        for name in self._core.names():
            view = self._core.view(name)
            inventory = view.inventory if view is not None else None
            if inventory is None:
                total[NODES, ("unread",)] += 1
                continue
            total[NODES, ("stale" if inventory.stale else "fresh",)] += 1
            snapshot, tally = self._kept.get(name, (None, None))
            if snapshot is not inventory.snapshot or tally is None:
                tally = tally_of(inventory.snapshot)
            kept[name] = (inventory.snapshot, tally)
            total.update(tally)
        self._kept = kept
        yield Sample(OLDEST, self._core.silent_s(self._clock.monotonic()))
        for (metric, labels), value in total.items():
            yield Sample(metric, value, labels)


def tally_of(snapshot: NodeSnapshot) -> Tally:
    tally: Tally = Counter()
    for use in gpu_uses(snapshot):
        gpu = use.gpu
        health = "lost" if gpu.lost else "healthy" if gpu.healthy else "unhealthy"
        tally[GPUS, (gpu.model, health)] += 1
        tally[MEMORY_SLICES, (gpu.model, "total")] += use.slices_total
        units: dict[SlotState, set[int]] = {}
        for slot in use.slots:
            if slot.state is not SlotState.OFFERED:
                last = min(use.slices_total, slot.start + slot.size)
                units.setdefault(slot.state, set()).update(range(max(0, slot.start), last))
        for state, taken in units.items():
            tally[MEMORY_SLICES, (gpu.model, state.value)] += len(taken)
        tally.update((DAEMONS, (daemon.state,)) for daemon in gpu.daemons)
    return tally


class UseMetrics:
    """What the recorder sums up by namespace, from the minutes that it completes."""

    def __init__(self) -> None:
        self._summed: dict[tuple[Metric, tuple[str, ...]], float] = {}
        self._waiting: Counter[str] = Counter()

    def add(self, minute: usage_recorder.MinuteRecord) -> None:
        """Add a minute. Of too many series only those that are in it stay: namespaces come and go."""
        self._waiting.clear()
        now = dict[tuple[Metric, tuple[str, ...]], float]()
        for series, amount in minute.amounts.items():
            if not series.namespace:
                continue
            if series.kind == "waiting":
                self._waiting[series.namespace] += amount.pods
            else:
                key = (_SUMMED[series.kind], (series.namespace, series.what))
                now[key] = self._summed.get(key, 0.0) + amount.micro_gpus / amounts.MICRO
        self._summed = (self._summed if len(self._summed) < SERIES_MAX else {}) | now

    def now(self) -> Iterator[Sample]:
        for (metric, labels), value in self._summed.items():
            yield Sample(metric, value, labels)
        for namespace, pods_s in self._waiting.items():
            yield Sample(TEAM_WAITS, pods_s / usage_recorder.MINUTE_S, (namespace,))
