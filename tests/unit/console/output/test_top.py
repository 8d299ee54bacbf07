"""The live map in a terminal, on a real pseudo-terminal; and the forms in which views are printed."""

import asyncio
import io
import os
import pty
import re
import signal
import struct
import termios
import time
from contextlib import asynccontextmanager, closing
from fcntl import ioctl

import msgspec
import pytest
import yaml
from factories.broker.bus_rigs import ensured, say
from factories.broker.memory_bus import MemoryBroker, MemoryBus
from rich.console import Console
from rich.text import Text

from sluice.contracts.bus import subjects
from sluice.contracts.bus.subjects import parse
from sluice.contracts.messages import Held
from sluice_console.core.documents import GpusDocument, PodsDocument
from sluice_console.core.fleet.filters import FleetFilter, parse_filter
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.fleet.pods import pods_document
from sluice_console.core.fleet.report import ReportDocument, ReportPointDocument, ReportRowDocument
from sluice_console.core.fleet.usage import UsageDocument, UsagesDocument
from sluice_console.core.output.node_shares import NodeShares, recorded_shares
from sluice_console.core.output.top_view import TopView, heading, keys_of
from sluice_console.core.output.wide import GPU_COLUMNS, POD_COLUMNS, ages, columns_text, gpu_rows, pod_rows
from sluice_console.shell.cli_options import UsageError, form_of
from sluice_console.shell.inspect import watch
from sluice_console.shell.inspect.top import Beside, top_on
from sluice_console.shell.inspect.views import FleetView
from sluice_console.shell.output import answer
from sluice_console.shell.output.formats import as_text
from sluice_console.shell.output.printer import show_table
from sluice_console.shell.output.terminal import Terminal

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def state_of(make, *stored_s: float, **asked) -> FleetState:
    """One pod with its slice; its request and its binding were stored at these times."""
    inventory = make.inventory(make.gpu_report(instances=(make.made(),)), make.slice())
    words = {"request": make.asked(**asked), "binding": make.bound(), "ledger": make.grant()}
    found = make.fleet_state(**words, inventory=inventory)
    names = (f"sluice.request.{make.request}", f"sluice.binding.{make.request}")
    found.stored_at = dict(zip(names, stored_s, strict=False))
    return found


@pytest.fixture
def fleet_state(make) -> FleetState:
    return state_of(make)


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


def test_a_node_shows_what_the_screen_saw_and_before_that_what_was_recorded():
    """A node that was full all night looks like one that was never used; and a guess looks like a measurement."""
    shares, now = NodeShares(), 1_800_000_000.0
    half = {"allocated_gpus": 4, "used_gpus": 0, "capacity_gpus": 8, "waiting_pods": 0}
    point = ReportPointDocument(start="2027-01-15T07:58+00:00", **half)
    numbers = dict.fromkeys(ReportRowDocument.__struct_fields__, 0)
    row = ReportRowDocument(**(numbers | {"key": "a", "gpu_hours_by_model": {}, "cost": None, "points": (point,)}))
    report = ReportDocument(start="", end="", by="node", step_s=60, rows=(row,))
    shares.see(now, {"a": 0.0, "b": 0.3})
    shares.see(now + 14, {"a": 1.0})
    shares.add(recorded_shares(report), now + 14)
    assert shares.line("a", now + 14) == f"{' ' * 11}▅▅▅▅    █"
    assert shares.line("a", now + 14, unicode=False) == f"{' ' * 11}4444    9"
    assert (shares.line("b", now + 14), shares.line("c", now)) == (f"{' ' * 19}▃", " " * 20)
    shares.see(now + 10_000, {"a": 0.0})
    assert shares.line("a", now + 10_000) == f"{' ' * 19}▁"


def test_in_a_narrow_terminal_the_widest_columns_give_way(make):
    """With one long name of a node, states and the names of pods would be cut to nothing."""
    drawn = io.StringIO()
    row = ("red/train", "bound", "gpu-" + "7" * 60)
    show_table(Console(file=drawn, width=40), ("POD", "STATE", "NODE"), [tuple(map(Text, row))])
    assert drawn.getvalue().splitlines()[1].rstrip() == f"red/train  bound  gpu-{'7' * 17}…"


