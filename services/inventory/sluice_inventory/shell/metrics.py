"""
Metrics of the fleet: nodes by freshness, GPUs and memory slices by model.

Read from the core at each scrape. A node's sums are kept as long as its snapshot is the same, so a scrape walks over
the nodes, not over their GPUs.
"""

from collections import Counter
from collections.abc import Iterator

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import NodeSnapshot
from sluice.runtime.clock import Clock
from sluice.runtime.prometheus.metrics import Metric, Sample
from sluice_inventory.core.counts import SlotState, gpu_uses
from sluice_inventory.core.inventory import Inventory

NODES = Metric(
    "sluice_inventory_nodes",
    "gauge",
    "Nodes by state: fresh, stale (no answer), unread (never pulled).",
    ("state",),
)
OLDEST = Metric(
    "sluice_inventory_oldest_answer_seconds",
    "gauge",
    "The longest time that a node has given no usable answer.",
    (),
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

Tally = Counter[tuple[Metric, tuple[str, ...]]]


class FleetMetrics:
    """The state of one inventory, as samples."""

    def __init__(self, core: Inventory, clock: Clock) -> None:
        """Nothing is counted before a scrape. `clock` is the one that drives the core."""
        self._core = core
        self._clock = clock
        self._kept: dict[NodeName, tuple[NodeSnapshot, Tally]] = {}

    def now(self) -> Iterator[Sample]:
        """For `sluice.runtime.prometheus.metrics.collecting_from`."""
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
    """One node's part of the fleet's sums."""
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
