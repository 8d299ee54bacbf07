"""In which order a benchmark measures."""

import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluice_console.core.bench.broker_replay import ReplayMessage
from sluice_console.core.bench.figures import BenchDocument, CeilingDocument, HopDocument, SpreadDocument
from sluice_console.shell.bench.bench import BenchOptions, BenchTarget, _Measured, bench

SPREAD = SpreadDocument(p50=20.0, p90=20.0, p99=20.0, max=20.0)
DOCUMENT = BenchDocument(
    requests=1, bound=1, refused=0, overcommitted=0, seconds=1.0, per_second=100.0,
    hops=(HopDocument(hop="asked to bound", ms=SPREAD),), released=True, nodes=1, gpus=1, agents=1, mix="1g.5gb",
    rate=0.0,
)  # fmt: skip
BARE = CeilingDocument(
    ms=SpreadDocument(p50=10.0, p90=10.0, p99=10.0, max=10.0), per_second=200.0, seconds=1.0, messages=1, bytes=1,
    publishers=1,
)  # fmt: skip
NOTE = ReplayMessage(
    number=0, sender="allocator", consumer="agent 0", stream="BOOK", subject="sluice.ledger.n.b0", size=1, after=-1,
    at_s=0.0, request="r", ends=True,
)  # fmt: skip
ASKED = BenchOptions(
    requests=1, rate=0.0, burst=1, mix="1g.5gb", replay=None, speed=1.0, nodes=1, gpus=1, model="m", processes=1,
    running=False, with_ceiling=True, within_s=1.0,
)  # fmt: skip


@pytest.mark.parametrize("notes", [[NOTE], []])
async def test_the_bare_broker_is_not_slowed_down_by_the_idle_system_that_it_is_held_against(monkeypatch, notes):
    """Its idle agents would take cores from it, and flatter the ratio; without anything to carry there is no ratio."""
    steps = []

    @asynccontextmanager
    async def target(*_):
        steps.append("system begins")
        yield BenchTarget(None, "nats://h:1", Path(), {"n": 0})
        steps.append("system has ended")

    async def measure(*_):
        return _Measured(DOCUMENT, [0.02], notes)

    async def ceiling(carried, *, within_s):
        steps.append(f"bare broker carries {len(carried)} within {within_s:g} s")
        return BARE, [0.01]

    for name, stand_in in (("_target", target), ("_measure", measure), ("ceiling", ceiling)):
        monkeypatch.setattr(sys.modules[bench.__module__], name, stand_in)
    result = await bench(ASKED, lambda _: None)
    alone = ["system begins", "system has ended"]
    assert steps == (alone if not notes else [*alone, "bare broker carries 1 within 1 s"])
    ratios = (result.document.latency_ratio_p50, result.document.throughput_ratio)
    assert ratios == ((2.0, 0.5) if notes else (None, None))