def test_the_heading_says_what_is_wrong(fleet_state):
    """A broker that is gone looks like a fleet where nothing happens."""
    gpus, pods = gpus_document(fleet_state), pods_document(fleet_state)
    assert heading(gpus, pods, connected=True) == "sluice  1 node, 1 GPU  |  50% in use  |  1 pod"
    assert heading(gpus, pods, connected=False).startswith("sluice  NO BROKER: the last known state  |  1 node")
    assert "nothing to use" in heading(GpusDocument(gpus=()), PodsDocument(pods=()), connected=True)


def test_wide_lines_have_everything_and_are_never_cut(make):
    fleet_state = state_of(make, 100.0, 103.0)
    (gpu,) = gpu_rows(gpus_document(fleet_state))
    assert dict(zip(GPU_COLUMNS, gpu, strict=True)) == {
        "NODE": make.node, "GPU": "0", "UUID": make.gpu, "MODEL": "A100-SXM4-40GB", "MEMORY (MiB)": "40960",
        "MIG": "on", "IN USE": "50%", "TAKEN BY": "default/train", "STATE": "ok", "FREE": "fits 7x1g.5gb, 1x7g.40gb",
    }  # fmt: skip
    (pod,) = pod_rows(pods_document(fleet_state).pods, now_s=103.0 + 3 * 3600)
    assert dict(zip(POD_COLUMNS, pod, strict=True)) == {
        "POD": "default/train", "STATE": "bound", "AGE": "3h", "WAITED": "3s", "NODE": make.node, "ASKS FOR": "3g.20gb",
        "HAS": f"3g.20gb at 4 of {make.gpu}", "REQUEST": make.request, "ALLOCATION": make.allocation,
        "SOURCE": "folder",
    }  # fmt: skip
    assert columns_text(("A", "LONG"), [("a" * 300, "b")]).splitlines() == [f"A{' ' * 299}  LONG", f"{'a' * 300}  b"]


def test_a_pod_whose_slice_is_recorded_does_not_seem_to_have_waited_for_nothing(make):
    """Its source writes the request again, later than the binding: `WAITED 0s` stood beside every pod with a slice."""
    held = Held(node=make.node, allocation=make.allocation)
    (pod,) = pods_document(state_of(make, 104.0, 103.0, held=held)).pods
    assert (pod.asked_at, ages(pod, 103.0 + 60)) == ("", ("60s", "-"))


def test_memory_that_no_driver_tells_is_no_zero_to_add_up(fleet_state):
    """A GPU with the machine's memory (GB10) would seem to have none."""
    (gpu,) = gpus_document(fleet_state).gpus
    (row,) = gpu_rows(GpusDocument(gpus=(msgspec.structs.replace(gpu, memory_mib=0),)))
    assert row[GPU_COLUMNS.index("MEMORY (MiB)")] == "not known"


def test_yaml_says_the_same_as_json(fleet_state):
    document = gpus_document(fleet_state)
    assert yaml.safe_load(as_text(document, "yaml")) == msgspec.json.decode(as_text(document, "json"))
    assert as_text(document, "json", one_line=True).count("\n") == 1
    forms = [form_of(None, json=False), form_of("wide", json=False), form_of(None, json=True)]
    assert forms == ["text", "wide", "json"]
    with pytest.raises(UsageError, match="--json contradicts -o yaml"):
        form_of("yaml", json=True)


class Screen:
    """The far end of a pseudo-terminal: what a person sees and types."""

    def __init__(self) -> None:
        self.far, self.near = pty.openpty()
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

    async def until(self, condition):
        async with asyncio.timeout(10):
            while not (self.frames and condition(self.frames[-1])):  # noqa: ASYNC110  # a terminal, not an event
                await asyncio.sleep(0.02)
        return self.frames[-1]

    async def shows(self, words: str, *, typed: str = "") -> list[str]:
        self.type(typed)
        return await self.until(lambda frame: words in "\n".join(frame))

    def close(self) -> None:
        os.close(self.far)
        os.close(self.near)


def usages_of(make, **facts) -> UsagesDocument:
    """What an agent measures of the one slice."""
    used = UsageDocument(
        **{
            "request": make.request, "allocation": make.allocation, "owner": "default/train", "containers": ("main",),
            "node": make.node, "gpu": make.gpu, "device": "MIG-1", "profile": "3g.20gb", "mode": "exclusive",
            "memory_mib": 19968, "memory_used_mib": 300, "busy_percent": 0.0, "sm_percent": None,
            "memory_busy_percent": None, "processes": 1, "watched_s": 5000.0, "age_s": 3.0, "idle_s": None,
        } | facts
    )  # fmt: skip
    return UsagesDocument(slices=(used,), silent={})


