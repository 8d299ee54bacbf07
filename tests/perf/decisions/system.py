"""The production core on a perfect bus with perfect agents; CPU time of every `handle` by the kind of its event."""

import time
from collections.abc import Iterable, Iterator

import msgspec
from factories.scheduling.allocator import FOLDER, asked, gpu_report, snapshot
from factories.words import booking_of

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Observed
from sluice.contracts.ids import NodeName, RequestId, RunId
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import Event, Instruction
from sluice_allocator.core.placement import Place, PlaceRequest, find_place
from sluice_allocator.offline.perfect_cluster import PerfectCluster

GPUS_PER_NODE = 8
ZONES = 2
"""Nodes carry the label `zone`, of one of so many values in turn."""


class TimedCore(Allocator):
    """An allocator, and how long each of its steps took."""

    def __init__(self) -> None:
        super().__init__(RunId("perf"), SchedulerConfig())
        self.took_ns: dict[str, list[int]] = {}
        """By the type of the message observed (closing ones apart), or of the event."""

    def handle(self, event: Event, now: float) -> list[Instruction]:
        began = time.thread_time_ns()
        said = super().handle(event, now)
        took = time.thread_time_ns() - began
        heard = event.entry.message if isinstance(event, Observed) else event
        name = f"{type(heard).__name__}{' closing' if getattr(heard, 'closing', False) else ''}"
        self.took_ns.setdefault(name, []).append(took)
        return said


class System:
    """A fleet of A100-40GB that is open, and pods that come and go."""

    def __init__(self, gpus: int, *, mig: bool = True, modes: tuple[msg.Mode, ...] = ("exclusive",)) -> None:
        """Every node is there, empty, and known from bytes, as in production."""
        self.core = TimedCore()
        self.grants = 0
        """How many pods have been given a place."""
        self.cluster = PerfectCluster(self.core, self._hear)
        self.cluster.start(nodes(gpus, mig=mig, modes=modes))

    def arrive(
        self,
        name: str,
        claim: msg.Claim,
        host: msg.HostNeeds = msg.NO_NEEDS,
        *,
        priority: int = 0,
        labels: dict[str, str] | None = None,
    ) -> None:
        """A pod asks; everything that follows happens."""
        asking = msgspec.structs.replace(asked(name, claim, priority=priority), host=host, labels=labels or {})
        self.cluster.say(subjects.request(RequestId(name)), asking)
        self.cluster.settle()

    def depart(self, name: str) -> None:
        """The pod is gone; everything that follows happens."""
        self.cluster.say(subjects.request(RequestId(name)), withdrawn(closing=False))
        self.cluster.settle()

    def _hear(self, message: msg.AnyMessage) -> None:
        if isinstance(message, msg.Grant):
            self.grants += 1
        elif isinstance(message, msg.Released):
            self.cluster.say(subjects.request(message.request), withdrawn(closing=True), last_word=True)

    def fill(self, claims: Iterable[msg.Claim]) -> int:
        """Put these on the fleet without decisions; how many found a place."""
        fleet, placed = self.core.ctx.cluster, 0
        for number, claim in enumerate(claims):
            found = find_place(fleet, PlaceRequest((claim,)))
            if isinstance(found, Place):
                placed += 1
                fleet.book(booking_of(f"before-{number}", found.node, found.devices))
        return placed


def nodes(gpus: int, *, mig: bool, modes: tuple[msg.Mode, ...]) -> Iterator[tuple[msg.NodeSnapshot, msg.HostFacts]]:
    """Nodes of eight GPUs each, and what they have besides."""
    decoder = msgspec.json.Decoder(msg.NodeSnapshot)
    for number in range(-(-gpus // GPUS_PER_NODE)):
        name = NodeName(f"node-{number:06}")
        here = range(min(GPUS_PER_NODE, gpus - number * GPUS_PER_NODE))
        reports = tuple(gpu_report(name, index, mig=mig) for index in here)
        seen = decoder.decode(msgspec.json.encode(snapshot(name, reports, modes=modes)))
        zone = {"zone": f"zone-{number % ZONES}"}
        yield seen, msg.HostFacts(cpu_cores=128.0, memory_mib=1_048_576, pods_free=1000, labels=zone)


def withdrawn(*, closing: bool) -> msg.RequestWithdrawn:
    return msg.RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone", closing=closing)
