"""A service that was paused or starved continues its reading: the broker was not silent, the service was."""

import asyncio
import sys
from pathlib import Path

import pytest
from factories.broker import book_reader
from factories.broker.bus_rigs import ensured, place, say, word
from factories.broker.nats_server import Broker
from factories.processes import Process, own_environment
from factories.waiting import until

from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats.reader import SILENCE_MAX_S

pytestmark = pytest.mark.slow
STOPPED_S = SILENCE_MAX_S + 2.0
"""Long enough for the reader's deadline to have passed, and far shorter than the broker keeps consumers and pulls."""


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


async def told(log: Path, line: str) -> list[str]:
    await until(lambda: line in _lines(log), line)
    return _lines(log)


async def test_a_reader_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    """Every service of a swapping node would reread everything repeatedly, just when it has no time."""
    async with Broker(tmp_path / "nats") as broker:
        bus = await NatsBus.connect(broker.url, name="writer")
        await ensured(bus)
        first = await say(bus, place("a"), 0, word(place("a"), "a"))
        log = tmp_path / "reader.log"
        path = str(Path(book_reader.__file__).parents[2])
        command = (sys.executable, "-m", book_reader.__name__, broker.url)
        reader = Process("reader", command, own_environment() | {"PYTHONPATH": path}, log)
        reader.start()
        try:
            await told(log, "ReadingCaughtUp")
            reader.freeze()
            second = await say(bus, place("b"), first, word(place("b"), "b"))
            await asyncio.sleep(STOPPED_S)  # that is what is tested: nothing can be waited for in it
            reader.thaw()
            await told(log, f"Observed {second}")
            third = await say(bus, place("c"), second, word(place("c"), "c"))
            lines = await told(log, f"Observed {third}")
        finally:
            reader.kill()
            await bus.close()
    readings = [line for line in lines if line.startswith(("Reading", "Observed"))]
    seen = [f"Observed {sequence}" for sequence in (first, second, third)]
    assert readings == ["ReadingStarted", seen[0], "ReadingCaughtUp", *seen[1:]]
    assert not any("reading restarts" in line for line in lines)
