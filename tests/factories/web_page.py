"""The page's server in this process over a board that a test fills itself; and a scene for it. No bus, no process."""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
from factories.scheduling import allocator
from factories.words import booking_of, bound_of, gpu_report, news_of, snapshot

from sluice.contracts import messages as msg
from sluice.contracts.bus.subjects import guarded
from sluice.contracts.ids import GpuUuid, Incarnation, NodeName, RequestId, RunId
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_console.core.documents import PodDocument, StepDocument, StoryDocument
from sluice_console.core.history.ended import EndedPodDocument, EndedPodsDocument
from sluice_console.core.history.waterfall import PartDocument, SpanDocument, WaterfallDocument
from sluice_console.core.web.board import Board
from sluice_console.shell.web.app import make_app
from sluice_console.shell.web.hub import Hub
from sluice_console.shell.web.listen_address import listen
from sluice_console.shell.web.reports import Ask as AskReport
from sluice_console.shell.web.reports import Reports
from sluice_console.shell.web.server import serving
from sluice_console.shell.web.usage import Ask, Usages, ask_nodes

CHROMIUM = Path("/usr/bin/chromium")
CHROMIUM_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WHY_NO_CHROMIUM = f"there is no {CHROMIUM} (on Debian: apt-get install chromium)"
MODEL = "NVIDIA A100-SXM4-40GB"
RUN = RunId("run1")
LIFE = Incarnation("1")
TEAMS = ("research", "serving", "batch", "team-a", "notebooks")
CUTS = {1: "1g.5gb", 2: "2g.10gb", 4: "3g.20gb", 8: "7g.40gb"}
"""A profile by the memory slices of its instances."""
LAYOUTS = ((4, 4), (8,), (2, 2, 4), (1, 1, 1, 1, 4), (4,), (2, 1), (), (1, 2, 4))


class Stories:
    """Reports one step of every request; `error` instead, when it is set."""

    def __init__(self):
        self.error: Exception | None = None
        self.gone: dict[str, PodDocument] = {}
        """Pods that only the history knows."""
        self.ended_pods: tuple[EndedPodDocument, ...] = ()

    async def past(self, request: str, known: PodDocument | None) -> PodDocument | None:
        return known or self.gone.get(request)

    async def ended(self, _hours: int) -> EndedPodsDocument:
        if self.error is not None:
            raise self.error
        return EndedPodsDocument(pods=self.ended_pods)

    async def of(self, pod: PodDocument) -> StoryDocument:
        if self.error is not None:
            raise self.error
        step = StepDocument(time="2026-01-01T00:00:00Z", subject="sluice.request.x", type="X", text="asks for 3g.20gb")
        return StoryDocument(pod=pod, steps=(step,))

    async def trace_of(self, pod: PodDocument) -> WaterfallDocument:
        if self.error is not None:
            raise self.error
        word = SpanDocument(name="request", kind="word", service="pod-watcher", began_ms=0.0, took_ms=12.5, text="asks")
        wait = SpanDocument(name="wait", kind="wait", service="allocator", began_ms=12.5, took_ms=30.0)
        part = PartDocument(
            part="request", trace_id="a1", began="2026-01-01T00:00:00Z", took_ms=42.5, spans=(word, wait)
        )
        return WaterfallDocument(
            request=pod.request, namespace=pod.namespace, name=pod.name, state=pod.state, parts=(part,)
        )


def uuid_of(node: int, index: int) -> GpuUuid:
    """The UUID of a GPU, as long as a real one."""
    return GpuUuid(f"GPU-{node:08x}-0000-4000-8000-{index:012x}")


def name_of(node: int) -> NodeName:
    return NodeName(f"gpu-{node}")