@asynccontextmanager
async def shown(make, first=FleetView("gpus")):  # noqa: B008 - frozen
    broker = MemoryBroker()
    bus, screen = MemoryBus(broker), Screen()
    before = termios.tcgetattr(screen.near)
    await ensured(bus)
    await say(bus, subjects.inventory(make.node), 0, make.inventory(make.gpu_report()))

    async def since(_world):
        return {make.node: "2026-01-02T03:04:05Z"}

    async def ask(_world):
        return usages_of(make, idle_s=4000.0)

    async def recorded():
        return [(make.node, int(time.time()) - 60, 1.0)]

    work = top_on(bus, Terminal(screen.near, screen.near), Beside(since, ask, recorded), first)
    with closing(screen):
        async with meanwhile(work) as task:
            yield bus, screen, task
            assert termios.tcgetattr(screen.near) == before
            assert screen.read().endswith("\x1b[?7h\x1b[?25h\x1b[?1049l")


async def test_the_map_lives_is_steered_and_gives_the_terminal_back(make):
    async with shown(make) as (bus, screen, task):
        first = await screen.shows("GPU 0")
        assert first[0] == "sluice  1 node, 1 GPU  |  0% in use  |  0 pods"
        assert first[-1].startswith("q quit")
        assert len(first) == 24
        await say(bus, subjects.request(make.request), 0, make.asked())
        await screen.until(lambda frame: "1 pod (1 requested)" in frame[0])
        await screen.shows("default/train", typed="2")
        nodes = await screen.shows("2026-01-02 03:04:05", typed="\t")
        assert re.search(r"LAST 5 MIN .*\n.*█ {3,4}▁+ ", "\n".join(nodes)), "full a minute ago, empty now"
        await screen.shows("no namespace has limits", typed="4")
        await screen.shows("1 h 06 min", typed="5")
        await screen.shows("GPU 0", typed="1")
        screen.resize(10, 60)
        os.kill(os.getpid(), signal.SIGWINCH)
        small = await screen.until(lambda frame: len(frame) == 10)
        assert small[-1].startswith("q quit")
        screen.type("p")
        await screen.until(lambda frame: "paused" in frame[0])
        screen.type("p")
        bus.connected = False
        screen.type("q")
        async with asyncio.timeout(10):
            await task
    assert "\x1b[2J" not in screen.said  # a screen that is erased before it is drawn flickers


async def test_a_signal_gives_the_terminal_back_too(make):
    async with shown(make) as (_, screen, task):
        await screen.shows("GPU 0")
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            await task


@pytest.fixture
async def bus(monkeypatch):
    """A bus to watch without pauses."""
    monkeypatch.setattr(answer, "PAUSE_S", 0.0)
    monkeypatch.setattr(watch, "ASK_EVERY_S", 0.0)
    made = MemoryBus(MemoryBroker())
    await ensured(made)
    return made


async def since_never(_world):
    return {}


@asynccontextmanager
async def meanwhile(work):
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_watching_in_a_pipe_tells_each_change_once(make, bus, capsys):
    """A program reads line by line; the same twice would be taken for something that happened."""
    told = []

    async def until(count):
        async with asyncio.timeout(10):
            while len(told) < count:
                told.extend(capsys.readouterr().out.splitlines())
                await asyncio.sleep(0.01)
        assert len(told) == count

    async with meanwhile(watch.watch_on(bus, FleetView("pods"), "json", since_never)):
        await until(1)
        await say(bus, subjects.request(make.request), 0, make.asked())
        await until(2)
        await say(bus, subjects.inventory(make.node), 0, make.inventory(make.gpu_report()))  # is of no pod
        await say(bus, subjects.binding(make.request), 0, make.bound())
        await until(3)
    states = [[pod["state"] for pod in msgspec.json.decode(line)["pods"]] for line in told]
    assert states == [[], ["requested"], ["bound"]]


