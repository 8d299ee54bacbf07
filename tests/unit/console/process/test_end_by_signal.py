"""What a signal, or a power cut, leaves behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from factories.console import bench_options

from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.shell.bench.bench import BenchTarget, bench
from sluice_console.shell.process import power_off as module
from sluice_console.shell.process.end_by_signal import StoppedError, ended_by_signal
from sluice_console.shell.process.power_off import power_off

NUMBERS = (signal.SIGTERM, signal.SIGHUP)
ASKED = bench_options(requests=3, running=True, with_ceiling=False, within_s=20.0)


@pytest.fixture(autouse=True)
def survived():
    """A signal without a handler does nothing, instead of ending the tests."""
    before = {number: signal.signal(number, lambda *_: None) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Where the pods of a benchmark on a running system are."""
    live = SimpleNamespace(fleet_state=FleetState())

    @asynccontextmanager
    async def target(*_):
        yield BenchTarget(live, "nats://h:1", tmp_path, {"n": 0})

    monkeypatch.setattr(sys.modules[bench.__module__], "_target", target)
    return tmp_path


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_benchmark_that_is_ended_takes_its_pods_away(folder, number):
    """They would hold slices of the user's running system until a person finds the files."""

    async def end_it():
        while not list(folder.glob("*.yaml")):  # noqa: ASYNC110 - a folder sends no events
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), number)

    ending = asyncio.create_task(end_it())
    with pytest.raises(StoppedError, match=f"stopped by {number.name}; what it brought is taken away") as stopped:
        await asyncio.wait_for(bench(ASKED, lambda _: None), 5)
    await ending
    assert stopped.value.exit_code == 128 + number
    assert not list(folder.iterdir())


async def test_a_benchmark_that_is_ended_while_it_writes_leaves_no_half_file(monkeypatch, folder):
    """A thread cannot be stopped: its file would come after everything was taken away."""
    write, writing = type(folder).write_text, asyncio.Event()
    loop = asyncio.get_running_loop()

    def slowly(path, text, **options):
        loop.call_soon_threadsafe(writing.set)
        time.sleep(0.2)
        return write(path, text, **options)

    monkeypatch.setattr(type(folder), "write_text", slowly)
    running = asyncio.create_task(bench(ASKED, lambda _: None))
    await asyncio.wait_for(writing.wait(), 5)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(StoppedError):
        await asyncio.wait_for(running, 5)
    await asyncio.sleep(0.3)  # a write that goes on would end by then
    assert not list(folder.iterdir())


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
    async def work():
        with ended_by_signal("nothing"):
            await asyncio.sleep(5)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


FOREVER = "import signal; print('up', flush=True); signal.pause()"


@pytest.fixture
def start():
    """Starts processes that stay until they are ended; none is left."""
    with ExitStack() as stack:

        def begin(name: str, **variables: str) -> subprocess.Popen:
            process = subprocess.Popen(
                (sys.executable, "-c", FOREVER, name), env=os.environ | variables, stdout=subprocess.PIPE
            )
            stack.callback(process.stdout.close)
            stack.callback(process.wait, 10)
            stack.callback(process.kill)
            assert process.stdout.readline() == b"up\n"
            return process

        yield begin


def of(data_dir: Path) -> dict[str, str]:
    return {"SLUICE_SIMULATED_HARDWARE": f"{data_dir}/hardware/n.json"}


def test_only_the_daemons_of_this_data_directory_are_ended(start, tmp_path: Path):
    """Another system's daemons, or a tenant's own process, would be killed by a Ctrl-C."""
    mine, other = tmp_path / "data", tmp_path / "data-2"
    daemon, server = start("nvidia-cuda-mps-control", **of(mine)), start("nvidia-cuda-mps-server", **of(mine))
    spared = [
        start("nvidia-cuda-mps-control", **of(other)),
        start("nvidia-cuda-mps-control"),
        start("train.py", **of(mine)),
    ]
    assert power_off(mine)
    assert (daemon.wait(10), server.wait(10)) == (-9, -9)
    assert [process.poll() for process in spared] == [None, None, None]


def test_it_waits_for_an_agent_that_could_still_start_a_daemon(start, tmp_path: Path):
    agent = start("sluice_node_agent", SLUICE_DATA_DIR=str(tmp_path))
    assert power_off(tmp_path, within_s=0.2)
    assert agent.poll() is None
    program = switch(tmp_path)
    program.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.5)
    agent.kill()
    assert program.wait(20) == 0


def test_the_end_of_its_input_ends_the_daemons_and_a_ctrl_c_does_not(start, tmp_path: Path):
    """Ctrl-C goes to all of a terminal: the machine stays on until its agents have stopped."""
    daemon = start("nvidia-cuda-mps-control", **of(tmp_path))
    program = switch(tmp_path)
    deadline = time.monotonic() + 10
    while not ignores(program.pid, signal.SIGINT):
        assert time.monotonic() < deadline
        time.sleep(0.01)  # another process does it
    program.send_signal(signal.SIGINT)
    assert daemon.poll() is None
    program.stdin.close()
    assert daemon.wait(20) == -9
    assert program.wait(20) == 0


def ignores(pid: int, number: signal.Signals) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = [int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:")]
    return bool(mask >> (number - 1) & 1)


def switch(data_dir: Path) -> subprocess.Popen:
    command = (sys.executable, "-I", "-S", module.__file__, str(data_dir))
    return subprocess.Popen(command, stdin=subprocess.PIPE)
