"""What single parts of the agent cost: a record on disk, an MPS daemon's start and end."""

import contextlib
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from factories.agent_driver import short_folder
from factories.gpus.mps import start_order
from factories.journals import append
from factories.words import booking_of

from sluice.contracts.ids import GpuUuid, HomeId, NodeName
from sluice.contracts.messages import DeviceGrant
from sluice_node_agent.core.instructions import StopMps
from sluice_node_agent.core.journal_records import DeviceRecord, MpsLimits, SliceRecord
from sluice_node_agent.device.mps.daemons import MpsDaemons
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.shell.journal.journal import Journal
from sluice_node_agent.simulated.mps_program import install

RECORDS = 500
DAEMONS = 20


@dataclass(frozen=True, slots=True)
class Parts:
    """Medians."""

    append_us: float
    """One record written, synced and published."""
    journal_bytes: float
    """Of one such record."""
    mps_start_ms: float
    """Until its limits were read back and its server takes clients."""
    mps_stop_ms: float
    """Until no process and no directory of it is left."""


def measure() -> Parts:
    """On the disk that temporary files are on."""
    with short_folder() as folder:
        append_us, journal_bytes = _journal(folder)
        start_ms, stop_ms = _mps(folder)
    return Parts(append_us, journal_bytes, start_ms, stop_ms)


def _journal(folder: Path) -> tuple[float, float]:
    device = DeviceGrant(container="main", gpu=GpuUuid("GPU-0"), profile="1g.5gb", start=0, size=1)
    pod = {"owner": "0b4c9f5e-6f37-4d3e-9f0e-0d1f3c2b1a00", "namespace": "team", "name": "pod"}
    booking = booking_of("a1", "node", (device,), request="r1", **pod)
    record = SliceRecord(booking=booking, revision=1, phase="making", devices=(DeviceRecord(step="intended"),))
    with contextlib.closing(Journal(folder / "agent", NodeName("node"))) as journal:
        before = (folder / "agent" / "journal").stat().st_size
        took = []
        for _ in range(RECORDS):
            began = time.perf_counter()
            append(journal, [record])
            took.append(time.perf_counter() - began)
        size = (folder / "agent" / "journal").stat().st_size - before
    return statistics.median(took) * 1e6, size / RECORDS


def _mps(folder: Path) -> tuple[float, float]:
    mps = MpsDaemons(folder / "mps", install(folder / "bin"), Processes())
    starts, stops = [], []
    limits = MpsLimits(active_thread_percentage=50, memory_mib=4096)
    for number in range(DAEMONS):
        home = HomeId(f"h{number}")
        began = time.perf_counter()
        pid, started_at = mps.start(start_order(home, limits=limits, uid=os.getuid()))
        running = time.perf_counter()
        mps.stop(StopMps(token=2, home=home, pid=pid, started_at=started_at))
        starts.append(running - began)
        stops.append(time.perf_counter() - running)
    return statistics.median(starts) * 1000, statistics.median(stops) * 1000
