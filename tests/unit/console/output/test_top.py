"""The live map in a terminal, on a real pseudo-terminal; and the forms in which views are printed."""

import asyncio
import os
import pty
import re
import signal
import struct
import termios
from contextlib import asynccontextmanager
from fcntl import ioctl

import msgspec
import pytest
import yaml
from factories.broker.bus_rigs import ensured, say
from factories.broker.memory_bus import MemoryBroker, MemoryBus

from sluice.contracts.bus import subjects
from sluice_console.core.documents import GpusDocument, PodsDocument
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.fleet.pods import pods_document
from sluice_console.core.output.top_view import TopView, heading, keys_of
from sluice_console.core.output.wide import GPU_COLUMNS, POD_COLUMNS, columns_text, gpu_rows, pod_rows
from sluice_console.shell.cli_options import UsageError, form_of
from sluice_console.shell.inspect import watch
from sluice_console.shell.inspect.top import top_on
from sluice_console.shell.inspect.views import FleetView
from sluice_console.shell.output.formats import as_text
from sluice_console.shell.output.terminal import Terminal

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def fleet_state(make):
    return FleetState(
        {
            f"sluice.request.{make.request}": make.asked(),
            f"sluice.binding.{make.request}": make.bound(),
            f"sluice.ledger.{subjects.node_token(make.node)}.{make.allocation}": make.grant(),
            f"sluice.inventory.{subjects.node_token(make.node)}": make.inventory(
                make.gpu_report(instances=(make.made(),)), make.slice()
            ),
        }
    )


def test_keys_are_understood_also_when_they_come_in_pieces():
    """An arrow key is three bytes, and a slow line splits them."""
    assert keys_of("jq") == (["down", "quit"], "")
    assert keys_of("\x1b[B\x1b[A") == (["down", "up"], "")
    assert keys_of("j\x1b[") == (["down"], "\x1b[")
    assert keys_of("\x1b[1;5Cxq") == (["quit"], "")


def test_moving_never_leaves_what_there_is():
    top = TopView()
    assert top.press("up", lines=50, room=10).first == 0
    assert top.press("last", lines=50, room=10).first == 40
    assert top.press("page down", lines=50, room=10).press("down", lines=50, room=10).first == 11
    assert top.press("page down", lines=5, room=10).first == 0
    shrunk = TopView(first=40)
    assert shrunk.shown([str(at) for at in range(12)], 10) == [str(at) for at in range(2, 12)]
    assert shrunk.press("next", lines=50, room=10) == TopView(view="pods")


def test_the_heading_says_what_is_wrong(fleet_state):
    """A broker that is gone looks like a fleet where nothing happens."""
    gpus, pods = gpus_document(fleet_state), pods_document(fleet_state)
    assert heading(gpus, pods, connected=True) == "sluice  1 node, 1 GPU  |  50% in use  |  1 pod"
    assert heading(gpus, pods, connected=False).startswith("sluice  NO BROKER: the last known state  |  1 node")
    assert "nothing to use" in heading(GpusDocument(gpus=()), PodsDocument(pods=()), connected=True)


def test_wide_lines_have_everything_and_are_never_cut(fleet_state, make):
    (gpu,) = gpu_rows(gpus_document(fleet_state))
    assert dict(zip(GPU_COLUMNS, gpu, strict=True)) == {
        "NODE": make.node, "GPU": "0", "UUID": make.gpu, "MODEL": "A100-SXM4-40GB", "MEMORY (MiB)": "40960",
        "MIG": "on", "IN USE": "50%", "TAKEN BY": "default/train", "STATE": "ok", "FREE": "fits 7x1g.5gb, 1x7g.40gb",
    }  # fmt: skip
    fleet_state.stored_at = {
        f"sluice.{kind}.{make.request}": at for kind, at in (("request", 100.0), ("binding", 103.0))
    }
    (pod,) = pod_rows(pods_document(fleet_state).pods, now_s=100.0 + 3 * 3600)
    assert dict(zip(POD_COLUMNS, pod, strict=True)) == {
        "POD": "default/train", "STATE": "bound", "AGE": "3h", "WAITED": "3s", "NODE": make.node, "ASKS FOR": "3g.20gb",
        "HAS": f"3g.20gb at 4 of {make.gpu}", "REQUEST": make.request, "ALLOCATION": make.allocation,
        "SOURCE": "folder",
    }  # fmt: skip
    assert columns_text(("A", "LONG"), [("a" * 300, "b")]).splitlines() == [f"A{' ' * 299}  LONG", f"{'a' * 300}  b"]