async def test_who_watches_in_a_pipe_is_told_that_the_broker_is_lost(make, bus, capsys, monkeypatch):
    """Else the last line is taken for the present state for as long as the broker is away."""
    monkeypatch.setattr(watch, "LOOK_AGAIN_S", 0.01)
    told = ""

    async def until(line):
        nonlocal told
        async with asyncio.timeout(10):
            while not told.endswith(line):
                told += "".join(capsys.readouterr())
                await asyncio.sleep(0.01)

    async with meanwhile(watch.watch_on(bus, FleetView("pods"), "json", since_never)):
        await until('"pods":[]}\n')
        bus.connected = False
        await until("the broker is lost: this is the last known state\n")
        bus.connected = True
        await until("the broker answers again\n")
    assert told.count("\n") == 3


async def test_what_pods_are_used_for_is_told_again_when_it_changes(make, bus, capsys):
    """It is not on the bus: a slice that fell idle would stand there as busy for as long as nothing else happens."""
    await say(bus, subjects.request(make.request), 0, make.asked())
    await say(bus, subjects.binding(make.request), 0, make.bound())
    answers = [(97.0, 300), (97.0, 300), (0.0, 10)]
    asked = []

    async def ask(_world):
        asked.append(answers[min(len(asked), 2)])
        await asyncio.sleep(0)
        found = usages_of(make, busy_percent=asked[-1][0], memory_used_mib=asked[-1][1], age_s=float(len(asked)))
        return msgspec.structs.replace(found, silent={"gpu-2": "it is away"})

    told, complained = "", ""
    async with meanwhile(watch.watch_on(bus, FleetView("pods"), "wide", since_never, ask)):
        async with asyncio.timeout(10):
            while "0%, 10 of" not in told or len(asked) < 5:
                await asyncio.sleep(0.01)
                said = capsys.readouterr()
                told, complained = told + said.out, complained + said.err
    rows = [line for line in told.splitlines() if line and not line.startswith("POD ")]
    assert [row.rpartition("  ")[2] for row in rows] == ["97%, 300 of 19968 MiB", "0%, 10 of 19968 MiB"]
    assert complained == "usage is unknown for the slices on gpu-2: it is away\n"


@pytest.mark.parametrize(
    ("looked", "expected"),
    [
        (FleetView("usage"), [("slices", ["default/train"])]),
        (FleetView("usage", idle_s=60.0), [("slices", []), ("slices", ["default/train"])]),
        (FleetView("quotas"), [("quotas", ["default"])]),
        (FleetView("quotas", namespace="other"), [("quotas", [])]),
        (FleetView("pods", filter=FleetFilter(parse_filter("is:idle"))), [("pods", []), ("pods", ["train"])]),
        (FleetView("gpus", filter=FleetFilter(parse_filter("-is:idle team:default"))), [("gpus", ["A"]), ("gpus", [])]),
    ],
    ids=["usage", "idle slices", "quotas", "another's quota", "idle pods", "GPUs of busy pods"],
)
async def test_every_list_can_be_watched_and_idle_is_measured_again(make, fleet_state, bus, capsys, looked, expected):
    """A list that shows what was once is no watch."""
    for subject, message in fleet_state.values.items():
        await say(bus, parse(subject), 0, message)
    idle = [None]

    async def ask(_world):
        await asyncio.sleep(0)
        return usages_of(make, idle_s=idle[0])

    def names(document):
        (name,) = document.keys() & {"slices", "quotas", "pods", "gpus"}
        rows = document[name]
        return name, [row.get("owner") or row.get("name") or row.get("namespace") or "A" for row in rows]

    told = []
    async with meanwhile(watch.watch_on(bus, looked, "json", since_never, ask if looked.needs_usage else None)):
        async with asyncio.timeout(10):
            while told != expected:
                told += [names(msgspec.json.decode(line)) for line in capsys.readouterr().out.splitlines()]
                told = [each for at, each in enumerate(told) if each not in told[:at]]  # the measured numbers change
                idle[0] = 4000.0 if told else None
                await asyncio.sleep(0.01)


async def test_watching_ends_when_agents_can_no_longer_be_asked_by_a_fault_of_ours(make, bus):
    asked = []

    async def ask(_world):
        asked.append(1)
        if len(asked) > 1:
            raise ZeroDivisionError
        return usages_of(make)

    async with asyncio.timeout(10):
        with pytest.raises(ZeroDivisionError):
            await watch.watch_on(bus, FleetView("pods"), "wide", since_never, ask)
