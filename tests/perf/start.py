"""
What it costs an allocator to start on a large fleet: CPU, memory, and the longest step, in which no probe is answered.

All values of a bus are made, kept in a file, and read from there by the production core in a process of its own: each
is decoded, observed, and reconciled until nothing is left to do. `--against CHECKOUT` starts that checkout's, too.
"""

import json
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import BinaryIO

import psutil
from factories.scheduling.allocator import FOLDER, asked, claim, gpu_report, news_of, snapshot
from factories.words import booking_of, bound_of, write_of
from perf.figures import add_against, checkouts_of, compared, conclude, options_of

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Observed, ReadingCaughtUp, ReadingStarted, Stream, Ticked, stream_of
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import Incarnation, RequestId, RunId, allocation_id
from sluice.runtime.gc_freeze import FREEZE_EVERY_S, collect_rarely, freeze_old_objects
from sluice.runtime.nats.wire_format import envelope_bytes, read_stored
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import Continue, LeaseChanged

GPUS = 8
LIFE = Incarnation("1")
TICK_S = 0.5
SECTION = struct.Struct(">QII")
Figures = dict[str, float]
CPU, DECODING, MEMORY, LONGEST = "CPU, s", "of it decoding, s", "memory, MiB", "longest step, ms"


def values(nodes: int, pods_per_node: int) -> Iterator[tuple[Address, msg.AnyMessage]]:
    """Every last value of a fleet whose pods are all bound: whole A100-40GB, by MIG instances of all slices."""
    facts = msg.HostFacts(cpu_cores=128.0, memory_mib=1_048_576, pods_free=100, labels={"zone": "a"})
    for number in range(nodes):
        name = f"node-{number:06}"
        bookings = []
        for at in range(pods_per_node):
            request = RequestId(f"pod-{number:06}-{at}")
            device = msg.DeviceGrant(container="main", gpu=f"GPU-{name}-{at}", profile="7g.40gb", start=0, size=8)
            allocation = allocation_id(request, RunId("r1"), 1)
            bookings.append(booking_of(allocation, name, (device,), request=request, source=FOLDER))
        slices = tuple(msg.SliceReport(booking=each, revision=1, state="ready", revoked=False) for each in bookings)
        seen = snapshot(name, tuple(gpu_report(name, at) for at in range(GPUS)), slices=slices)
        adopted = tuple(each.allocation for each in bookings)
        yield subjects.node(seen.node), news_of(seen)
        yield subjects.inventory(seen.node), msg.NodeInventory(snapshot=seen, stale=False)
        yield subjects.host(seen.node), facts
        for booked in bookings:
            request, allocation = booked.request, booked.allocation
            yield subjects.request(request), asked(request, claim(profile="7g.40gb"))
            yield subjects.ledger(seen.node, allocation), msg.Grant(revision=1, incarnation=LIFE, booking=booked)
            there = {"allocation": allocation, "request": request, "revision": 1, "ticket": "", "containers": ()}
            slice_ = subjects.slice_(seen.node, allocation)
            yield slice_, msg.SliceReady(**there, devices=())
            there |= {"incarnation": LIFE, "source": FOLDER, "slice_operation": f"{slice_.subject}-1"}
            yield subjects.binding(request), bound_of(request, seen.node, **there)
        run = {"boot_id": seen.boot_id, "agent_run": seen.agent_run}
        head = msg.NodeOpened(node=seen.node, incarnation=LIFE, **run, adopted=adopted, lived=())
        yield subjects.head(seen.node), head
    synced = msg.SourceSynced(source=FOLDER, run=RunId("w1"), epoch=1, count=nodes * pods_per_node)
    yield subjects.source(FOLDER), synced


def keep(path: Path, nodes: int, pods_per_node: int) -> None:
    """Write every value as its sequence, the lengths of subject and data, and both."""
    with path.open("wb") as file:
        for sequence, (address, message) in zip(count(1), values(nodes, pods_per_node), strict=False):
            write = write_of(address, message, None, f"{address.subject}-1")
            data = envelope_bytes(write, "2026-01-01T00:00:00.000")
            subject = address.subject.encode()
            file.write(SECTION.pack(sequence, len(subject), len(data)) + subject + data)