def test_memory_that_no_driver_tells_is_no_zero_to_add_up(fleet_state):
    """A GPU with the machine's memory (GB10) would seem to have none."""
    (gpu,) = gpus_document(fleet_state).gpus
    (row,) = gpu_rows(GpusDocument(gpus=(msgspec.structs.replace(gpu, memory_mib=0),)))
    assert row[GPU_COLUMNS.index("MEMORY (MiB)")] == "not known"


def test_yaml_says_the_same_as_json(fleet_state):
    document = gpus_document(fleet_state)
    assert yaml.safe_load(as_text(document, "yaml")) == msgspec.json.decode(as_text(document, "json"))
    assert as_text(document, "json", one_line=True).count("\n") == 1
    assert [form_of(None, json=False), form_of("wide", json=False), form_of(None, json=True)] == [
        "text",
        "wide",
        "json",
    ]
    with pytest.raises(UsageError, match="--json contradicts -o yaml"):
        form_of("yaml", json=True)


class Screen:
    """The far end of a pseudo-terminal: what a person sees and types."""

    def __init__(self) -> None:
        self.far, near = pty.openpty()
        self.near = near
        self.said = ""
        self.resize(24, 160)
        os.set_blocking(self.far, False)

    def resize(self, lines: int, columns: int) -> None:
        ioctl(self.near, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.far, text.encode())

    def read(self) -> str:
        while True:
            try:
                self.said += os.read(self.far, 65536).decode()
            except BlockingIOError:
                return self.said

    @property
    def frames(self) -> list[list[str]]:
        whole = [part.partition("\x1b[?2026l")[0] for part in self.read().split("\x1b[H")[1:] if "\x1b[?2026l" in part]
        return [ESCAPES.sub("", frame).replace("\r", "").split("\n") for frame in whole]

    async def until(self, condition, what):
        async with asyncio.timeout(10):
            while not (self.frames and condition(self.frames[-1])):  # noqa: ASYNC110  # a terminal, not an event
                await asyncio.sleep(0.02)
        return self.frames[-1]

    def close(self) -> None:
        os.close(self.far)
        os.close(self.near)


@asynccontextmanager
async def shown(make):
    broker = MemoryBroker()
    bus, screen = MemoryBus(broker), Screen()
    before = termios.tcgetattr(screen.near)
    await ensured(bus)
    await say(bus, subjects.inventory(make.node), 0, make.inventory(make.gpu_report()))

    async def since(_world):
        return {make.node: "2026-01-02T03:04:05Z"}

    task = asyncio.create_task(top_on(bus, Terminal(screen.near, screen.near), since))
    try:
        yield bus, screen, task
        assert termios.tcgetattr(screen.near) == before
        assert screen.read().endswith("\x1b[?7h\x1b[?25h\x1b[?1049l")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        screen.close()


async def test_the_map_lives_is_steered_and_gives_the_terminal_back(make):
    async with shown(make) as (bus, screen, task):
        first = await screen.until(lambda frame: "GPU 0" in "\n".join(frame), "the map")
        assert first[0] == "sluice  1 node, 1 GPU  |  0% in use  |  0 pods"
        assert first[-1].startswith("q quit")
        assert len(first) == 24
        await say(bus, subjects.request(make.request), 0, make.asked())
        await screen.until(lambda frame: "1 pod (1 requested)" in frame[0], "the pod in the heading")
        screen.type("2")
        await screen.until(lambda frame: "default/train" in "\n".join(frame), "the pods")
        screen.type("\t")
        await screen.until(lambda frame: "2026-01-02 03:04:05" in "\n".join(frame), "the nodes")
        screen.type("1")
        await screen.until(lambda frame: "GPU 0" in "\n".join(frame), "the map again")
        screen.resize(10, 60)
        os.kill(os.getpid(), signal.SIGWINCH)
        small = await screen.until(lambda frame: len(frame) == 10, "the smaller picture")
        assert small[-1].startswith("q quit")
        screen.type("p")
        await screen.until(lambda frame: "paused" in frame[0], "the pause")
        screen.type("p")
        bus.connected = False
        screen.type("q")
        async with asyncio.timeout(10):
            await task
    assert "\x1b[2J" not in screen.said  # a screen that is erased before it is drawn flickers


