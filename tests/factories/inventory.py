"""An inventory driven by hand: the test is the bus and the agents."""

from dataclasses import dataclass

from factories.words import write_of

from sluice.contracts.bus import events as ev
from sluice.contracts.bus import subjects
from sluice.contracts.ids import GpuUuid, Incarnation, NodeName, OperationId, RunId
from sluice.contracts.messages import AnyMessage, GpuReport, NodeChanged, NodeInventory, NodeSnapshot
from sluice_inventory.core.events import Event, Instruction, Pull, PullSucceeded
from sluice_inventory.core.inventory import Inventory
from sluice_inventory.core.node import InventoryConfig

RUN = RunId("inv1")
NODE = NodeName("gpu-1.example.internal")
ENDPOINT = "127.0.0.1:7001"
AT = "2026-01-01T00:00:00+00:00"
AGENT = {"node": NODE, "boot_id": "boot-1", "agent_run": RunId("agent-1")}
EMPTY_A100 = {"1g.5gb": 7, "1g.5gb+me": 1, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1, "7g.40gb": 1}
"""What fits on an empty A100-40GB (NVIDIA MIG user guide, supported profiles): 19 in all."""


def gpu_report(**changes) -> GpuReport:
    """An empty A100-40GB in MIG mode, without its list of profiles."""
    sizes = {"memory_mib": 40960, "multiprocessors": 108, "memory_slices": 8, "compute_slices": 7}
    layout = {"mig_enabled": True, "profiles": (), "instances": (), "creatable": EMPTY_A100}
    named = {"uuid": GpuUuid("GPU-1"), "index": 0, "model": "NVIDIA A100-SXM4-40GB"}
    return GpuReport(**(named | sizes | layout | changes))


def snapshot(generation: int = 1, **changes) -> NodeSnapshot:
    found = {"driver_version": "simulated", "gpus": (gpu_report(),), "slices": ()}
    return NodeSnapshot(generation=generation, **(AGENT | found | changes))


def news(generation: int = 1, **changes) -> NodeChanged:
    return NodeChanged(generation=generation, **(AGENT | {"endpoint": ENDPOINT, "gpus": ()} | changes))


LIFE = Incarnation("1000")
"""Of the broker's data, as the bench begins."""


def known(
    generation: int = 1, *, observed_at: str = AT, stale_message: str = "", life: Incarnation = LIFE, **changes
) -> NodeInventory:
    """The inventory's message on the bus; stale when a message gives the reason."""
    state = {"stale": bool(stale_message), "stale_message": stale_message, "observed_at": observed_at}
    return NodeInventory(snapshot=snapshot(generation, **changes), **state, incarnation=life)


@dataclass
class Bench:
    """Feeds one inventory. Sequences count up over all subjects, as in a stream."""

    core: Inventory
    sequence: int = 100
    now: float = 0.0

    def feed(self, event: Event) -> list[Instruction]:
        return self.core.handle(event, self.now)

    def at(self, now: float) -> list[Instruction]:
        """Advance the clock to `now`, and send a tick."""
        self.now = now
        return self.feed(ev.Ticked())

    def start_reading(self, incarnation: str = LIFE) -> list[Instruction]:
        return self.feed(ev.ReadingStarted(ev.Stream.STATE, Incarnation(incarnation)))

    def caught_up(self) -> list[Instruction]:
        return self.feed(ev.ReadingCaughtUp(ev.Stream.STATE))

    def observe(
        self, address: subjects.Address, message: AnyMessage | None, operation: str = "other-1"
    ) -> list[Instruction]:
        """The next value of STATE is read."""
        self.sequence += 1
        entry = ev.Entry(address.subject, self.sequence, OperationId(operation), message)
        return self.feed(ev.Observed(ev.Stream.STATE, entry))

    def hear(self, message: NodeChanged) -> list[Instruction]:
        return self.observe(subjects.node(message.node), message)

    def hear_inventory(self, message: NodeInventory, operation: str = "other-1") -> list[Instruction]:
        """The message of another inventory is read."""
        return self.observe(subjects.inventory(message.snapshot.node), message, operation)

    def write(
        self, number: int, message: NodeInventory, expected: int = 0, attempt: int = 1, node: NodeName = NODE
    ) -> ev.Write:
        """The write that the core's outbox would make as its `number`-th."""
        return write_of(subjects.inventory(node), message, expected, f"{RUN}-{number}", attempt=attempt)


RULES = InventoryConfig(
    pull_interval_s=10.0, stale_after_s=30.0, retry_first_s=1.0, retry_max_s=4.0, pulls_max=2, retries_max=1
)
ASK = Pull(NODE, ENDPOINT)
LATER = "2026-01-01T00:00:10+00:00"


def answered(bench: Bench, generation: int = 1, at: str = AT, **changes) -> list[Instruction]:
    return bench.feed(PullSucceeded(NODE, snapshot(generation, **changes), at))


def pulled(bench: Bench) -> Bench:
    """A node was announced, pulled at generation 1, and that landed at sequence 102, at 0 s."""
    assert bench.hear(news()) == [ASK]
    assert answered(bench) == [bench.write(1, known())]
    assert bench.feed(ev.WriteAccepted(OperationId(f"{RUN}-1"), 102)) == []
    assert bench.hear_inventory(known(), f"{RUN}-1") == []
    return bench
