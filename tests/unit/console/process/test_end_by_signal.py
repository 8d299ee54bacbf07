"""Commands that promise to leave nothing behind keep it when they are asked to end, or their terminal is closed."""

import asyncio
import os
import signal
import sys
import time
from contextlib import asynccontextmanager, suppress

import pytest

from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.shell.bench.bench import BenchOptions, BenchTarget, bench
from sluice_console.shell.process.end_by_signal import StoppedError, ended_by_signal

NUMBERS = (signal.SIGTERM, signal.SIGHUP)
ASKED = BenchOptions(
    requests=3, rate=0.0, burst=1, mix="1g.5gb", replay=None, speed=1.0, nodes=1, gpus=1, model="m", processes=1,
    running=True, with_ceiling=False, within_s=20.0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def survived():
    """A signal without a handler does nothing, instead of ending the tests."""
    before = {number: signal.signal(number, lambda *_: None) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Live:
    fleet_state = FleetState()


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_benchmark_that_is_ended_takes_its_pods_away(monkeypatch, tmp_path, number):
    """They would hold slices of the user's running system until somebody finds the files."""

    @asynccontextmanager
    async def target(*_):
        yield BenchTarget(Live(), "nats://h:1", tmp_path, {"n": 0})

    async def end_it():
        while not list(tmp_path.glob("*.yaml")):  # noqa: ASYNC110 - a folder sends no events
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(sys.modules[bench.__module__], "_target", target)
    ending = asyncio.create_task(end_it())
    with pytest.raises(StoppedError, match=f"stopped by {number.name}; what it brought is taken away") as stopped:
        await asyncio.wait_for(bench(ASKED, lambda _: None), 5)
    await ending
    assert stopped.value.exit_code == 128 + number
    assert not list(tmp_path.iterdir())


async def test_a_benchmark_that_is_ended_while_it_writes_leaves_no_half_file(monkeypatch, tmp_path):
    """A thread cannot be stopped: its file would come after everything was taken away."""
    write, writing = type(tmp_path).write_text, asyncio.Event()
    loop = asyncio.get_running_loop()

    def slowly(path, text, **options):
        loop.call_soon_threadsafe(writing.set)
        time.sleep(0.2)
        return write(path, text, **options)

    @asynccontextmanager
    async def target(*_):
        yield BenchTarget(Live(), "nats://h:1", tmp_path, {"n": 0})

    monkeypatch.setattr(sys.modules[bench.__module__], "_target", target)
    monkeypatch.setattr(type(tmp_path), "write_text", slowly)
    running = asyncio.create_task(bench(ASKED, lambda _: None))
    await asyncio.wait_for(writing.wait(), 5)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(StoppedError):
        await asyncio.wait_for(running, 5)
    await asyncio.sleep(0.3)  # a write that goes on would end by then
    assert not list(tmp_path.iterdir())


async def test_a_second_signal_does_not_break_off_the_cleaning():
    """A session that ends sends SIGTERM and SIGHUP: what the first began to take away would stay half."""
    cleaned = []

    async def work():
        with ended_by_signal("nothing"):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(5)
            finally:
                os.kill(os.getpid(), signal.SIGHUP)
                await asyncio.sleep(0.05)
                cleaned.append("all")

    with pytest.raises(StoppedError, match="stopped by SIGTERM; nothing"):
        await work()
    assert cleaned


async def test_what_nohup_wants_ignored_stays_ignored():
    """`nohup sluice bench` is to go on when its terminal is closed."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ended_by_signal("nothing"):
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


async def test_another_cancellation_stays_one():
    """Ctrl-C ends a command as before."""

    async def work():
        with ended_by_signal("nothing"):
            await asyncio.sleep(5)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