async def test_a_signal_gives_the_terminal_back_too(make):
    async with shown(make) as (_, screen, task):
        await screen.until(lambda frame: "GPU 0" in "\n".join(frame), "the map")
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            await task


async def test_watching_in_a_pipe_tells_each_change_once(make, monkeypatch, capsys):
    """A program reads line by line; the same twice would be taken for something that happened."""
    monkeypatch.setattr(watch, "PAUSE_S", 0.0)
    bus = MemoryBus(MemoryBroker())
    await ensured(bus)

    async def since(_world):
        return {}

    told = []

    async def until(count):
        async with asyncio.timeout(10):
            while len(told) < count:
                told.extend(capsys.readouterr().out.splitlines())
                await asyncio.sleep(0.01)
        assert len(told) == count

    task = asyncio.create_task(watch.watch_on(bus, FleetView("pods"), "json", since))
    try:
        await until(1)
        await say(bus, subjects.request(make.request), 0, make.asked())
        await until(2)
        await say(bus, subjects.inventory(make.node), 0, make.inventory(make.gpu_report()))  # is of no pod
        await say(bus, subjects.binding(make.request), 0, make.bound())
        await until(3)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    states = [[pod["state"] for pod in msgspec.json.decode(line)["pods"]] for line in told]
    assert states == [[], ["requested"], ["bound"]]


async def test_what_pods_are_used_for_is_told_again_when_it_changes(make, monkeypatch, capsys):
    """It is not on the bus: a slice that fell idle would stand there as busy for as long as nothing else happens."""
    monkeypatch.setattr(watch, "PAUSE_S", 0.0)
    monkeypatch.setattr(watch, "ASK_EVERY_S", 0.0)
    bus = MemoryBus(MemoryBroker())
    await ensured(bus)
    await say(bus, subjects.request(make.request), 0, make.asked())
    await say(bus, subjects.binding(make.request), 0, make.bound())
    silent = ["usage is unknown for the slices on gpu-2: it is away"]
    answers = ["97%, 300 of 4864 MiB", "97%, 300 of 4864 MiB", "0%, 10 of 4864 MiB"]
    asked = []

    async def ask(_world):
        asked.append(answers[min(len(asked), 2)])
        await asyncio.sleep(0)
        return {make.request: asked[-1]}, silent

    async def since(_world):
        return {}

    told, complained = "", ""
    task = asyncio.create_task(watch.watch_on(bus, FleetView("pods"), "wide", since, ask))
    try:
        async with asyncio.timeout(10):
            while "0%, 10 of" not in told or len(asked) < 5:
                await asyncio.sleep(0.01)
                said = capsys.readouterr()
                told, complained = told + said.out, complained + said.err
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    rows = [line for line in told.splitlines() if line and not line.startswith("POD ")]
    assert [row.rpartition("  ")[2] for row in rows] == ["97%, 300 of 4864 MiB", "0%, 10 of 4864 MiB"]
    assert complained == "\n".join(silent) + "\n"


async def test_watching_ends_when_agents_can_no_longer_be_asked_by_a_fault_of_ours(make, monkeypatch):
    monkeypatch.setattr(watch, "PAUSE_S", 0.0)
    monkeypatch.setattr(watch, "ASK_EVERY_S", 0.0)
    bus = MemoryBus(MemoryBroker())
    await ensured(bus)
    asked = []

    async def ask(_world):
        asked.append(1)
        if len(asked) > 1:
            raise ZeroDivisionError
        return {}, []

    async def since(_world):
        return {}

    async with asyncio.timeout(10):
        with pytest.raises(ZeroDivisionError):
            await watch.watch_on(bus, FleetView("pods"), "wide", since, ask)