def node_values(number: int, gpus: int, *, stale: bool = False, turn: int = 0) -> dict[str, msg.AnyMessage]:
    """The messages about one node with `gpus` GPUs, differently cut; `turn` changes how."""
    node = name_of(number)
    values: dict[str, msg.AnyMessage] = {}
    reports: list[msg.GpuReport] = []
    slices: list[msg.SliceReport] = []
    for index in range(gpus):
        instances = []
        at = 0
        for size in LAYOUTS[(number + index + turn) % len(LAYOUTS)]:
            request = RequestId(f"r{number}-{index}-{at}")
            place = {"profile": CUTS[size], "start": at, "size": size}
            device = msg.DeviceGrant(container="main", gpu=uuid_of(number, index), **place)
            pod = {"owner": f"uid-{request}", "name": f"train-{number}-{index}-{at}"}
            pod["namespace"] = TEAMS[(number + at) % len(TEAMS)]
            booking = booking_of(f"{request}_run1_1", node, (device,), request=request, **pod)
            uuid = f"MIG-{number:08x}-{index:04x}-4000-8000-{at:012x}"
            instances.append(msg.InstanceReport(gi_id=at + 1, **place, uuid=uuid, allocation=booking.allocation))
            slices.append(msg.SliceReport(booking=booking, revision=1, state="ready", revoked=False))
            grant = msg.Grant(revision=1, incarnation=LIFE, booking=booking)
            values[guarded("ledger", node, booking.allocation).subject] = grant
            values |= _served(booking, uuid)
            at += size
        creatable = {CUTS[size]: count for size in CUTS if (count := (8 - at) // size)}
        found = {"uuid": uuid_of(number, index), "profiles": (), "instances": tuple(instances)}
        reports.append(gpu_report(node, index, **found, creatable=creatable))
    about = {"boot_id": "boot", "agent_run": RUN, "slices": tuple(slices)}
    seen = snapshot(node, tuple(reports), **about, generation=turn + 1)
    values[guarded("inventory", node).subject] = msg.NodeInventory(
        snapshot=seen,
        stale=stale,
        stale_message="the agent does not answer" if stale else "",
        observed_at="2026-01-01T00:00:00Z",
    )
    opened = msg.NodeOpened(node=node, incarnation=LIFE, boot_id="boot", agent_run=RUN)
    values[guarded("ledger", node, "head").subject] = opened
    values[guarded("node", node).subject] = msgspec.structs.replace(news_of(seen), generation=1)
    return values


def turned(number: int, gpus: int, *, turn: int) -> dict[str, msg.AnyMessage | None]:
    """The messages when a node goes from the turn before to this one; None for what is gone."""
    before: dict[str, msg.AnyMessage | None] = dict.fromkeys(node_values(number, gpus, turn=turn - 1))
    return before | node_values(number, gpus, turn=turn)


def _served(booking: msg.Booking, uuid: str) -> dict[str, msg.AnyMessage]:
    devices = (msg.ContainerDevices(container="main", visible_devices=uuid, memory_mib=4864),)
    given = {"allocation": booking.allocation, "ticket": "t", "containers": devices}
    return {
        guarded("request", booking.request).subject: asked(booking.namespace, booking.name),
        guarded("binding", booking.request).subject: bound_of(booking.request, booking.node, **given),
    }


def asked(namespace: str, name: str, profile: str = "3g.20gb") -> msg.AllocationRequested:
    plain = allocator.asked(name, allocator.claim(profile=profile))
    return msgspec.structs.replace(plain, namespace=namespace, owner=f"uid-{name}")


def waiting_values(number: int) -> dict[str, msg.AnyMessage]:
    request = RequestId(f"w{number}")
    reasons = (ReasonCount(reason=WaitReason.GPU_LAYOUT_FULL, count=8, of=MODEL),)
    why = f"8 x {MODEL}: no free place of that size"
    pending = msg.Pending(request=request, request_revision=1, message=why, reasons=reasons)
    return {
        guarded("request", request).subject: asked("research", f"queued-{number}"),
        guarded("waiting", request).subject: pending,
    }


@dataclass
class Page:
    """A page's server that runs in this event loop."""

    board: Board
    hub: Hub
    stories: Stories
    stored_at: dict[str, float]
    """By subject, in unix seconds; a test may set them."""
    host: str
    port: int
    at_end: AsyncExitStack
    """What uses this server: it is closed before the server ends."""

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/"

    def hear(self, values: dict[str, msg.AnyMessage | None]) -> None:
        """Publish these values, and update every browser."""
        for subject, message in values.items():
            self.board.heard(subject, message)
        while (change := self.board.step(100)) is not None or self.board.is_behind:
            if change is not None:
                self.hub.tell(change)

    async def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers by lower-case name and body of one answer."""
        return await asyncio.to_thread(self._ask, path, method, headers)

    def _ask(self, path: str, method: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=60)) as connection:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


@asynccontextmanager
async def page(
    *,
    clients_max: int = 8,
    hosts: tuple[str, ...] = (),
    ask: Ask = ask_nodes,
    charts: AskReport | None = None,
    trace_viewer: str = "",
) -> AsyncIterator[Page]:
    """A server for the time of the context, live and with an empty bus. `ask` asks agents, `charts` the recorder."""
    board = Board(stored_at=(times := {}))
    hub = Hub(board, clients_max=clients_max)
    stories = Stories()
    taken = listen("127.0.0.1:0")
    host, port = taken.getsockname()
    board.incarnation("1")
    board.bus("live", "2026-01-01T00:00:00+00:00")
    board.step(1)
    reports = Reports("nats://127.0.0.1:1", charts)
    app = make_app(board, hub, stories, Usages(ask), reports, hosts=hosts, trace_viewer=trace_viewer)  # type: ignore[arg-type]
    async with serving(app, hub, taken), AsyncExitStack() as at_end:
        yield Page(board, hub, stories, times, host, port, at_end)


@dataclass
class Told:
    """One event of a stream."""

    name: str
    data: dict


class Watcher:
    """A program that reads the page's stream, as fast as it is asked to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader = reader
        self._writer = writer
        self.rows: dict[str, dict] = {}
        self.revision = -1
        self.head = b""

    async def event(self, within_s: float = 60.0) -> Told | None:
        """The next event; None when the stream has ended."""
        async with asyncio.timeout(within_s):
            name = ""
            while line := await self._reader.readline():
                if line.startswith(b"event: "):
                    name = line[7:].strip().decode()
                elif line.startswith(b"data: "):
                    return self._take(Told(name, json.loads(line[6:])))
            return None

    def _take(self, told: Told) -> Told:
        if told.name == "change":
            assert told.data["revision"] == self.revision + 1, "an unannounced gap"
            for key in told.data["gone"]:
                del self.rows[key]
        if told.name in {"picture", "change"}:
            self.revision = told.data["revision"]
            self.rows |= told.data["rows"]
        return told

    async def until(self, name: str) -> Told:
        while (told := await self.event()) is not None:
            if told.name == name:
                return told
        raise AssertionError(f"the stream ended without {name}")


@asynccontextmanager
async def watching(host: str, port: int, **headers: str) -> AsyncIterator[Watcher]:
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 26)
    named = {"Host": f"{host}:{port}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    writer.write(f"GET /api/stream HTTP/1.0\r\n{lines}\r\n".encode())
    watcher = Watcher(reader, writer)
    try:
        async with asyncio.timeout(60):
            watcher.head = await reader.readuntil(b"\r\n\r\n")
        yield watcher
    finally:
        writer.transport.abort()


def replaced(message: msgspec.Struct, **changes: object) -> msg.AnyMessage:
    return msgspec.structs.replace(message, **changes)