def kept(file: BinaryIO) -> Iterator[tuple[str, int, bytes]]:
    while header := file.read(SECTION.size):
        sequence, of_subject, of_data = SECTION.unpack(header)
        yield file.read(of_subject).decode(), sequence, file.read(of_data)


class Started:
    """One allocator that starts: how long each of its steps takes, by the kind of its event."""

    def __init__(self) -> None:
        self.core = Allocator(RunId("perf"), SchedulerConfig())
        self.now = 0.0
        self.spent_s = self.decoding_s = self._frozen_s = 0.0
        self.longest_s: dict[str, float] = {}

    def handle(self, event: object) -> None:
        began = time.thread_time()
        self.core.handle(event, self.now)
        self._took(type(event).__name__, began)

    def _took(self, what: str, began: float) -> float:
        took_s = time.thread_time() - began
        self.spent_s += took_s
        self.longest_s[what] = max(took_s, self.longest_s.get(what, 0.0))
        return took_s

    def start(self, path: Path) -> None:
        """Read all, with the lease, and go on until nothing is left to do."""
        for stream in (Stream.BOOK, Stream.STATE):
            self.handle(ReadingStarted(stream, LIFE))
        self.handle(LeaseChanged(held=True))
        with path.open("rb") as file:
            for subject, sequence, data in kept(file):
                began = time.thread_time()
                entry = read_stored(subject, sequence, data).entry
                assert entry is not None, subject
                self.decoding_s += self._took("decoding", began)
                self.handle(Observed(stream_of(subjects.parse(subject).kind), entry))
                self._freeze()
        for stream in (Stream.BOOK, Stream.STATE):
            self.handle(ReadingCaughtUp(stream))
        while self.core.unfinished:
            self.handle(Continue())
        for _ in range(20):
            self.now += TICK_S
            self.handle(Ticked())
            self._freeze()

    def _freeze(self) -> None:
        """As the allocator's process does at intervals."""
        if self.spent_s > self._frozen_s + FREEZE_EVERY_S:
            self._frozen_s, began = self.spent_s, time.thread_time()
            freeze_old_objects()
            self._took("freezing", began)


def start_once(path: Path) -> Figures:
    collect_rarely()  # as the allocator's process does
    before = psutil.Process().memory_info().rss
    started = Started()
    started.start(path)
    facts = started.core.ctx.facts
    assert len(started.core.ctx.cluster.booked()) == len(facts.ledger) == len(facts.bindings)
    assert started.core.ctx.cluster.usable_nodes() == len(facts.inventories)
    memory = (psutil.Process().memory_info().rss - before) / 2**20
    figures = {CPU: started.spent_s, DECODING: started.decoding_s, MEMORY: memory}
    figures[LONGEST] = 1e3 * max(started.longest_s.values())
    return figures | {f"longest {name}, ms": 1e3 * took_s for name, took_s in sorted(started.longest_s.items())}


def started_by(checkout: Path, path: Path) -> Figures:
    """What a start with this checkout's code costs."""
    command = [str(checkout / ".venv/bin/python"), str(Path(__file__).parent), "start", "--values", str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def main(arguments: Sequence[str]) -> int:
    parser = options_of("start", __doc__)
    parser.add_argument("--nodes", type=int, default=12_500)
    parser.add_argument("--pods-per-node", type=int, default=4)
    add_against(parser)
    parser.add_argument("--values", type=Path, help="start once on these values, and print the figures as JSON")
    options = parser.parse_args(arguments)
    if options.values:
        sys.stdout.write(json.dumps(start_once(options.values)))
        return 0
    checkouts = checkouts_of(options)
    with tempfile.TemporaryDirectory(prefix="sluice-perf-") as folder:
        path = Path(folder) / "values"
        keep(path, options.nodes, options.pods_per_node)
        rounds = [[started_by(each, path) for each in checkouts] for _ in range(options.rounds)]
    pods = options.nodes * options.pods_per_node
    title = f"{options.nodes:,} nodes of {GPUS} GPUs, {pods:,} bound pods; median of {len(rounds)}."
    table = compared("what", "measured", rounds, digits=1)
    conclude("start", f"{title}\n\n{table}", write=options.write)
    return 0
